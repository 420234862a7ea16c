"""What cannot be meant by the options of a diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspark_convert.diagnosis.options import DiagnoseOptions
from dspark_convert.diagnosis.run import run_diagnosis
from dspark_convert.errors import UsageError
from dspark_convert.runtime.machine import Machine

ABSENT = Path("absent")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "target-missing"),
        ({"trace": ABSENT, "target": ABSENT}, "trace-option-conflict"),
        ({"trace": ABSENT, "prompts": ABSENT}, "trace-option-conflict"),
        ({"target": ABSENT, "target_weights": ABSENT}, "trace-missing"),
        ({"target": ABSENT, "batch_size": 0}, "option-out-of-range"),
        ({"target": ABSENT, "machine": Machine(device="abacus")}, "device-unavailable"),
        ({"target": ABSENT, "machine": Machine(dtype="int8")}, "dtype-unknown"),
    ],
)
def test_they_are_refused_before_anything_is_read(options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_diagnosis(DiagnoseOptions(draft=ABSENT, **options))
    assert caught.value.code == code
