"""What a draft says about a known text: every anchor's block in parallel, the text's tokens forced.

    features --chunks of positions--> context keys and values, once per text
    anchors  --chunks--> backbone hidden of their blocks
             --chunks of vocabulary columns--> largest logit, log q of the text's token

Along the text a block is conditioned on what was accepted before, so this is all that a decode loop
would see of the draft up to its first rejection (DESIGN, "Replay"). Nothing of the size anchors x
vocabulary is ever held.

Shapes: T text positions, M anchors (chunks of them inside), N drafted tokens, S = slots up to the
last of these, H hidden, F feature columns, r Markov rank, C candidates, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.cache import ContextCache
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import compute_confidence
from dspark_convert.runtime.sampling import SamplingOptions

MEMORY_BUDGET = 512 * 2**20
"""Bytes for what a chunk computes, by default."""

ReadFeatures = Callable[[slice], Tensor]
"""Target features [positions, F] of a range of positions, on any device."""


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
def compute_text_context(
    draft: DraftModel, length: int, read: ReadFeatures, *, memory_budget: int = MEMORY_BUDGET
) -> ContextKV:
    """Context keys and values [1, T, K, E] of the first ``length`` positions of a text.

    ``read`` is asked for the features of one chunk after another, so that they need never be in
    memory together.
    """
    cache = ContextCache(
        draft.config, rows=1, capacity=length, device=draft.device, dtype=draft.dtype
    )
    positions_per_chunk = max(1, memory_budget // _position_bytes(draft))
    for start in range(0, length, positions_per_chunk):
        stop = min(start + positions_per_chunk, length)
        features = read(slice(start, stop)).to(draft.device)
        positions = torch.arange(start, stop, device=draft.device)[None]
        cache.write(draft.compute_context(features[None], positions), positions)
    return cache.view(length)


@torch.no_grad()
def score_blocks(
    draft: DraftModel,
    context: ContextKV,
    token_ids_T: Tensor,
    anchors: range,
    *,
    target_vocab_size: int,
    temperature: float = 0.0,
    num_tokens: int | None = None,
    candidate_ids_MC: Tensor | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> BlockScores:
    """Score the block after every anchor of a text.

    Args:
        draft: the model.
        context: of the text, at least up to the last anchor (see ``compute_text_context``).
        token_ids_T: the text, int64 [T].
        anchors: positions of consecutive anchors, one or more.
        target_vocab_size: tokens that the target can put out.
        temperature: of q; 0 asks for the likeliest tokens only.
        num_tokens: N; None: all that a block proposes.
        candidate_ids_MC: target ids [M, C] whose log q, as the first drafted token after each
            anchor, is wanted; needs a temperature above 0.
        memory_budget: bytes for what a chunk computes, beyond weights, context and results. One
            anchor at a time is the least that is done.

    Raises:
        DraftError: ``draft-id-beyond-target``.
    """
    assert len(anchors) > 0
    assert anchors.step == 1
    scorer = _Scorer(draft, target_vocab_size, temperature, num_tokens, memory_budget)
    tokens = _windows(token_ids_T.to(draft.device), anchors, 1 + scorer.num_tokens)
    per_chunk = max(1, memory_budget // _anchor_bytes(draft, anchors.stop))
    chunks = []
    for start in range(0, len(anchors), per_chunk):
        part = slice(start, start + per_chunk)
        candidates = (
            None if candidate_ids_MC is None else candidate_ids_MC[part].to(draft.device).long()
        )
        chunks.append(scorer(context, tokens[part], anchors[part], candidates))
    return _concatenate(chunks)


class _Scorer:
    """Scores one chunk of anchors."""

    def __init__(
        self,
        draft: DraftModel,
        target_vocab_size: int,
        temperature: float,
        num_tokens: int | None,
        memory_budget: int,
    ) -> None:
        self.draft, self.memory_budget = draft, memory_budget
        self.vocabulary = draft.vocabulary.restrict(target_vocab_size)
        self.temperature = temperature
        self.num_tokens = num_tokens or draft.config.num_speculative_tokens

    def __call__(
        self, context: ContextKV, tokens_MN1: Tensor, anchors: range, candidates_MC: Tensor | None
    ) -> BlockScores:
        """``tokens_MN1`` [M, 1 + N] are each anchor and the text after it, -1 past its end."""
        draft, first = self.draft, self.draft.first_predicting_slot
        before = ContextKV(
            tuple(keys[:, : anchors[-1]] for keys in context.keys),
            tuple(values[:, : anchors[-1]] for values in context.values),
        )
        positions = torch.arange(anchors.start, anchors.stop, device=draft.device)[None]
        hidden = draft(before, tokens_MN1[None, :, 0], positions)[0, :, : first + self.num_tokens]
        # Slot 0 of the 1+N layout predicts nothing; the slot after it is conditioned on the anchor
        # too. A token past the end of the text conditions only what nobody will look at.
        previous = torch.cat((tokens_MN1[:, :1].expand(-1, first), tokens_MN1[:, :-1]), 1).clamp(0)
        confidence = compute_confidence(draft, hidden, previous)
        reductions = self._reduce_vocabulary(
            hidden[:, first:], self._mix(hidden, previous), tokens_MN1[:, 1:], candidates_MC
        )
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
        for slot in range(hidden_MSH.shape[1]):
            embedding = head.embed(previous_MS[:, slot])
            latent, state = head.mix(embedding, hidden_MSH[:, slot], state)
            latents.append(latent)
        return torch.stack(latents[self.draft.first_predicting_slot :], 1)

    def _reduce_vocabulary(
        self,
        hidden_MNH: Tensor,
        latent_MNr: Tensor | None,
        wanted_ids_MN: Tensor,
        candidates_MC: Tensor | None,
    ) -> _Reductions:
        draft = self.draft
        reductions = _Reductions(
            self._to_draft(wanted_ids_MN),
            None if candidates_MC is None else self._to_draft(candidates_MC),
            self.temperature,
        )
        rows = hidden_MNH.shape[0] * hidden_MNH.shape[1]
        width = max(1, self.memory_budget // (rows * _logit_bytes(draft)))
        for start in range(0, self.vocabulary.usable, width):
            columns = slice(start, min(start + width, self.vocabulary.usable))
            logits = functional.linear(hidden_MNH, draft.lm_head.weight[columns])
            if latent_MNr is not None:
                assert draft.markov_head is not None
                logits += functional.linear(latent_MNr, draft.markov_head.markov_w2.weight[columns])
            reductions.add(start, logits)
        return reductions

    def _to_draft(self, target_ids: Tensor) -> Tensor:
        """Draft ids; -1 for tokens that cannot be drafted and for -1."""
        draft_ids = self.vocabulary.map_target_to_draft(target_ids.clamp(0))
        return draft_ids.where(target_ids >= 0, -1)


class _Reductions:
    """Running results over the columns of the vocabulary, the softmax sum among them.

    The sum is held relative to the largest logit so far, as in ``scale_logits``.
    """

    def __init__(
        self, wanted_ids_MN: Tensor, candidate_ids_MC: Tensor | None, temperature: float
    ) -> None:
        self.temperature = temperature
        self.greedy = SamplingOptions(temperature=temperature).greedy
        assert candidate_ids_MC is None or not self.greedy
        self.wanted_ids = wanted_ids_MN[..., None]
        self.candidate_ids = (
            wanted_ids_MN[:, :0] if candidate_ids_MC is None else candidate_ids_MC
        )[:, None]
        self.peak = _minus_infinity(wanted_ids_MN)
        self.total = torch.zeros_like(self.peak)
        self.best_ids = torch.zeros_like(wanted_ids_MN)
        self.wanted = _minus_infinity(self.wanted_ids)
        self.candidates = _minus_infinity(self.candidate_ids)

    def add(self, start: int, logits_MND: Tensor) -> None:
        """Take in the columns from ``start`` on."""
        largest, at = logits_MND.max(-1)
        # Ties keep the first column, as an argmax over all of them does.
        better = largest > self.peak
        self.best_ids = torch.where(better, at + start, self.best_ids)
        peak = torch.where(better, largest.float(), self.peak)
        if not self.greedy:
            shifted = (logits_MND.float() - peak[..., None]).div_(self.temperature).exp_()
            kept = ((self.peak - peak) / self.temperature).exp()
            self.total = self.total * kept + shifted.sum(-1)
            self.wanted = _pick(logits_MND, start, self.wanted_ids, self.wanted)
            self.candidates = _pick(logits_MND[:, :1], start, self.candidate_ids, self.candidates)
        self.peak = peak

    def wanted_log_q(self) -> Tensor:
        """Log probabilities [M, N] of the wanted tokens."""
        return self._normalise(self.wanted, self.peak, self.total).squeeze(-1)

    def candidate_log_q(self) -> Tensor:
        """Log probabilities [M, C] of the candidates for the first drafted token."""
        return self._normalise(self.candidates, self.peak[:, :1], self.total[:, :1]).squeeze(1)

    def _normalise(self, logits_MNC: Tensor, peak_MN: Tensor, total_MN: Tensor) -> Tensor:
        shifted = (logits_MNC - peak_MN[..., None]) / self.temperature
        return shifted - total_MN.log()[..., None]


def _pick(logits_MND: Tensor, start: int, ids_MNC: Tensor, otherwise_MNC: Tensor) -> Tensor:
    """Logits, fp32, at those ids that lie among the columns from ``start`` on."""
    width = logits_MND.shape[-1]
    local = ids_MNC - start
    inside = (local >= 0) & (local < width)
    picked = logits_MND.gather(-1, local.clamp(0, width - 1)).float()
    return torch.where(inside, picked, otherwise_MNC)


def _windows(token_ids_T: Tensor, anchors: range, width: int) -> Tensor:
    """The tokens [M, width] from each anchor on, -1 past the end of the text."""
    missing = max(0, anchors.stop - 1 + width - len(token_ids_T))
    padded = functional.pad(token_ids_T.long(), (0, missing), value=-1)
    return padded[anchors.start :].unfold(0, width, 1)[: len(anchors)]


def _concatenate(chunks: list[BlockScores]) -> BlockScores:
    joined: Any = {}
    for field in fields(BlockScores):
        parts = [getattr(chunk, field.name) for chunk in chunks]
        joined[field.name] = None if parts[0] is None else torch.cat(parts)
    return BlockScores(**joined)


def _minus_infinity(like: Tensor) -> Tensor:
    return torch.full(like.shape, float("-inf"), device=like.device)


# What the intermediate results of a step take at their peak, from its code: tensors in the dtype
# of the weights, and fp32 ones of norms, attention scores and softmax.


def _position_bytes(draft: DraftModel) -> int:
    """Of ``compute_context``, per position: features, projections, keys and values."""
    config, item = draft.config, draft.dtype.itemsize
    heads = config.num_key_value_heads * config.head_dim
    return (
        config.feature_size * (item + 4)
        + config.hidden_size * (3 * item + 8)
        + heads * (2 * config.num_hidden_layers * item + 4 * item + 8)
    )


def _anchor_bytes(draft: DraftModel, context_length: int) -> int:
    """Of the backbone, per anchor: attention scores, or the feed-forward layer."""
    config, item = draft.config, draft.dtype.itemsize
    keys = context_length + config.block_size
    scores = keys * (config.num_attention_heads * (2 * item + 12) + 4)
    queries = config.num_attention_heads * config.head_dim * (4 * item + 8)
    inner = config.intermediate_size * 3 * item
    return config.block_size * (scores + queries + inner + config.hidden_size * (4 * item + 8))


def _logit_bytes(draft: DraftModel) -> int:
    """Of the reductions, per logit: two products, and their shifted exponentials."""
    return 2 * draft.dtype.itemsize + 8
