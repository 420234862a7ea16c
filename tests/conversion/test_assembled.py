"""Matrices made in blocks, against numpy on whole ones."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.checkpoint.files import open_regular
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.conversion import assembled
from dspark_convert.conversion.assembled import Assembled, raw_values
from dspark_convert.errors import CheckpointError

PREFIX = 24


def stored_matrix(path: Path, values: np.ndarray) -> StoredTensor:
    path.write_bytes(bytes(PREFIX) + values.tobytes())
    return StoredTensor(path, path.name, "w", "BF16", values.shape, PREFIX, values.nbytes)


def index(limit: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(-1, limit - 1), min_size=1, max_size=12)


@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), index(n))),
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), index(n))),
    st.integers(2, 200),
)
def test_any_block_size_gives_the_matrix_that_numpy_gives(
    tmp_path_factory: pytest.TempPathFactory,
    rows: tuple[int, list[int]],
    columns: tuple[int, list[int]],
    block_bytes: int,
) -> None:
    (height, row_of), (width, column_of) = rows, columns
    values = np.arange(1, height * width + 1, dtype="<u2").reshape(height, width)
    present = np.arange(1000, 1000 + len(column_of), dtype="<u2")
    absent = np.arange(2000, 2000 + len(column_of), dtype="<u2")
    stored = stored_matrix(tmp_path_factory.mktemp("matrix") / "data", values)
    matrix = Assembled("BF16", stored, np.array(row_of), np.array(column_of), present, absent)

    expected = np.array(
        [
            [
                values[row, column] if min(row, column) >= 0 else (absent, present)[row >= 0][j]
                for j, column in enumerate(column_of)
            ]
            for row in row_of
        ],
        dtype="<u2",
    )
    with pytest.MonkeyPatch.context() as patch, open_regular(stored.path) as source:
        patch.setattr(assembled, "_BLOCK_BYTES", block_bytes)
        blocks = list(matrix.blocks())
        made = b"".join(matrix.read(source, first, end) for first, end in blocks)
    assert made == expected.tobytes()
    assert len(made) == matrix.nbytes
    assert [first for first, _ in blocks[1:]] == [end for _, end in blocks[:-1]]


def test_source_that_became_shorter_is_said(tmp_path: Path) -> None:
    stored = stored_matrix(tmp_path / "data", np.ones((4, 2), dtype="<u2"))
    os.truncate(stored.path, PREFIX + 6)
    zero = np.zeros(2, dtype="<u2")
    matrix = Assembled("BF16", stored, np.arange(4), np.arange(2), zero, zero)
    with open_regular(stored.path) as source, pytest.raises(CheckpointError) as caught:
        matrix.read(source, 0, 4)
    assert caught.value.code == "file-changed"


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("F32", [0x3F800000, 0xC6EA6000, 0, 0x41F00000]),
        ("F16", [0x3C00, 0xF753, 0, 0x4F80]),
        ("BF16", [0x3F80, 0xC6EA, 0, 0x41F0]),
    ],
)
def test_constants_in_every_dtype(dtype: str, bits: list[int]) -> None:
    assert raw_values([1.0, -30000.0, 0.0, 30.0], dtype).tolist() == bits


def test_bfloat16_is_rounded_to_nearest_ties_to_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], dtype="<u4").view("<f4")
    assert raw_values(halfway, "BF16").tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


def test_memory_is_that_of_a_block_whatever_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembled, "_BLOCK_BYTES", 1 << 16)
    values = np.zeros((4096, 1024), dtype="<u2")
    stored = stored_matrix(tmp_path / "data", values)
    zero = np.zeros(1024, dtype="<u2")
    matrix = Assembled("BF16", stored, np.arange(8192) // 2, np.arange(1024), zero, zero)
    del values
    with open_regular(stored.path) as source:
        tracemalloc.start()
        for first, end in matrix.blocks():
            matrix.read(source, first, end)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert matrix.nbytes == 16 << 20
    assert peak < 1 << 20
