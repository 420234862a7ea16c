"""The expensive steps of a replay, in plain PyTorch: ``runtime.fast.replay`` has them for a GPU.

Shapes: T text positions, M anchors, W blocks after each of them, B slots, N drafted tokens,
H hidden, F feature columns, r Markov rank, C candidates, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.sampling import SamplingOptions

Results = Mapping[str, Tensor | None]
"""Tensors by name, on one device; None for what was not asked for."""


class ReplaySteps:
    """What a replay spends its time on, and the memory that each step takes.

    These steps run wherever the subclass for GPUs does not, and are its oracle. ``reason`` says why
    they were chosen if the choice was left open. ``memory_budget`` is in bytes: what a chunk
    computes, beyond weights, context and results; a chunk has at least one anchor.
    """

    name: Literal["plain", "fast"] = "plain"
    memory_budget = 512 * 2**20

    def __init__(self, reason: str | None = None, *, memory_budget: int | None = None) -> None:
        self.reason = reason
        if memory_budget is not None:
            self.memory_budget = memory_budget

    def upload(self, x: Tensor, device: torch.device) -> Tensor:
        """What was read from a trace, on the device that computes."""
        return x.to(device)

    def download(self, tensors: Results) -> Callable[[], Results]:
        """Results on the host; using what is returned waits for them."""
        return lambda: {name: None if x is None else x.cpu() for name, x in tensors.items()}

    def join(self, parts: Sequence[Tensor], device: torch.device) -> Tensor:
        """Parts of features, [T, ...] each and on any device, side by side on this one: [T, F]."""
        return torch.cat(list(parts), -1).to(device)

    def compute_input(self, draft: DraftModel, features: Sequence[Tensor]) -> Tensor:
        """The input of all context projections, [T, H], from parts of target features."""
        return draft.compute_context_input(self.join(features, draft.device))

    def project_context(
        self, draft: DraftModel, input_TH: Tensor, positions_T: Tensor
    ) -> ContextKV:
        """Context keys and values [1, T, K, E] of positions, int64 [T]."""
        return draft.project_context(input_TH[None], positions_T)

    def run_blocks(
        self, draft: DraftModel, context: ContextKV, x_MWBH: Tensor, anchors: range
    ) -> Tensor:
        """Backbone hidden [M, W, B, H] of W embedded blocks after each anchor, which ascend.

        May write to ``x_MWBH``.
        """
        before = ContextKV(
            tuple(keys[:, : anchors[-1]] for keys in context.keys),
            tuple(values[:, : anchors[-1]] for values in context.values),
        )
        positions = positions_of(anchors, draft).repeat_interleave(x_MWBH.shape[1])
        hidden = draft.run_layers(before, x_MWBH.flatten(0, 1)[None], positions[None])
        return hidden.view(x_MWBH.shape)

    def compute_logits(
        self, draft: DraftModel, hidden: Tensor, latent: Tensor | None, columns: slice
    ) -> Tensor:
        """Draft logits [..., columns] of ``hidden`` [..., H], biased by ``latent`` [..., r]."""
        logits = functional.linear(hidden, draft.lm_head.weight[columns])
        if latent is not None:
            assert draft.markov_head is not None
            logits += functional.linear(latent, draft.markov_head.markov_w2.weight[columns])
        return logits

    def start_reductions(
        self, wanted_ids_MN: Tensor, candidate_ids_MC: Tensor | None, temperature: float
    ) -> Reductions:
        """Reductions that have seen no column yet."""
        return Reductions(wanted_ids_MN, candidate_ids_MC, temperature)

    # What the intermediate results of a step take at their peak, from its code: tensors in the
    # dtype of the weights, and fp32 ones of norms, attention scores and softmax.

    def position_bytes(self, draft: DraftModel) -> int:
        """Bytes of context input and projections, per position."""
        config, item = draft.config, draft.dtype.itemsize
        heads = config.num_key_value_heads * config.head_dim
        return (
            config.feature_size * (item + 4)
            + config.hidden_size * (3 * item + 8)
            + heads * (2 * config.num_hidden_layers * item + 4 * item + 8)
        )

    def block_bytes(self, draft: DraftModel, context_length: int) -> int:
        """Bytes of the backbone, per block: attention scores, or the feed-forward layer."""
        config, item = draft.config, draft.dtype.itemsize
        keys = context_length + config.block_size
        scores = keys * (config.num_attention_heads * (2 * item + 12) + 4)
        queries = config.num_attention_heads * config.head_dim * (4 * item + 8)
        inner = config.intermediate_size * 3 * item
        return config.block_size * (scores + queries + inner + config.hidden_size * (5 * item + 8))

    def logit_bytes(self, draft: DraftModel) -> int:
        """Bytes of the reductions, per logit: two products, and their shifted exponentials."""
        return 2 * draft.dtype.itemsize + 8


class Reductions:
    """Running results over the columns of the vocabulary, the softmax sum among them.

    Ids are in the draft vocabulary, -1 where there is none. The sum is held relative to the largest
    logit so far, as in ``scale_logits``. ``best_ids`` int64 [M, N] are the likeliest so far.
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
            self.wanted = pick(logits_MND, start, self.wanted_ids, self.wanted)
            self.candidates = pick(logits_MND[:, :1], start, self.candidate_ids, self.candidates)
        self.peak = peak

    def wanted_log_q(self) -> Tensor:
        """Log probabilities, fp32 [M, N], of the wanted tokens."""
        return self._normalise(self.wanted, self.peak, self.total).squeeze(-1)

    def candidate_log_q(self) -> Tensor:
        """Log probabilities, fp32 [M, C], of the candidates for the first drafted token."""
        return self._normalise(self.candidates, self.peak[:, :1], self.total[:, :1]).squeeze(1)

    def _normalise(self, logits_MNC: Tensor, peak_MN: Tensor, total_MN: Tensor) -> Tensor:
        shifted = (logits_MNC - peak_MN[..., None]) / self.temperature
        return shifted - total_MN.log()[..., None]


def positions_of(anchors: range, draft: DraftModel) -> Tensor:
    """The positions, int64 [M], on the draft's device."""
    return torch.arange(anchors.start, anchors.stop, anchors.step, device=draft.device)


def pick(logits_MND: Tensor, start: int, ids_MNC: Tensor, otherwise_MNC: Tensor) -> Tensor:
    """Logits, fp32, at those ids that lie among the columns from ``start`` on."""
    width = logits_MND.shape[-1]
    local = ids_MNC - start
    inside = (local >= 0) & (local < width)
    picked = logits_MND.gather(-1, local.clamp(0, width - 1)).float()
    return torch.where(inside, picked, otherwise_MNC)


def _minus_infinity(like: Tensor) -> Tensor:
    return torch.full(like.shape, float("-inf"), device=like.device)
