# Types of kernel arguments are Triton's business.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,no-any-return"
# mypy: disable-error-code="import-not-found,import-untyped"
"""Triton kernels that draw tokens by the Gumbel-max trick, reading their logits once.

The largest of ``logit / temperature - log(E)``, E exponential, is a draw from the softmax. Programs
look at some columns each and meet in an atomic maximum of keys: the value in the upper half, made
to compare as an integer does, and the column in the lower one, so that ties go to the first column.

Shapes: R rows, N drafted tokens, Q = N + 1, D draft vocabulary, V target vocabulary, r Markov rank.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns of a program, and warps: measured on an H200.
DRAW = (64, 4)
NEXT = (1024, 4)
SUM = (4096, 8)
ROWS = 16  # of a tile: tensor cores multiply 16 or more
NO_KEY = -(2**63)


@triton.jit
def _exponential(bits):
    """Exponential numbers from 32 random bits: -log(1 - u), exact to a step of 2^-32 near 0."""
    u = (bits.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    # 1 - u has no digits left for small u, which is where the largest values come from.
    return tl.where(u < 1 / 256, u * (1 + u * (0.5 + u * (1 / 3))), -tl.log(1 - u))


@triton.jit
def _pack(value, column):
    """The key of a value: compares as the value does, then the smaller column first."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - column.to(tl.int64))


@triton.jit
def _column_of(key):
    return 0xFFFFFFFF - (key & 0xFFFFFFFF)


@triton.jit
def _random_bits(seed, tile, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """32 random bits [COLUMNS, ROWS], others for every tile: the generator gives four at once."""
    part: tl.constexpr = COLUMNS // 4
    at = tl.arange(0, part)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    a, b, c, d = tl.randint4x(seed, tile * (part * ROWS) + at)
    return tl.join(tl.join(a, b), tl.join(c, d)).reshape(COLUMNS, ROWS)


@triton.jit
def _latents(latents, latent_ids, before, table, row, rows, rank, FIRST: tl.constexpr,
             LOOK_UP: tl.constexpr, TABLE: tl.constexpr, RANK: tl.constexpr):  # fmt: skip
    """What the Markov weights are applied to, [rows, RANK]."""
    real, which = row < rows, row.to(tl.int64)
    if LOOK_UP:
        if FIRST:
            which = tl.load(latent_ids + row, mask=real, other=0)
        else:
            which = _column_of(tl.load(before + row, mask=real, other=0xFFFFFFFF))
            if TABLE:
                which += tl.load(table + which, mask=real, other=0)
    k = tl.arange(0, RANK)
    at = latents + which[:, None] * rank + k[None, :]
    return tl.load(at, mask=real[:, None] & (k < rank)[None, :], other=0.0)


@triton.jit(do_not_specialize=["rows", "token"])
def _draw_kernel(base, latents, latent_ids, weight, table, out, keys, before, seeds,
                 rows, width, usable, row_stride, rank, token, per_temperature,
                 FIRST: tl.constexpr, LOOK_UP: tl.constexpr, TABLE: tl.constexpr,
                 RANK: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
                 EARLY: tl.constexpr):  # fmt: skip
    """One drafted token: some of its biased logits, and the best of their keys."""
    tile = tl.program_id(0)
    column, row = tile * BC + tl.arange(0, BC), tl.program_id(1) * BR + tl.arange(0, BR)
    both = (row < rows)[None, :] & (column < width)[:, None]
    dtype = base.dtype.element_ty
    if EARLY:
        # This kernel starts before the one ahead of it in the stream has ended. Up to the wait it
        # may touch nothing that changes during a chain, so the first of a chain waits at once.
        if FIRST:
            tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if RANK:
        k = tl.arange(0, RANK)
        weight_at = weight + column[:, None].to(tl.int64) * rank + k[None, :]
        inside = (column < width)[:, None] & (k < rank)[None, :]
        w = tl.load(weight_at, mask=inside, other=0.0)
    at = row[None, :] * row_stride + column[:, None]
    x = tl.load(base + at, mask=both, other=0.0).to(tl.float32)
    nth = (token * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tile
    noise = tl.log(_exponential(_random_bits(tl.load(seeds), nth, BC, BR)))
    if EARLY and not FIRST:
        tl.extra.cuda.gdc_wait()
    if RANK:
        latent = _latents(
            latents, latent_ids, before, table, row, rows, rank, FIRST, LOOK_UP, TABLE, RANK
        )
        # Rounded where the modules round.
        x = (x + tl.dot(w, latent.T).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    x = tl.where((column < usable)[:, None], x, float("-inf"))
    tl.store(out + at, x.to(dtype), mask=both)
    key = _pack(x * per_temperature - noise, column[:, None])
    tl.atomic_max(keys + row, tl.max(key, 0), mask=row < rows, sem="relaxed")


@triton.jit
def _sum_kernel(logits, tops, totals, width, tokens, row_stride, token_stride, temperature,
                BLOCK: tl.constexpr):  # fmt: skip
    """Largest logit and softmax sum of some columns of a token of a row."""
    row, tile = tl.program_id(0), tl.program_id(1)
    column = tile * BLOCK + tl.arange(0, BLOCK)
    at = logits + (row // tokens).to(tl.int64) * row_stride + (row % tokens) * token_stride + column
    x = tl.load(at, mask=column < width, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    own = row * tl.num_programs(1) + tile
    tl.store(tops + own, top)
    tl.store(totals + own, tl.sum(tl.exp((x - shift) / temperature), 0))


@triton.jit
def _next_kernel(p_logits, p_peaks, p_sums, q_logits, q_peaks, q_sums, draft_ids, accepted,
                 lengths, keys, seeds, rows, tokens, width, row_stride, slot_stride, usable,
                 temperature,
                 TABLE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The token after the accepted ones, from max(p - q, 0), or from p when all were."""
    row, tile = tl.program_id(0), tl.program_id(1)
    column = tile * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = tl.load(accepted + row)
    rejected = at < tl.load(lengths + row)
    p_row = row * (tokens + 1) + at
    x = tl.load(p_logits + p_row * width + column, mask=inside, other=float("-inf"))
    x = (x.to(tl.float32) - tl.load(p_peaks + p_row)) / temperature
    p = tl.exp(x - tl.load(p_sums + p_row))
    draft_id = column.to(tl.int64)
    if TABLE:
        draft_id = tl.load(draft_ids + column, mask=inside, other=-1)
    known = rejected & inside & (draft_id >= 0) & (draft_id < usable)
    slot = tl.minimum(at, tokens - 1)
    q_row = row * tokens + slot
    q_at = q_logits + row * row_stride + slot * slot_stride + draft_id
    y = tl.load(q_at, mask=known, other=float("-inf"))
    y = (y.to(tl.float32) - tl.load(q_peaks + q_row)) / temperature
    q = tl.exp(y - tl.load(q_sums + q_row))
    bits = tl.randint(tl.load(seeds + 1), row * width + column)
    noise = tl.log(_exponential(bits))
    residual = tl.where(p > q, p - q, 0.0)
    key = tl.where(residual > 0, _pack(tl.log(residual) - noise, column), -9223372036854775808)
    tl.atomic_max(keys + row, tl.max(key, 0), sem="relaxed")
    # Where p <= q everywhere, but for rounding p = q, and p stands in for the residual.
    key = tl.where(p > 0, _pack(tl.log(p) - noise, column), -9223372036854775808)
    tl.atomic_max(keys + rows + row, tl.max(key, 0), sem="relaxed")


def draw(
    base: Tensor, latents: Tensor | None, latent_ids: Tensor | None, weight: Tensor | None,
    table: Tensor | None, usable: int, out: Tensor, keys: Tensor, token: int, seeds: Tensor,
    temperature: float, tuning: tuple[int, int] = DRAW,
) -> None:  # fmt: skip
    """Draw the drafted token number ``token`` of every row.

    The draws of a chain follow one another; what they read besides ``keys`` and ``latents`` does
    not change between them.

    Args:
        base: logits [R, D] of its slot, with any stride between rows.
        latents: [R, r], what ``weight`` [D, r] is applied to; or with ``latent_ids`` an embedding
            of target ids, looked up at ``latent_ids`` int64 [R] for token 0 and at the token
            before for others. None: no bias.
        latent_ids: see ``latents``.
        weight: see ``latents``.
        table: ``draft_id_to_target_id`` of a reduced vocabulary, int64 [D].
        usable: draft ids from here on stand for nothing.
        out: biased logits, as ``base``.
        keys: int64 [N, R], ``NO_KEY`` before the first draw.
        token: from 0 on.
        seeds: int64 [1 or more].
        temperature: of the draw.
        tuning: see ``DRAW``.
    """
    rows, width = base.shape
    assert base.stride(1) == 1
    assert base.stride() == out.stride()
    rank = 0 if latents is None else latents.shape[-1]
    columns, warps = tuning
    # Kernels that start early came with compute capability 9.
    early = torch.cuda.get_device_capability(base.device) >= (9, 0)
    _draw_kernel[(triton.cdiv(width, columns), triton.cdiv(rows, ROWS))](
        base, _or(latents, base), _or(latent_ids, keys), _or(weight, base), _or(table, keys), out,
        keys[token], keys[max(token - 1, 0)], seeds, rows, width, usable,
        base.stride(0), rank, token, 1 / temperature,
        FIRST=token == 0, LOOK_UP=latent_ids is not None, TABLE=table is not None,
        RANK=max(16, triton.next_power_of_2(rank)) if rank else 0, BR=ROWS, BC=columns,
        EARLY=early, launch_pdl=early, num_warps=warps,
    )  # fmt: skip


def columns_of(keys: Tensor) -> Tensor:
    """The columns, int64, that keys were made of."""
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)


def sum_exponentials(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Of logits [R, Q, V] the largest, and the log of the softmax sum relative to it, [R, Q]."""
    rows, tokens, width = logits.shape
    tiles = triton.cdiv(width, SUM[0])
    tops, totals = torch.empty(2, rows, tokens, tiles, device=logits.device)
    _sum_kernel[(rows * tokens, tiles)](
        logits, tops, totals, width, tokens, logits.stride(0), logits.stride(1), temperature,
        BLOCK=SUM[0], num_warps=SUM[1],
    )  # fmt: skip
    peaks = tops.amax(-1)
    return peaks, (totals * ((tops - peaks[..., None]) / temperature).exp()).sum(-1).log()


def draw_next(
    p_logits: Tensor, p_sums: tuple[Tensor, Tensor], q_logits: Tensor,
    q_sums: tuple[Tensor, Tensor], draft_ids: Tensor | None, usable: int, accepted: Tensor,
    lengths: Tensor, seeds: Tensor, temperature: float,
) -> Tensor:  # fmt: skip
    """The token after the ``accepted`` ones int64 [R], of which ``lengths`` were proposed.

    Args:
        p_logits: of the target, [R, Q, V].
        p_sums: see ``sum_exponentials``, fp32 [R, Q].
        q_logits: of the draft, [R, N, D].
        q_sums: the same, [R, N].
        draft_ids: the draft id of each target id, -1 for none, int64 [V]; None: the same.
        usable: draft ids from here on stand for nothing.
        accepted: int64 [R].
        lengths: int64 [R].
        seeds: int64 [2 or more].
        temperature: of both.
    """
    rows, tokens, _ = q_logits.shape
    width = p_logits.shape[-1]
    assert p_logits.is_contiguous()
    keys = torch.full((2, rows), NO_KEY, dtype=torch.int64, device=p_logits.device)
    _next_kernel[(rows, triton.cdiv(width, NEXT[0]))](
        p_logits, *p_sums, q_logits, *q_sums, _or(draft_ids, keys), accepted, lengths, keys, seeds,
        rows, tokens, width, q_logits.stride(0), q_logits.stride(1), usable, temperature,
        TABLE=draft_ids is not None, BLOCK=NEXT[0], num_warps=NEXT[1],
    )  # fmt: skip
    return columns_of(torch.where(keys[0] == NO_KEY, keys[1], keys[0]))


def _or(x: Any, other: Tensor) -> Tensor:
    """A pointer that is not read where there is nothing to read."""
    return other if x is None else x
