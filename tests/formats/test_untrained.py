"""Norms whose weight is all ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dspark_convert.conversion.inspection import check_draft
from fixtures.broken.drafts import Tensor, read_draft, write_draft

from .helpers import DENSE

NORM = "hidden_norm.weight"
NUMPY = {"F32": "<f4", "F16": "<f2"}


def ones(dtype: str, count: int, last: float) -> bytes:
    values = np.ones(count, NUMPY.get(dtype, "<f4"))
    values[-1] = last
    return values.tobytes() if dtype in NUMPY else values.view("<u2")[1::2].tobytes()


def noted(folder: Path, dtype: str, last: float) -> list[tuple[str | None, str]]:
    """What is noted of a draft with trained norms but one, which is of ones and a last value."""
    draft = read_draft(DENSE)
    for name, tensor in draft.tensors.items():
        if name.endswith("norm.weight"):
            halves = np.full(tensor.shape, 0x3F00, "<u2")
            draft.tensors[name] = Tensor("BF16", tensor.shape, halves.tobytes())
    shape = draft.tensors[NORM].shape
    draft.tensors[NORM] = Tensor(dtype, shape, ones(dtype, shape[0], last))
    write_draft(draft, folder)
    report = check_draft(folder)
    assert report.verdict == "pass"
    found = [note for note in report.findings if note.code == "norm-untrained"]
    return [(note.tensor, note.message.split(" norms")[0]) for note in found]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_norm_of_ones_is_noted(dtype: str, tmp_path: Path) -> None:
    assert noted(tmp_path / "ones", dtype, 1.0) == [(NORM, "1 of 10")]
    assert noted(tmp_path / "trained", dtype, 1.5) == []
