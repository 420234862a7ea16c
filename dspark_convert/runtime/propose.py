"""From backbone hidden states to drafted tokens: the Markov chain over the slots of a block.

Shapes: R rows, B slots, N drafted tokens, H hidden, D draft vocabulary, V target vocabulary,
T context positions, F feature columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.sampling import (
    SamplingOptions,
    draw_gumbel,
    require_generator,
    scale_logits,
)
from dspark_convert.runtime.vocabulary import DraftVocabulary, ProposalBuffer

# (index of the drafted token, its draft logits [R, D]) -> chosen target ids [R]
ChooseToken = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Chain:
    """What the chain saw and chose; S is the number of slots it ran over.

    ``base_logits`` and ``biased_logits`` [R, S, D]; ``previous_ids`` int64 [R, S], the target id
    that conditioned each slot; ``target_ids`` int64 [R, N]; ``confidence_logits`` fp32 [R, S].
    """

    base_logits: Tensor
    biased_logits: Tensor
    previous_ids: Tensor
    target_ids: Tensor
    confidence_logits: Tensor | None


@dataclass(frozen=True, slots=True)
class BlockProposal:
    """One drafted block, named as in ``fixtures/golden``; in a batch every shape starts with R.

    In the 1+N layout, the ids and the position of slot 0 are -1, and its logits mean nothing.
    """

    backbone_hidden: Tensor
    """[B, H], after the final norm."""
    base_logits: Tensor
    """[B, D], before the Markov bias."""
    biased_logits: Tensor
    """[B, D], along the chain of chosen tokens; -inf at the padding of a padded vocabulary."""
    draft_ids: Tensor
    """int64 [B], in the draft vocabulary."""
    target_ids: Tensor
    """int64 [B], the same in the target vocabulary."""
    prev_token_ids: Tensor
    """int64 [B], the target id that conditions each slot."""
    predicted_position: Tensor
    """int64 [B], the sequence position that each slot predicts."""
    confidence_logits: Tensor | None
    """fp32 [B], before the sigmoid; None without a confidence head."""
    proposal_logits: Tensor
    """[N, V], biased logits in target ids, -inf where nothing can be drafted; q is their softmax
    at the draft's temperature."""

    def row(self, index: int) -> BlockProposal:
        """One row of a batch, without the leading dimension."""
        values: Any = {field.name: getattr(self, field.name) for field in fields(self)}
        picked: Any = {
            name: value if value is None else value[index] for name, value in values.items()
        }
        return BlockProposal(**picked)


class GreedyChoice:
    """Chooses the likeliest token: an argmax over D columns, nothing V wide."""

    def __init__(self, vocabulary: DraftVocabulary) -> None:
        self.vocabulary = vocabulary

    def __call__(self, token: int, draft_logits: Tensor) -> Tensor:
        """Target ids [R] of draft logits [R, D]."""
        usable = draft_logits[:, : self.vocabulary.usable]
        return self.vocabulary.map_draft_to_target(usable.argmax(-1))


class SampledChoice:
    """Draws tokens in target ids from a buffer, which then holds q for rejection sampling."""

    def __init__(
        self, buffer: ProposalBuffer, temperature: float, generator: torch.Generator
    ) -> None:
        self.buffer = buffer
        self.temperature, self.generator = temperature, generator

    def __call__(self, token: int, draft_logits: Tensor) -> Tensor:
        """Target ids [R] of draft logits [R, D]."""
        logits = self.buffer.write(token, draft_logits)
        return draw_gumbel(scale_logits(logits, self.temperature), self.generator)


def run_chain(
    draft: DraftModel,
    hidden_RBH: Tensor,
    anchor_token_ids_R: Tensor,
    choose: ChooseToken,
    *,
    num_tokens: int | None = None,
    vocabulary: DraftVocabulary | None = None,
) -> Chain:
    """Choose ``num_tokens`` (all N if None), each conditioned on the one before.

    Tokens that ``vocabulary`` (the draft's own if None) cannot propose are masked.

    The first drafted token is conditioned on the anchor in both layouts. Slot 0 of the 1+N layout
    chooses nothing but takes its step of the rnn state, as speculators does in training.
    """
    first = draft.first_predicting_slot
    slots = first + (draft.config.num_speculative_tokens if num_tokens is None else num_tokens)
    vocabulary = draft.vocabulary if vocabulary is None else vocabulary
    base = draft.compute_draft_logits(hidden_RBH[:, :slots])
    previous, state = anchor_token_ids_R, None
    conditioning, biased, chosen = [], [], []
    for slot in range(slots):
        logits = base[:, slot]
        if draft.markov_head is not None:
            embedding = draft.markov_head.embed(previous)
            bias, state = draft.markov_head(embedding, hidden_RBH[:, slot], state)
            logits = logits + bias
        logits = vocabulary.mask_padding(logits)
        conditioning.append(previous)
        biased.append(logits)
        if slot >= first:
            previous = choose(slot - first, logits)
            chosen.append(previous)
    previous_ids = torch.stack(conditioning, 1)
    return Chain(
        base_logits=base,
        biased_logits=torch.stack(biased, 1),
        previous_ids=previous_ids,
        target_ids=torch.stack(chosen, 1),
        confidence_logits=compute_confidence(draft, hidden_RBH[:, :slots], previous_ids),
    )


def compute_confidence(draft: DraftModel, hidden: Tensor, previous_ids: Tensor) -> Tensor | None:
    """Confidence logits fp32 [...] of slots; None without a confidence head.

    ``hidden`` [..., H], ``previous_ids`` int64 [...].
    """
    if draft.confidence_head is None:
        return None
    embedding = None if draft.markov_head is None else draft.markov_head.embed(previous_ids)
    logits: Tensor = draft.confidence_head(hidden, embedding)
    return logits


@torch.no_grad()
def propose_block(
    draft: DraftModel,
    context_hidden: Tensor,
    anchor_token_id: int | Tensor,
    *,
    lengths: Tensor | None = None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> BlockProposal:
    """Draft one block without a cache.

    Args:
        draft: the model.
        context_hidden: target features of the positions before the anchor, [T, F]; or a batch
            [R, T, F], each row padded at its end.
        anchor_token_id: an int or int64 [1]; int64 [R] for a batch.
        lengths: int64 [R], the context length of each row of a batch; None: all T.
        temperature: 0 proposes greedily.
        generator: on the draft's device; needed at a temperature above 0.

    Raises:
        UsageError: ``context-shape``, ``generator-required``, ``option-out-of-range``.
    """
    single = context_hidden.dim() == 2
    features = context_hidden[None] if single else context_hidden
    anchors = torch.as_tensor(anchor_token_id, device=draft.device).reshape(-1)
    _check_shapes(draft, features, anchors, lengths)
    features = features.to(draft.device)
    rows, context_length = features.shape[:2]
    if lengths is None:
        lengths = torch.full((rows,), context_length)
    lengths = lengths.to(draft.device)
    context = draft.compute_context(features, torch.arange(context_length, device=draft.device))
    hidden = draft(context, anchors[:, None], lengths[:, None])[:, 0]
    num_tokens = draft.config.num_speculative_tokens
    buffer = ProposalBuffer(draft.vocabulary, rows, num_tokens, draft.dtype)
    chain = run_chain(draft, hidden, anchors, _choice(buffer, temperature, generator))
    for token in range(num_tokens):
        buffer.write(token, chain.biased_logits[:, draft.first_predicting_slot + token])
    proposal = _describe(draft, hidden, chain, lengths, buffer.logits)
    return proposal.row(0) if single else proposal


def _choice(
    buffer: ProposalBuffer, temperature: float, generator: torch.Generator | None
) -> ChooseToken:
    if SamplingOptions(temperature=temperature).greedy:
        return GreedyChoice(buffer.vocabulary)
    return SampledChoice(buffer, temperature, require_generator(generator))


def _describe(
    draft: DraftModel, hidden: Tensor, chain: Chain, lengths: Tensor, proposal_logits: Tensor
) -> BlockProposal:
    """A proposal over all B slots, -1 where a slot predicts nothing."""
    first = draft.first_predicting_slot
    nothing = torch.full((len(hidden), first), -1, device=hidden.device)
    drafted = torch.arange(1, chain.target_ids.shape[1] + 1, device=hidden.device)
    draft_ids = draft.vocabulary.map_target_to_draft(chain.target_ids)
    return BlockProposal(
        backbone_hidden=hidden,
        base_logits=chain.base_logits,
        biased_logits=chain.biased_logits,
        draft_ids=torch.cat((nothing, draft_ids), 1),
        target_ids=torch.cat((nothing, chain.target_ids), 1),
        prev_token_ids=chain.previous_ids,
        predicted_position=torch.cat((nothing, lengths[:, None] + drafted), 1),
        confidence_logits=chain.confidence_logits,
        proposal_logits=proposal_logits,
    )


def _check_shapes(
    draft: DraftModel, features: Tensor, anchors: Tensor, lengths: Tensor | None
) -> None:
    rows = len(anchors)
    wanted = (rows, "T", draft.config.feature_size)
    fits = features.dim() == 3 and (features.shape[0], features.shape[2]) == (rows, wanted[2])
    if not fits or (lengths is not None and lengths.shape != (rows,)):
        raise UsageError(
            Finding(
                code="context-shape",
                message="the shapes of context_hidden, anchor_token_id and lengths do not match",
                expected=f"context_hidden {wanted}, lengths ({rows},)",
                found=f"context_hidden {tuple(features.shape)}"
                + ("" if lengths is None else f", lengths {tuple(lengths.shape)}"),
                hint="features are the hidden states of target_layer_ids, concatenated in order",
            )
        )
