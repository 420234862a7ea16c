"""What a draft says about a known text: every anchor's block in parallel, the text's tokens forced.

    features --chunks of positions--> input of the context projections, once per text
             --> context keys and values
    anchors  --chunks--> backbone hidden of their blocks, those of several readings side by side
             --chunks of vocabulary columns--> largest logit, log q of the text's token

Along the text a block is conditioned on what was accepted before, so this is all that a decode loop
would see of the draft up to its first rejection (``replay.expectation`` has the arithmetic).
Nothing of the size anchors x vocabulary is ever held.

Shapes: T text positions, M anchors (chunks of them inside), W different blocks after each of them,
B slots, N drafted tokens, S = slots up to the last of these, H hidden, F feature columns, r Markov
rank, C candidates, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.cache import ContextCache
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import compute_confidence
from dspark_convert.runtime.replay_steps import Reductions, ReplaySteps

PLAIN = ReplaySteps()

ALIGNMENT, MOST_COLUMNS = 128, 65_536
"""Columns of logits in a chunk: a multiple of the first, where there are so many. Libraries choose
slow kernels for odd widths, and for some that are much larger than the number of rows."""


@dataclass(frozen=True, slots=True)
class BlockScores:
    """What a draft says about the tokens after each of M anchors, on the draft's device.

    Column k - 1 is the k-th drafted token, conditioned on the text before it. ``greedy_ids`` int64
    [M, N] are the likeliest tokens, as target ids. ``log_q`` fp32 [M, N] is the log probability of
    the text's own token, -inf where it cannot be drafted or the text has ended; None at
    temperature 0. ``confidence`` fp32 [M, N] are probabilities, None without a confidence head.
    ``candidate_log_q`` fp32 [M, C] is log q of the candidates for the first drafted token.
    """

    greedy_ids: Tensor
    log_q: Tensor | None
    confidence: Tensor | None
    candidate_log_q: Tensor | None


@torch.no_grad()
def compute_text_input(
    draft: DraftModel,
    features: Sequence[Tensor],
    *,
    steps: ReplaySteps = PLAIN,
) -> Tensor:
    """The input [T, H] of all context projections, from the features [T, ...] of a text.

    Features lie side by side in ``features``, most often one tensor for each layer, on any device.
    They are read chunk after chunk, so mapped files need never be in memory as a whole.
    """
    length = len(features[0])
    inputs = torch.empty(length, draft.config.hidden_size, device=draft.device, dtype=draft.dtype)
    for chunk in _position_chunks(draft, length, steps):
        inputs[chunk] = steps.compute_input(draft, [each[chunk] for each in features])
    return inputs


@torch.no_grad()
def compute_text_context(
    draft: DraftModel,
    input_TH: Tensor,
    *,
    steps: ReplaySteps = PLAIN,
) -> ContextKV:
    """Context keys and values [1, T, K, E] of a text, from ``compute_text_input``."""
    length = len(input_TH)
    cache = ContextCache(
        draft.config, rows=1, capacity=length, device=draft.device, dtype=draft.dtype
    )
    for chunk in _position_chunks(draft, length, steps):
        positions = torch.arange(chunk.start, chunk.stop, device=draft.device)
        context = steps.project_context(draft, input_TH[chunk], positions)
        cache.write(context, positions[None])
    return cache.view(length)


@torch.no_grad()
def score_blocks(
    readings: Sequence[DraftModel],
    context: ContextKV,
    token_ids_T: Tensor,
    anchors: range,
    *,
    target_vocab_size: int,
    temperature: float = 0.0,
    num_tokens: int | None = None,
    candidate_ids_MC: Tensor | None = None,
    steps: ReplaySteps = PLAIN,
) -> list[BlockScores]:
    """Score the block after every anchor of a text, for each reading.

    Args:
        readings: drafts of the same layers: weights and config differ at most in what embeds a
            block (embedding, mask token) and in what comes after it (layout, heads, vocabulary).
        context: of the text, at least up to the last anchor (see ``compute_text_context``).
        token_ids_T: the text, int64 [T].
        anchors: ascending positions of anchors, one or more.
        target_vocab_size: tokens that the target can put out.
        temperature: of q; at 0 only the likeliest tokens are computed.
        num_tokens: N at most; None: all that a block proposes.
        candidate_ids_MC: target ids [M, C] whose log q, as the first drafted token after each
            anchor, is wanted; needs a temperature above 0.
        steps: the plain ones, or those for a GPU; a chunk keeps to their memory budget.

    Raises:
        DraftError: ``draft-id-beyond-target``.
    """
    assert len(anchors) > 0
    assert anchors.step > 0
    scorers = [
        _Scorer(reading, target_vocab_size, temperature, num_tokens, steps) for reading in readings
    ]
    draft = readings[0]
    width = 1 + max(scorer.num_tokens for scorer in scorers)
    tokens = _windows(steps.upload(token_ids_T, draft.device), anchors, width)
    blocks, block_of = _find_blocks(readings)
    at_once = max(1, steps.memory_budget // steps.block_bytes(draft, anchors[-1]))
    side_by_side = min(len(blocks), at_once)
    per_chunk = at_once // side_by_side
    chunks: list[list[BlockScores]] = [[] for _ in scorers]
    for start in range(0, len(anchors), per_chunk):
        part = slice(start, start + per_chunk)
        candidates = None
        if candidate_ids_MC is not None:
            candidates = steps.upload(candidate_ids_MC[part], draft.device).long()
        for first in range(0, len(blocks), side_by_side):
            some = blocks[first : first + side_by_side]
            hidden = steps.run_blocks(
                draft, context, _embed_blocks(some, tokens[part, 0]), anchors[part]
            )
            for scorer, block, scored in zip(scorers, block_of, chunks, strict=True):
                if first <= block < first + len(some):
                    scored.append(scorer(hidden[:, block - first], tokens[part], candidates))
    return [_concatenate(scored) for scored in chunks]


def _find_blocks(readings: Sequence[DraftModel]) -> tuple[list[DraftModel], list[int]]:
    """Drafts that embed a block differently, and for each reading the one that embeds alike."""
    keys = [
        (reading.embed_tokens.weight.data_ptr(), reading.config.mask_token_id)
        for reading in readings
    ]
    different = list(dict.fromkeys(keys))
    blocks = [readings[keys.index(key)] for key in different]
    return blocks, [different.index(key) for key in keys]


def _embed_blocks(drafts: Sequence[DraftModel], anchor_ids_M: Tensor) -> Tensor:
    """Input [M, W, B, H] of the layers, of one block for each draft after each anchor."""
    return torch.stack([draft.embed_block(anchor_ids_M) for draft in drafts], 1)


class _Scorer:
    """What one reading makes of the hidden states of a chunk of anchors."""

    def __init__(
        self,
        draft: DraftModel,
        target_vocab_size: int,
        temperature: float,
        num_tokens: int | None,
        steps: ReplaySteps,
    ) -> None:
        self.draft, self.steps = draft, steps
        self.vocabulary = draft.vocabulary.restrict(target_vocab_size)
        self.temperature = temperature
        most = draft.config.num_speculative_tokens
        self.num_tokens = most if num_tokens is None else min(num_tokens, most)

    def __call__(
        self, hidden_MBH: Tensor, tokens_MN1: Tensor, candidates_MC: Tensor | None
    ) -> BlockScores:
        """``tokens_MN1`` [M, 1 + N or more]: each anchor and the text after it, -1 past its end."""
        draft, first = self.draft, self.draft.first_predicting_slot
        hidden = hidden_MBH[:, : first + self.num_tokens]
        tokens = tokens_MN1[:, : 1 + self.num_tokens]
        # Slot 0 of the 1+N layout predicts nothing; the slot after it is conditioned on the anchor
        # too. A token past the end of the text conditions only what nobody looks at.
        previous = torch.cat((tokens[:, :1].expand(-1, first), tokens[:, :-1]), 1).clamp(0)
        confidence = compute_confidence(draft, hidden, previous)
        # A view would be multiplied block by block, which reads the weights for each.
        predicting = hidden[:, first:].contiguous()
        latent = self._mix(hidden, previous)
        reductions = self._reduce_vocabulary(predicting, latent, tokens[:, 1:], candidates_MC)
        return BlockScores(
            greedy_ids=self.vocabulary.map_draft_to_target(reductions.best_ids),
            log_q=None if reductions.greedy else reductions.wanted_log_q(),
            confidence=None if confidence is None else confidence[:, first:].sigmoid(),
            candidate_log_q=None if candidates_MC is None else reductions.candidate_log_q(),
        )

    def _mix(self, hidden_MSH: Tensor, previous_MS: Tensor) -> Tensor | None:
        """What ``markov_w2`` is applied to, [M, N, r]; an rnn runs along the text in the block."""
        head, state, latents = self.draft.markov_head, None, []
        if head is None:
            return None
        embeddings = head.embed(previous_MS)
        for slot in range(hidden_MSH.shape[1]):
            latent, state = head.mix(embeddings[:, slot], hidden_MSH[:, slot], state)
            latents.append(latent)
        return torch.stack(latents[self.draft.first_predicting_slot :], 1)

    def _reduce_vocabulary(
        self,
        hidden_MNH: Tensor,
        latent_MNr: Tensor | None,
        wanted_ids_MN: Tensor,
        candidates_MC: Tensor | None,
    ) -> Reductions:
        reductions = self.steps.start_reductions(
            self._to_draft(wanted_ids_MN),
            None if candidates_MC is None else self._to_draft(candidates_MC),
            self.temperature,
        )
        rows = hidden_MNH.shape[0] * hidden_MNH.shape[1]
        most = self.steps.memory_budget // (rows * self.steps.logit_bytes(self.draft))
        width = _even_width(self.vocabulary.usable, most)
        for start in range(0, self.vocabulary.usable, width):
            columns = slice(start, min(start + width, self.vocabulary.usable))
            logits = self.steps.compute_logits(self.draft, hidden_MNH, latent_MNr, columns)
            reductions.add(start, logits)
        return reductions

    def _to_draft(self, target_ids: Tensor) -> Tensor:
        """Draft ids; -1 for tokens that cannot be drafted and for -1."""
        draft_ids = self.vocabulary.map_target_to_draft(target_ids.clamp(0))
        return draft_ids.where(target_ids >= 0, -1)


def _even_width(columns: int, most: int) -> int:
    """The width of about equal chunks, at most ``most``, for which libraries have fast kernels."""
    most = min(max(most, 1), MOST_COLUMNS)
    alignment = ALIGNMENT if most >= ALIGNMENT else 1
    most -= most % alignment
    even = -(-columns // -(-columns // most))
    return -(-even // alignment) * alignment


def _position_chunks(draft: DraftModel, length: int, steps: ReplaySteps) -> list[slice]:
    size = max(1, steps.memory_budget // steps.position_bytes(draft))
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _windows(token_ids_T: Tensor, anchors: range, width: int) -> Tensor:
    """The tokens [M, width] from each anchor on, -1 past the end of the text."""
    missing = max(0, anchors[-1] + width - len(token_ids_T))
    padded = functional.pad(token_ids_T.long(), (0, missing), value=-1)
    return padded[anchors.start :].unfold(0, width, 1)[:: anchors.step][: len(anchors)]


def _concatenate(chunks: list[BlockScores]) -> BlockScores:
    joined: Any = {}
    for field in fields(BlockScores):
        parts = [getattr(chunk, field.name) for chunk in chunks]
        joined[field.name] = None if parts[0] is None else torch.cat(parts)
    return BlockScores(**joined)
