# Types of kernel arguments are Triton's business.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,no-any-return"
# mypy: disable-error-code="import-not-found,import-untyped"
"""A kernel that reads two tensors once, and does as little else as it can."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCKS = (4096, 8192, 16_384, 32_768)


@triton.jit
def _read_kernel(one, one_size, other, other_size, out, BLOCK: tl.constexpr):
    """The largest element of a block of either."""
    at, tiles = tl.program_id(0), tl.cdiv(one_size, BLOCK)
    x, size = one, one_size
    if at >= tiles:
        x, size, at = other, other_size, at - tiles
    element = at.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    largest = tl.max(tl.load(x + element, mask=element < size, other=0.0), 0)
    tl.store(out + tl.program_id(0), largest)


def read_both(one: Tensor, other: Tensor, block: int) -> Tensor:
    """The largest element of every ``block`` elements of both."""
    programs = triton.cdiv(one.numel(), block) + triton.cdiv(other.numel(), block)
    out = one.new_empty(programs)
    _read_kernel[(programs,)](one, one.numel(), other, other.numel(), out, BLOCK=block)
    return out
