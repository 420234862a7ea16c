"""Attention of draft blocks to the context before their anchors, and to themselves.

Shapes: R rows, M blocks of a row (one anchor each; 1 when decoding), B slots, T context positions,
H hidden, K key/value heads, G query heads of each, E head dim, S = T + B keys that a slot may see.

Column t of a context is position t of its sequence, in every row. What a block may see then follows
from its anchor alone: a padded context or a cache with stale columns needs no other mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspark_convert.runtime.rope import rotate
from dspark_convert.schemas.draft import DraftConfig, LayerType

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class ContextKV:
    """Keys (rotated) and values of the context, [R, T, K, E] each, one per draft layer."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def length(self) -> int:
        """T, the positions held."""
        return self.keys[0].shape[1]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in fp32 as Qwen3 does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` [..., size]; same shape and dtype."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class DraftAttention(nn.Module):
    """One layer's attention. Queries come from the block only; context is keys and values."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        hidden, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
        self.kv_heads, self.head_dim = config.num_key_value_heads, dim
        self.q_proj = nn.Linear(hidden, heads * dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * dim, hidden, bias=config.attention_bias)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)

    def project_kv(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, [..., K, E] each, of ``x`` [..., H]."""
        keys, values = self._split_heads(self.k_proj(x)), self._split_heads(self.v_proj(x))
        return rotate(self.k_norm(keys), *angles), values

    def forward(
        self, x: Tensor, angles: Angles, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        """Attend from ``x`` [R, M, B, H] to ``context`` (keys, values) and to its own block.

        ``visible`` is bool [R, M, B, S], context columns first.
        """
        query = rotate(self.q_norm(self._split_heads(self.q_proj(x))), *angles)
        query = query.view(*x.shape[:-1], self.kv_heads, -1, self.head_dim)
        attended = attend_blocks(query, context, self.project_kv(x, angles), visible)
        out: Tensor = self.o_proj(attended.flatten(-3))
        return out

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


def attend_blocks(
    query_RMBKGE: Tensor,
    context_RTKE: tuple[Tensor, Tensor],
    block_RMBKE: tuple[Tensor, Tensor],
    visible_RMBS: Tensor,
) -> Tensor:
    """Softmax attention [R, M, B, K, G, E]; every block shares the context of its row."""
    context_keys, context_values = context_RTKE
    block_keys, block_values = block_RMBKE
    scores = torch.cat(
        (
            torch.einsum("rmbkge,rtke->rmkgbt", query_RMBKGE, context_keys),
            torch.einsum("rmbkge,rmcke->rmkgbc", query_RMBKGE, block_keys),
        ),
        dim=-1,
    )
    scores = scores.float() * query_RMBKGE.shape[-1] ** -0.5
    scores = scores.masked_fill(~visible_RMBS[:, :, None, None], float("-inf"))
    weights = scores.softmax(-1).to(query_RMBKGE.dtype)
    to_context, to_block = weights.tensor_split([context_keys.shape[1]], dim=-1)
    return torch.einsum("rmkgbt,rtke->rmbkge", to_context, context_values) + torch.einsum(
        "rmkgbc,rmcke->rmbkge", to_block, block_values
    )


def compute_visibility(
    config: DraftConfig, layer_type: LayerType, anchor_positions_RM: Tensor, context_length: int
) -> Tensor:
    """What each slot may see, bool [R, M, B, S], as in speculators 0.9.0.

    Of the context, a slot sees the positions strictly before the anchor; in a sliding layer only
    the last ``sliding_window`` of them, measured from the anchor for every slot. Of its block, a
    slot sees everything, or in a sliding layer without ``sliding_window_non_causal`` only the
    slots up to itself.
    """
    slots, device = config.block_size, anchor_positions_RM.device
    anchor = anchor_positions_RM[..., None]
    position = torch.arange(context_length, device=device)
    context = position < anchor
    block = torch.ones(slots, slots, dtype=torch.bool, device=device)
    if layer_type == "sliding_attention":
        assert config.sliding_window is not None
        context &= position >= anchor - config.sliding_window
        if not config.sliding_window_non_causal:
            block = block.tril()
    blocks = anchor_positions_RM.shape
    return torch.cat(
        (
            context[:, :, None].expand(*blocks, slots, context_length),
            block.expand(*blocks, slots, slots),
        ),
        dim=-1,
    )
