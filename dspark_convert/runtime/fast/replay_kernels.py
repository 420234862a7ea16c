# Types of kernel arguments are Triton's business.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,no-any-return"
# mypy: disable-error-code="import-not-found,import-untyped"
"""Triton kernels for the many tokens of a replay, around the library's matrix products.

Attention of all blocks of a chunk is one kernel; what lies between the products of a layer, and
what is computed from logits, is one pass over memory each. Kernels are not specialised on sizes
that differ from chunk to chunk: each new size would be compiled again.

Shapes: M anchors, W blocks after each, B slots, K key/value heads, G query heads of each, E head
dim, T context positions, D columns of logits.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

# Queries and columns of a tile of attention, pipeline stages, warps: measured on an H200.
ATTEND = (128, 64, 3, 8)
COLUMNS = 2048  # of logits at once
ELEMENTS = 2048  # of an elementwise program


@triton.jit(do_not_specialize=["tokens"])
def _turn_kernel(x, gain, eps, cosine, sine, tokens, heads, NORM: tl.constexpr,
                 TOKENS: tl.constexpr, HALF: tl.constexpr):  # fmt: skip
    """Norm and rotate one head of some tokens, in place."""
    size: tl.constexpr = 2 * HALF
    token, head = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    first = tl.arange(0, HALF)
    inside = (token < tokens)[:, None]
    at = x + (token.to(tl.int64) * heads + head)[:, None] * size + first[None, :]
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = x.dtype.element_ty
    if NORM:
        shrink = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / size + eps)[:, None]
        # Rounded where the modules round.
        a = (a * shrink).to(dtype).to(tl.float32) * tl.load(gain + first).to(tl.float32)[None, :]
        b = (b * shrink).to(dtype).to(tl.float32)
        b *= tl.load(gain + HALF + first).to(tl.float32)[None, :]
        a, b = a.to(dtype).to(tl.float32), b.to(dtype).to(tl.float32)
    # Both halves turn by the same angles.
    angle = token[:, None] * size + first[None, :]
    c = tl.load(cosine + angle, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sine + angle, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (a * c - b * s).to(dtype), mask=inside)
    tl.store(at + HALF, (b * c + a * s).to(dtype), mask=inside)


@triton.jit
def _gate_kernel(gate, up, size, BLOCK: tl.constexpr):
    """``gate = silu(gate) * up``."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(gate + at, (g * tl.sigmoid(g) * u).to(gate.dtype.element_ty), mask=inside)


@triton.jit
def _attend_tile(q, keys, values, stride, column, held, seen, scale, top, weight, total,
                 MASKED: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Running softmax over a few more columns; scores are in units of log 2."""
    at = column.to(tl.int64)[:, None] * stride + tl.arange(0, SIZE)[None, :]
    if MASKED:
        k = tl.load(keys + at, mask=held[:, None], other=0.0)
        v = tl.load(values + at, mask=held[:, None], other=0.0)
        scores = tl.where(seen, tl.dot(q, k.T) * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    else:
        k = tl.load(keys + at)
        v = tl.load(values + at)
        scores = tl.dot(q, k.T) * scale
        new_top = tl.maximum(top, tl.max(scores, 1))
        shift = new_top
    p = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(top - shift)
    weight = weight * shrink + tl.sum(p, 1)
    total = tl.dot(p.to(v.dtype), v, total * shrink[:, None])
    return new_top, weight, total


@triton.jit(do_not_specialize=["blocks", "each", "first", "step", "window"])
def _attend_blocks_kernel(query, context_keys, context_values, block_keys, block_values, out,
                          blocks, each, first, step, window, slots, kv_heads, context_stride, scale,
                          SLIDING: tl.constexpr, CAUSAL: tl.constexpr, GROUPS: tl.constexpr,
                          BQ: tl.constexpr, BC: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """A tile of the queries of one key/value head: slots in order, the heads of each together."""
    # Later tiles see more context, so they start first.
    tile, kv_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    j, e, c = tile * BQ + tl.arange(0, BQ), tl.arange(0, SIZE), tl.arange(0, BC)
    query_slot, group = j // GROUPS, j % GROUPS
    block, slot = query_slot // slots, query_slot % slots
    real = block < blocks
    width = kv_heads * SIZE
    head = query_slot.to(tl.int64) * kv_heads * GROUPS + kv_head * GROUPS + group
    q = tl.load(query + head[:, None] * SIZE + e[None, :], mask=real[:, None], other=0.0)
    anchor = first + block // each * step
    first_block = tile * BQ // (GROUPS * slots)
    last_block = tl.minimum(((tile + 1) * BQ - 1) // (GROUPS * slots), blocks - 1)
    nearest, farthest = first + first_block // each * step, first + last_block // each * step
    top = tl.full((BQ,), float("-inf"), tl.float32)
    weight, total = tl.zeros((BQ,), tl.float32), tl.zeros((BQ, SIZE), tl.float32)
    keys, values = context_keys + kv_head * SIZE, context_values + kv_head * SIZE
    begin = 0
    if SLIDING:
        begin = tl.maximum(nearest - window, 0) // BC * BC
    else:
        # All of these columns lie before every anchor of the tile.
        begin = nearest // BC * BC
        for start in range(0, begin, BC):
            column = start + c
            top, weight, total = _attend_tile(
                q, keys, values, context_stride, column, column, column, scale,
                top, weight, total, False, SIZE,
            )  # fmt: skip
    for start in range(begin, farthest, BC):
        column = start + c
        seen = column[None, :] < anchor[:, None]
        if SLIDING:
            seen &= column[None, :] >= anchor[:, None] - window
        top, weight, total = _attend_tile(
            q, keys, values, context_stride, column, column < farthest, seen, scale,
            top, weight, total, True, SIZE,
        )  # fmt: skip
    keys, values = block_keys + kv_head * SIZE, block_values + kv_head * SIZE
    end = (last_block + 1) * slots
    for start in range(first_block * slots, end, BC):
        column = start + c
        seen = (column // slots)[None, :] == block[:, None]
        if CAUSAL:
            seen &= (column % slots)[None, :] <= slot[:, None]
        top, weight, total = _attend_tile(
            q, keys, values, width, column, column < end, seen, scale,
            top, weight, total, True, SIZE,
        )  # fmt: skip
    result = (total / weight[:, None]).to(out.dtype.element_ty)
    tl.store(out + head[:, None] * SIZE + e[None, :], result, mask=real[:, None])


@triton.jit(do_not_specialize=["start"])
def _fold_kernel(logits, start, width, temperature, wanted_ids, peaks, totals, best_ids, wanted,
                 GREEDY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Take the columns of one row into its running peak, argmax and softmax sum."""
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * width
    peak, best = tl.load(peaks + row), tl.load(best_ids + row)
    total = 0.0
    if not GREEDY:
        total = tl.load(totals + row)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(own + column, mask=column < width, other=float("-inf")).to(tl.float32)
        largest, at = tl.max(x, 0, return_indices=True)
        # Ties keep the first column.
        best = tl.where(largest > peak, at.to(tl.int64) + first + start, best)
        new_peak = tl.maximum(peak, largest)
        if not GREEDY:
            kept = total * tl.exp((peak - new_peak) / temperature)
            total = kept + tl.sum(tl.exp((x - new_peak) / temperature), 0)
        peak = new_peak
    tl.store(peaks + row, peak)
    tl.store(best_ids + row, best)
    if not GREEDY:
        tl.store(totals + row, total)
        column = tl.load(wanted_ids + row) - start
        if (column >= 0) & (column < width):
            tl.store(wanted + row, tl.load(own + column).to(tl.float32))


def turn(x: Tensor, gain: Tensor | None, eps: float, angles: tuple[Tensor, Tensor]) -> None:
    """Norm each head of ``x`` [tokens, heads * E] and rotate it, in place.

    ``angles`` [tokens, E] repeat their first half.
    """
    cosine, sine = angles
    tokens, size = cosine.shape
    heads = x.shape[1] // size
    _turn_kernel[(triton.cdiv(tokens, 16), heads)](
        x, x if gain is None else gain, eps, cosine, sine, tokens, heads,
        NORM=gain is not None, TOKENS=16, HALF=size // 2, num_warps=4,
    )  # fmt: skip


def multiply_gate(gate: Tensor, up: Tensor) -> None:
    """``gate = silu(gate) * up``, in place."""
    grid = (triton.cdiv(gate.numel(), ELEMENTS),)
    _gate_kernel[grid](gate, up, gate.numel(), BLOCK=ELEMENTS, num_warps=4)


def attend_blocks(
    query: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], anchors: range,
    slots: int, *, kv_heads: int, window: int | None, causal: bool,
    tuning: tuple[int, int, int, int] = ATTEND,
) -> Tensor:  # fmt: skip
    """Attention of every block to the context before its anchor and to itself.

    ``query`` and the result are [M * W * B, K * G * E], ``context`` keys and values [T, K, E],
    those of the blocks [M * W * B, K * E]. ``window`` positions before the anchor are seen, None:
    all; with ``causal`` a slot does not see later ones of its block.
    """
    size = context[0].shape[-1]
    groups = query.shape[1] // (kv_heads * size)
    queries, columns, stages, warps = tuning
    blocks = len(query) // slots
    out: Any = query.new_empty(query.shape)
    _attend_blocks_kernel[(triton.cdiv(len(query) * groups, queries), kv_heads)](
        query, *context, *block, out,
        blocks, blocks // len(anchors), anchors.start, anchors.step, window or 0, slots, kv_heads,
        context[0].stride(0), size**-0.5 * math.log2(math.e),
        SLIDING=window is not None, CAUSAL=causal, GROUPS=groups,
        BQ=queries, BC=columns, SIZE=size, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def fold(
    logits: Tensor, start: int, temperature: float, wanted_ids: Tensor,
    peak: Tensor, total: Tensor, best_ids: Tensor, wanted: Tensor, *, greedy: bool,
) -> None:  # fmt: skip
    """Take logits [rows, D] of the columns from ``start`` on into running results of each row.

    In place; see ``runtime.replay_steps.Reductions.add``.
    """
    width = logits.shape[-1]
    _fold_kernel[(peak.numel(),)](
        logits, start, width, temperature, wanted_ids, peak, total, best_ids, wanted,
        GREEDY=greedy, BLOCK=COLUMNS, num_warps=4,
    )  # fmt: skip
