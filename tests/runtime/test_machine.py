"""Where models run and in what precision, and what cannot be meant."""

from __future__ import annotations

import pytest
import torch

from dspark_convert.errors import UsageError
from dspark_convert.runtime.dtypes import FLOAT_DTYPES
from dspark_convert.runtime.machine import Machine


def test_auto_is_a_gpu_where_there_is_one() -> None:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    assert Machine().torch_device().type == found


def test_a_dtype_is_each_checkpoint_s_unless_named() -> None:
    assert Machine().torch_dtype() is None
    assert {name: Machine(dtype=name).torch_dtype() for name in FLOAT_DTYPES} == FLOAT_DTYPES


@pytest.mark.parametrize("name", ["abacus", "meta", "cpu:1", "cuda:99", ""])
def test_a_device_that_holds_no_weights_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        Machine(device=name).torch_device()
    assert caught.value.code == "device-unavailable"
    assert (caught.value.findings[0].found or "").startswith(name)


def test_an_unknown_dtype_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError) as caught:
        Machine(dtype="int8").torch_dtype()
    assert caught.value.code == "dtype-unknown"
    assert caught.value.findings[0].expected == "auto, float32, float16, bfloat16"
