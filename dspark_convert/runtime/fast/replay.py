"""The steps of a replay on a GPU: its time is that of the matrix products.

Shapes: M anchors, W blocks after each, B slots, N drafted tokens, H hidden, K key/value heads,
E head dim, r Markov rank, C candidates, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dspark_convert.errors import DialectError, Finding
from dspark_convert.runtime.attention import Angles, ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.transfer import Download
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.runtime.replay_steps import Reductions, ReplaySteps, Results, pick, positions_of
from dspark_convert.schemas.draft import DraftConfig, LayerType

try:
    from dspark_convert.runtime.fast import decode_kernels as kernels
    from dspark_convert.runtime.fast import replay_kernels
except ImportError:  # Triton comes with PyTorch for CUDA on Linux only
    kernels = replay_kernels = None  # type: ignore[assignment]

HEAD_SIZES = (64, 128, 256)


def why_plain(draft: DraftModel) -> str | None:
    """Why a draft has to be replayed in plain steps; None if it need not."""
    if draft.device.type != "cuda":
        return f"the device is {draft.device}"
    if replay_kernels is None:
        return "Triton is not installed"
    if draft.dtype not in (torch.bfloat16, torch.float16):
        return f"the kernels are for half precision, not {draft.dtype}"
    config = draft.config
    if config.hidden_act != "silu" or config.attention_bias or config.head_dim not in HEAD_SIZES:
        return "the kernels are for silu, no biases, and heads of 64, 128 or 256"
    return None


def choose_steps(draft: DraftModel, decoder: Literal["auto", "plain", "fast"]) -> ReplaySteps:
    """The steps to replay a draft with; "auto": the fast ones on a GPU, if they support the draft.

    Raises ``DialectError`` (``draft-not-fast``) if "fast" is asked for and not possible.
    """
    if decoder == "plain":
        return PLAIN
    reason = why_plain(draft)
    if reason is None:
        return FastSteps()
    if decoder == "fast":
        raise DialectError(
            Finding(
                code="draft-not-fast",
                message=f"this draft cannot be replayed by the fast steps: {reason}",
                hint="leave --decoder out, or give --decoder plain",
            )
        )
    return ReplaySteps(reason)


class FastSteps(ReplaySteps):
    """Steps for drafts to which ``why_plain`` has no objection."""

    name = "fast"
    memory_budget = 2**30

    def upload(self, x: Tensor, device: torch.device) -> Tensor:
        """See ``ReplaySteps``; the host does not wait for work already queued on the device."""
        if x.device == device:
            return x
        return x.contiguous().pin_memory().to(device, non_blocking=True)

    def download(self, tensors: Results) -> Callable[[], Results]:
        """See ``ReplaySteps``; the host does not wait for what is launched after this."""
        return Download(tensors).wait

    def join(self, parts: Sequence[Tensor], device: torch.device) -> Tensor:
        """See ``ReplaySteps``; parts go to pinned memory, which is kept, in one copy."""
        if parts[0].device == device:
            return super().join(parts, device)
        width = sum(part.shape[1] for part in parts)
        joined = torch.empty(len(parts[0]), width, dtype=parts[0].dtype, pin_memory=True)
        column = 0
        for part in parts:
            joined[:, column : column + part.shape[1]] = part
            column += part.shape[1]
        return joined.to(device, non_blocking=True)

    def run_blocks(
        self, draft: DraftModel, context: ContextKV, x_MWBH: Tensor, anchors: range
    ) -> Tensor:
        """See ``ReplaySteps``."""
        with torch.cuda.device(draft.device):
            return self._run_blocks(draft, context, x_MWBH, anchors)

    def _run_blocks(
        self, draft: DraftModel, context: ContextKV, x_MWBH: Tensor, anchors: range
    ) -> Tensor:
        config = draft.config
        slots = torch.arange(config.block_size, device=draft.device)
        positions = positions_of(anchors, draft)[:, None, None] + slots
        positions = positions.expand(x_MWBH.shape[:3]).flatten()
        angles = draft.rotary(positions, draft.dtype)
        x = x_MWBH.flatten(0, 2)
        for index, layer in enumerate(draft.layers):
            context_kv = context.keys[index][0], context.values[index][0]
            kind = config.layer_types[index]
            _run_layer(layer, x, angles, context_kv, anchors, config, kind)
        return _norm(draft.norm, x).view(x_MWBH.shape)

    def compute_logits(
        self, draft: DraftModel, hidden: Tensor, latent: Tensor | None, columns: slice
    ) -> Tensor:
        """See ``ReplaySteps``; the bias is added before it is rounded."""
        logits = super().compute_logits(draft, hidden, None, columns)
        if latent is not None:
            assert draft.markov_head is not None
            weight = draft.markov_head.markov_w2.weight[columns]
            logits.view(-1, len(weight)).addmm_(latent.flatten(0, -2), weight.T)
        return logits

    def start_reductions(
        self, wanted_ids_MN: Tensor, candidate_ids_MC: Tensor | None, temperature: float
    ) -> Reductions:
        """See ``ReplaySteps``."""
        return _FoldedReductions(wanted_ids_MN, candidate_ids_MC, temperature)

    def block_bytes(self, draft: DraftModel, context_length: int) -> int:
        """The feed-forward layer, or the confidence head; attention needs no more."""
        config, item = draft.config, draft.dtype.itemsize
        residual = 2 * config.hidden_size * item + 4 * config.head_dim * item
        inner = 2 * config.intermediate_size * item
        heads = config.num_attention_heads + config.num_key_value_heads
        attention = 2 * heads * config.head_dim * item
        confidence = (config.hidden_size + config.markov_rank) * (item + 4)
        return config.block_size * (residual + max(inner, attention, confidence))

    def logit_bytes(self, draft: DraftModel) -> int:
        """Half of the budget is for the logits; hidden states and their copies take the rest."""
        return 2 * draft.dtype.itemsize


class _FoldedReductions(Reductions):
    """Reductions that read the logits once."""

    def __init__(
        self, wanted_ids_MN: Tensor, candidate_ids_MC: Tensor | None, temperature: float
    ) -> None:
        super().__init__(wanted_ids_MN.contiguous(), candidate_ids_MC, temperature)

    def add(self, start: int, logits_MND: Tensor) -> None:
        """See ``Reductions``."""
        with torch.cuda.device(logits_MND.device):
            replay_kernels.fold(
                logits_MND, start, self.temperature, self.wanted_ids,
                self.peak, self.total, self.best_ids, self.wanted, greedy=self.greedy,
            )  # fmt: skip
        if self.candidate_ids.numel():
            self.candidates = pick(logits_MND[:, :1], start, self.candidate_ids, self.candidates)


def _run_layer(
    layer: Any,
    x: Tensor,
    angles: Angles,
    context: tuple[Tensor, Tensor],
    anchors: range,
    config: DraftConfig,
    kind: LayerType,
) -> None:
    """``x`` [M * W * B, H] through a layer, in place."""
    attention, mlp = layer.self_attn, layer.mlp
    normed = _norm(layer.input_layernorm, x)
    query, key = attention.q_proj(normed), attention.k_proj(normed)
    replay_kernels.turn(query, attention.q_norm.weight, attention.q_norm.eps, angles)
    replay_kernels.turn(key, attention.k_norm.weight, attention.k_norm.eps, angles)
    slides = kind == "sliding_attention"
    attended = replay_kernels.attend_blocks(
        query,
        context,
        (key, attention.v_proj(normed)),
        anchors,
        config.block_size,
        kv_heads=config.num_key_value_heads,
        window=config.sliding_window if slides else None,
        causal=slides and not config.sliding_window_non_causal,
    )
    x.addmm_(attended, attention.o_proj.weight.T)
    # Nothing of the attention is needed any more, and the feed-forward layer is larger.
    del query, key, attended
    normed = _norm(layer.post_attention_layernorm, x)
    gate = mlp.gate_proj(normed)
    replay_kernels.multiply_gate(gate, mlp.up_proj(normed))
    x.addmm_(gate, mlp.down_proj.weight.T)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return kernels.norm(x, norm.weight, norm.eps)
