"""The element types as PyTorch has them."""

from __future__ import annotations

import torch

from dspark_convert.checkpoint.dtypes import DTYPES
from dspark_convert.runtime.dtypes import FLOAT_DTYPES, float_name_of, torch_dtype


def test_every_name_of_the_table_is_a_dtype_of_that_size() -> None:
    for code, dtype in DTYPES.items():
        if hasattr(torch, dtype.name or "-"):  # unsigned ones of several bytes came later
            assert torch_dtype(code).itemsize == dtype.nbytes
    assert torch_dtype("BF16") is torch.bfloat16
    assert torch_dtype("I32") is torch.int32


def test_floats_have_one_name() -> None:
    assert {
        "float32": torch.float32,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
    } == FLOAT_DTYPES
    assert [float_name_of(dtype) for dtype in FLOAT_DTYPES.values()] == list(FLOAT_DTYPES)
