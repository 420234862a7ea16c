# Types of kernel arguments are Triton's business.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,no-any-return"
# mypy: disable-error-code="import-not-found,import-untyped"
"""Triton kernels for the few tokens of a round, where reading the weights is all that costs.

A layer is eight kernels: norm; query, key and value in one product; norms of heads, rotation and
cache; attention; output projection and residual; norm; gate, up and activation; down projection and
residual.

Shapes: M tokens (rows times tokens of each), R rows, Q tokens of a row, K key/value heads, G query
heads of each, E head dim, C columns of the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Output columns and inner columns of a tile, pipeline stages, warps: measured on an H200.
PROJECT = (32, 256, 4, 4)
ADD = (32, 128, 8, 4)
GATE = (32, 128, 4, 4)
QUERIES = 16  # of a tile of attention
DEPTH_UNIT = 256  # of the inner dimension of every product
MOST_TOKENS = 32  # of a product; from there on the library's are faster
COLUMNS_OF_A_SPLIT = 128
MOST_SPLITS = 16
ENOUGH_PROGRAMS = 64  # from there on splitting the context does not pay


@triton.jit
def _norm_kernel(x, gain, eps, out, size, BLOCK: tl.constexpr):
    """Root-mean-square norm of one token, rounded where the modules round."""
    at = tl.arange(0, BLOCK)
    token, inside = tl.program_id(0) * size, at < size
    wide = tl.load(x + token + at, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)).to(dtype).to(tl.float32)
    scaled = normed * tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token + at, scaled.to(dtype), mask=inside)


@triton.jit
def _multiply(x, weight, tokens, width, depth, tile,
              BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """One tile [BM, BN] of ``x @ weight.T``, in fp32."""
    m, n, k = tl.arange(0, BM), tile * BN + tl.arange(0, BN), tl.arange(0, BK)
    x_at = x + m[:, None] * depth + k[None, :]
    weight_at = weight + n[:, None].to(tl.int64) * depth + k[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        a = tl.load(x_at + start, mask=m[:, None] < tokens, other=0.0)
        b = tl.load(weight_at + start, mask=n[:, None] < width, other=0.0)
        total = tl.dot(a, b.T, total)
    return total


@triton.jit
def _project_kernel(x, weight_0, weight_1, weight_2, out_0, out_1, out_2, tokens,
                    width_0, width_1, depth,
                    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Up to three products of one input; the widths of the last two are the same."""
    tile = tl.program_id(0)
    tiles_0, tiles_1 = tl.cdiv(width_0, BN), tl.cdiv(width_1, BN)
    weight, out, width = weight_0, out_0, width_0
    if tile >= tiles_0 + tiles_1:
        weight, out, width, tile = weight_2, out_2, width_1, tile - tiles_0 - tiles_1
    elif tile >= tiles_0:
        weight, out, width, tile = weight_1, out_1, width_1, tile - tiles_0
    total = _multiply(x, weight, tokens, width, depth, tile, BM, BN, BK)
    m, n = tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    inside = (m[:, None] < tokens) & (n[None, :] < width)
    tl.store(out + m[:, None] * width + n[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_product_kernel(x, weight, residual, out, tokens, width, depth,
                        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """``residual + x @ weight.T``."""
    tile = tl.program_id(0)
    total = _multiply(x, weight, tokens, width, depth, tile, BM, BN, BK)
    m, n = tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    inside = (m[:, None] < tokens) & (n[None, :] < width)
    at = m[:, None] * width + n[None, :]
    dtype = out.dtype.element_ty
    total = total.to(dtype).to(tl.float32) + tl.load(residual + at, mask=inside).to(tl.float32)
    tl.store(out + at, total.to(dtype), mask=inside)


@triton.jit
def _gate_kernel(x, gate, up, out, tokens, width, depth,
                 BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """``silu(x @ gate.T) * (x @ up.T)``."""
    m, n = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_at = x + m[:, None] * depth + k[None, :]
    rows = n[:, None].to(tl.int64) * depth + k[None, :]
    gated, upped = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        a = tl.load(x_at + start, mask=m[:, None] < tokens, other=0.0)
        b = tl.load(gate + rows + start, mask=n[:, None] < width, other=0.0)
        c = tl.load(up + rows + start, mask=n[:, None] < width, other=0.0)
        gated = tl.dot(a, b.T, gated)
        upped = tl.dot(a, c.T, upped)
    inside = (m[:, None] < tokens) & (n[None, :] < width)
    product = gated * tl.sigmoid(gated) * upped
    at = out + m[:, None] * width + n[None, :]
    tl.store(at, product.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _place_kernel(query, key, value, query_gain, key_gain, eps, cosine, sine, keys, values,
                  positions, columns, tokens_of_row, query_heads, kv_heads,
                  NORM: tl.constexpr, HALF: tl.constexpr):  # fmt: skip
    """One head of one token: norm and rotate; queries in place, keys and values to the cache."""
    token, head = tl.program_id(0), tl.program_id(1)
    first = tl.arange(0, HALF)
    second = first + HALF
    size: tl.constexpr = 2 * HALF
    if head < query_heads:
        source, gain = query + (token * query_heads + head) * size, query_gain
        target = source
    else:
        kv_head = (head - query_heads) % kv_heads
        is_key = head < query_heads + kv_heads
        base, cache = value, values
        if is_key:
            base, cache = key, keys
        source, gain = base + (token * kv_heads + kv_head) * size, key_gain
        row = (token // tokens_of_row) * kv_heads + kv_head
        column = row.to(tl.int64) * columns + tl.load(positions + token)
        target = cache + column * size
    x, y = tl.load(source + first).to(tl.float32), tl.load(source + second).to(tl.float32)
    if head < query_heads + kv_heads:
        if NORM:
            dtype = source.dtype.element_ty
            shrink = tl.rsqrt((tl.sum(x * x, 0) + tl.sum(y * y, 0)) / size + eps)
            # Rounded where the modules round.
            x = (x * shrink).to(dtype).to(tl.float32) * tl.load(gain + first).to(tl.float32)
            y = (y * shrink).to(dtype).to(tl.float32) * tl.load(gain + second).to(tl.float32)
            x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
        angle = token * size + first
        turned = x * tl.load(cosine + angle).to(tl.float32)
        turned -= y * tl.load(sine + angle).to(tl.float32)
        angle = token * size + second
        y = y * tl.load(cosine + angle).to(tl.float32) + x * tl.load(sine + angle).to(tl.float32)
        x = turned
    tl.store(target + first, x.to(target.dtype.element_ty))
    tl.store(target + second, y.to(target.dtype.element_ty))


@triton.jit
def _attend_kernel(query, keys, values, visible, positions, out, sums, tops, weights, arrived,
                   columns, tokens, kv_heads, scale, GROUPS: tl.constexpr, SPLITS: tl.constexpr,
                   BJ: tl.constexpr, BC: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Attention of a tile of the queries of one key/value head to one part of its row's columns.

    The last part to arrive adds up all of them.
    """
    pair, split = tl.program_id(0), tl.program_id(1)
    tile = pair * tl.num_programs(2) + tl.program_id(2)
    row, kv_head = pair // kv_heads, pair % kv_heads
    slot, e = tl.arange(0, BJ), tl.arange(0, SIZE)
    j = tl.program_id(2) * BJ + slot
    token, group = j % tokens, j // tokens
    real = group < GROUPS
    at = ((row * tokens + token) * kv_heads + kv_head) * GROUPS + group
    q = tl.load(query + at[:, None] * SIZE + e[None, :], mask=real[:, None], other=0.0)
    end = tl.load(positions + row * tokens + tokens - 1).to(tl.int32) + 1
    part = tl.cdiv(tl.cdiv(end, BC), SPLITS) * BC
    top = tl.full((BJ,), float("-inf"), tl.float32)
    weight, total = tl.zeros((BJ,), tl.float32), tl.zeros((BJ, SIZE), tl.float32)
    cache = pair.to(tl.int64) * columns * SIZE
    for start in range(split * part, tl.minimum(end, (split + 1) * part), BC):
        column = start + tl.arange(0, BC)
        held = column < columns
        held_at = cache + column[:, None] * SIZE + e[None, :]
        k = tl.load(keys + held_at, mask=held[:, None], other=0.0)
        v = tl.load(values + held_at, mask=held[:, None], other=0.0)
        seen_at = visible + (row * tokens + token)[:, None] * columns + column[None, :]
        seen = tl.load(seen_at, mask=held[None, :] & real[:, None], other=0) != 0
        scores = tl.where(seen, tl.dot(q, k.T) * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp(scores - shift[:, None])
        shrink = tl.exp(top - shift)
        weight = weight * shrink + tl.sum(p, 1)
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None])
        top = new_top
    if SPLITS > 1:
        own = (tile * SPLITS + split) * BJ + slot
        tl.store(tops + own, top)
        tl.store(weights + own, weight)
        tl.store(sums + own[:, None] * SIZE + e[None, :], total)
        tl.debug_barrier()
        ticket = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
        if ticket == SPLITS - 1:
            top = tl.full((BJ,), float("-inf"), tl.float32)
            for other in tl.static_range(SPLITS):
                of = (tile * SPLITS + other) * BJ + slot
                top = tl.maximum(top, tl.load(tops + of, cache_modifier=".cg"))
            shift = tl.where(top == float("-inf"), 0.0, top)
            weight, total = tl.zeros((BJ,), tl.float32), tl.zeros((BJ, SIZE), tl.float32)
            for other in tl.static_range(SPLITS):
                of = (tile * SPLITS + other) * BJ + slot
                shrink = tl.exp(tl.load(tops + of, cache_modifier=".cg") - shift)
                weight += shrink * tl.load(weights + of, cache_modifier=".cg")
                part_at = sums + of[:, None] * SIZE + e[None, :]
                total += shrink[:, None] * tl.load(part_at, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
            result = (total / weight[:, None]).to(out.dtype.element_ty)
            tl.store(out + at[:, None] * SIZE + e[None, :], result, mask=real[:, None])
    else:
        result = (total / weight[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * SIZE + e[None, :], result, mask=real[:, None])


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension."""
    out, size = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(size)
    _norm_kernel[(x.numel() // size,)](x, gain, eps, out, size, BLOCK=block, num_warps=8)
    return out


def project(
    x: Tensor, weights: tuple[Tensor | None, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Products [..., N] of ``x`` [..., depth] with each weight; a missing one gives N = 0.

    The last two weights have the same shape.
    """
    tokens, depth = x.numel() // x.shape[-1], x.shape[-1]
    first = weights[1][:0] if weights[0] is None else weights[0]
    outs = [x.new_empty(*x.shape[:-1], len(w)) for w in (first, *weights[1:])]
    tile = PROJECT[0]
    grid = (triton.cdiv(len(first), tile) + 2 * triton.cdiv(len(weights[1]), tile),)
    _project_kernel[grid](
        x, first, *weights[1:], *outs, tokens, len(first), len(weights[1]), depth,
        BM=_pad(tokens), BN=tile, BK=PROJECT[1], num_stages=PROJECT[2], num_warps=PROJECT[3],
    )  # fmt: skip
    return outs[0], outs[1], outs[2]


def add_product(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """``residual + x @ weight.T``, [..., N]."""
    tokens, depth = x.numel() // x.shape[-1], x.shape[-1]
    out = torch.empty_like(residual)
    _add_product_kernel[(triton.cdiv(len(weight), ADD[0]),)](
        x, weight, residual, out, tokens, len(weight), depth,
        BM=_pad(tokens), BN=ADD[0], BK=ADD[1], num_stages=ADD[2], num_warps=ADD[3],
    )  # fmt: skip
    return out


def gate(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """``silu(x @ gate.T) * (x @ up.T)``, [..., N]."""
    tokens, depth = x.numel() // x.shape[-1], x.shape[-1]
    out = x.new_empty(*x.shape[:-1], len(gate))
    _gate_kernel[(triton.cdiv(len(gate), GATE[0]),)](
        x, gate, up, out, tokens, len(gate), depth,
        BM=_pad(tokens), BN=GATE[0], BK=GATE[1], num_stages=GATE[2], num_warps=GATE[3],
    )  # fmt: skip
    return out


def place(
    query: Tensor, key: Tensor, value: Tensor, gains: tuple[Tensor, Tensor, float] | None,
    angles: tuple[Tensor, Tensor], keys_RKCE: Tensor, values_RKCE: Tensor, positions_RQ: Tensor,
) -> None:  # fmt: skip
    """Norm and rotate: queries in place, keys and values into the cache at ``positions_RQ``.

    ``query`` [R, Q, K * G * E], possibly with no heads; ``gains`` of query and key, and epsilon.
    """
    _, kv_heads, columns, size = keys_RKCE.shape
    query_heads = query.shape[-1] // size
    query_gain, key_gain, eps = gains or (query, query, 0.0)
    _place_kernel[(positions_RQ.numel(), query_heads + 2 * kv_heads)](
        query, key, value, query_gain, key_gain, eps, *(angle.contiguous() for angle in angles),
        keys_RKCE, values_RKCE, positions_RQ, columns, positions_RQ.shape[1], query_heads,
        kv_heads, NORM=gains is not None, HALF=size // 2, num_warps=1,
    )  # fmt: skip


def attend(
    query: Tensor, keys_RKCE: Tensor, values_RKCE: Tensor, visible_RQC: Tensor,
    positions_RQ: Tensor, arrived: Tensor,
) -> Tensor:  # fmt: skip
    """Softmax attention, shaped as ``query`` [R, Q, K * G * E].

    ``visible`` says which columns; none is after the last position of a row. ``arrived`` int32
    has an element or more for each head and tile of queries, zero before and after.
    """
    rows, kv_heads, columns, size = keys_RKCE.shape
    assert query.is_contiguous()
    assert visible_RQC.is_contiguous()
    tokens, groups = query.shape[1], query.shape[2] // (kv_heads * size)
    pairs, tiles, splits = rows * kv_heads, count_tiles(groups * tokens), 1
    if pairs * tiles < ENOUGH_PROGRAMS:
        splits = min(MOST_SPLITS, triton.next_power_of_2(triton.cdiv(columns, COLUMNS_OF_A_SPLIT)))
    parts = pairs * tiles * splits * QUERIES if splits > 1 else 1
    scratch: Any = {"dtype": torch.float32, "device": query.device}
    out = torch.empty_like(query)
    _attend_kernel[(pairs, splits, tiles)](
        query, keys_RKCE, values_RKCE, visible_RQC, positions_RQ, out,
        torch.empty(parts, size, **scratch), torch.empty(parts, **scratch),
        torch.empty(parts, **scratch), arrived,
        columns, tokens, kv_heads, size**-0.5, GROUPS=groups, SPLITS=splits,
        BJ=QUERIES, BC=64, SIZE=size, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def count_tiles(queries: int) -> int:
    """Tiles of the queries of one key/value head."""
    return int(triton.cdiv(queries, QUERIES))


def _pad(tokens: int) -> int:
    """The tokens of a tile: tensor cores multiply 16 or more."""
    return max(16, triton.next_power_of_2(tokens))
