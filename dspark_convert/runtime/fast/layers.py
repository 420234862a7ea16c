"""A decoder layer over a static cache: the one shape that target and draft layers share.

A layer writes the keys and values of its new tokens into the cache first and attends to columns of
the cache only; which ones is a mask computed from positions on the device. Shapes therefore never
change, nothing waits for the host, and a round can be captured once and replayed.

Shapes: R rows, Q new tokens, H hidden, K key/value heads, G query heads of each, E head dim,
C columns of the cache. Column c holds position c of its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspark_convert.runtime.attention import Angles
from dspark_convert.runtime.rope import rotate


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Rotated ``keys`` and ``values`` of one layer, [R, K, C, E] each, allocated once."""

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls, rows: int, kv_heads: int, columns: int, head_dim: int, like: Tensor
    ) -> LayerCache:
        """An empty cache with the device and dtype of ``like``."""
        shape = (rows, kv_heads, columns, head_dim)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def store_prompt(self, row: int, keys_KTE: Tensor, values_KTE: Tensor) -> None:
        """Put a prompt of T positions at the start of a row."""
        length = keys_KTE.shape[1]
        self.keys[row, :, :length] = keys_KTE
        self.values[row, :, :length] = values_KTE


class AngleTable:
    """Cosines and sines of all positions of a cache, computed once: looked up, [..., E] each."""

    def __init__(self, cosine_CE: Tensor, sine_CE: Tensor) -> None:
        self.cosine, self.sine = cosine_CE, sine_CE

    def __call__(self, positions: Tensor) -> Angles:
        """The angles of ``positions``, int64 [...]."""
        return self.cosine[positions], self.sine[positions]


def run_layer(
    layer: Any,
    x_RQH: Tensor,
    angles: Angles,
    keys_RKCE: Tensor,
    values_RKCE: Tensor,
    positions_RQ: Tensor,
    visible_RQC: Tensor,
) -> Tensor:
    """``x`` after attention and MLP of ``layer``, a Llama-like decoder layer; writes the cache."""
    attention = layer.self_attn
    query, key, value = project_inputs(layer, x_RQH)
    query = split_heads(query, keys_RKCE)
    if hasattr(attention, "q_norm"):
        query = attention.q_norm(query)
    _place(attention, key, value, angles, keys_RKCE, values_RKCE, positions_RQ)
    attended = attend(rotate(query, *angles), keys_RKCE, values_RKCE, visible_RQC)
    return finish_layer(layer, x_RQH, attended)


def project_kv(
    attention: Any,
    x_RQH: Tensor,
    angles: Angles,
    keys_RKCE: Tensor,
    values_RKCE: Tensor,
    positions_RQ: Tensor,
) -> None:
    """Write rotated keys and values of ``x`` at ``positions_RQ``, int64, into a layer's cache."""
    key, value = attention.k_proj(x_RQH), attention.v_proj(x_RQH)
    _place(attention, key, value, angles, keys_RKCE, values_RKCE, positions_RQ)


def project_inputs(layer: Any, x_RQH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of the normed input, heads side by side."""
    attention, normed = layer.self_attn, layer.input_layernorm(x_RQH)
    return attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)


def finish_layer(layer: Any, x_RQH: Tensor, attended: Tensor) -> Tensor:
    """The output of a layer, from its input and what its heads attended to."""
    x = x_RQH + layer.self_attn.o_proj(attended)
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out


def _place(
    attention: Any,
    key: Tensor,
    value: Tensor,
    angles: Angles,
    keys_RKCE: Tensor,
    values_RKCE: Tensor,
    positions_RQ: Tensor,
) -> None:
    key, value = split_heads(key, keys_RKCE), split_heads(value, keys_RKCE)
    if hasattr(attention, "k_norm"):
        key = attention.k_norm(key)
    rows = torch.arange(len(key), device=key.device)[:, None]
    keys_RKCE.transpose(1, 2)[rows, positions_RQ] = rotate(key, *angles)
    values_RKCE.transpose(1, 2)[rows, positions_RQ] = value


def attend(
    query_RQNE: Tensor, keys_RKCE: Tensor, values_RKCE: Tensor, visible_RQC: Tensor
) -> Tensor:
    """Softmax attention [R, Q, N * E] of N = K * G query heads; at least one column is visible."""
    rows, tokens, _, head_dim = query_RQNE.shape
    kv_heads = keys_RKCE.shape[1]
    # The G heads that share keys become more queries: one product for each of the K heads.
    query = query_RQNE.view(rows, tokens, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    groups = query.shape[2]
    query = query.reshape(rows, kv_heads, groups * tokens, head_dim)
    scores = (query @ keys_RKCE.transpose(2, 3)).float() * head_dim**-0.5
    scores = scores.view(rows, kv_heads, groups, tokens, -1)
    scores = scores.masked_fill(~visible_RQC[:, None, None], float("-inf"))
    weights = scores.softmax(-1).to(values_RKCE.dtype)
    attended = weights.view(rows, kv_heads, groups * tokens, -1) @ values_RKCE
    attended = attended.view(rows, kv_heads, groups, tokens, head_dim)
    joined: Tensor = attended.permute(0, 3, 1, 2, 4).reshape(rows, tokens, -1)
    return joined


def see_causally(positions_RQ: Tensor, columns: int, window: int | None) -> Tensor:
    """What tokens at ``positions_RQ`` see, bool [R, Q, C]: what is not after them.

    In a sliding layer, only the last ``window`` of these positions, including their own.
    """
    column = torch.arange(columns, device=positions_RQ.device)
    position = positions_RQ[..., None]
    visible = column <= position
    return visible if window is None else visible & (column > position - window)


def see_block(positions_RQ: Tensor, columns: int, window: int | None, *, causal: bool) -> Tensor:
    """What the slots of a draft block at ``positions_RQ`` see, bool [R, Q, C].

    The context before the anchor, of which a sliding layer sees the last ``window`` positions
    measured from the anchor for every slot, and the block: all, or if ``causal`` up to the slot
    itself, as in ``attention.compute_visibility``.
    """
    column = torch.arange(columns, device=positions_RQ.device)
    anchor = positions_RQ[:, :1, None]
    last = positions_RQ if causal else positions_RQ[:, -1:].expand_as(positions_RQ)
    visible = column <= last[..., None]
    return visible if window is None else visible & (column >= anchor - window)


def split_heads(x: Tensor, cache_RKCE: Tensor) -> Tensor:
    """``x`` [..., N * E] as heads [..., N, E] of the cache's size."""
    return x.view(*x.shape[:-1], -1, cache_RKCE.shape[-1])
