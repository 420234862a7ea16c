"""Matrices that are made while they are written: rows and columns of a stored one, and constants.

Used when a conversion must change shapes (``--expand-vocab``). Any block of rows can be made on its
own, so a matrix of any size is written, and compared afterwards, in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_convert.checkpoint.dtypes import DTYPES
from dspark_convert.checkpoint.files import read_range
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.errors import CheckpointError, Finding

Index = npt.NDArray[np.int64]
Raw = npt.NDArray[np.unsignedinteger]

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Assembled:
    """Element (i, j) is stored[rows[i], columns[j]]; if either is -1, a constant of column j.

    Args:
        dtype: of the elements, as safetensors names it (F32, F16 or BF16).
        stored: a matrix of that dtype, or a vector, which counts as one row; None: only constants.
        rows: int64 [R], the stored row of each row; -1: none.
        columns: int64 [C], the stored column of each column; -1: none.
        present: [C], constants of the rows that have a stored one.
        absent: [C], constants of the rows that have none.
    """

    dtype: str
    stored: StoredTensor | None
    rows: Index
    columns: Index
    present: Raw
    absent: Raw

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the result."""
        return len(self.columns) * self.present.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return len(self.rows) * self.row_bytes

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The first row and the end of every block that is made in one go."""
        width = self.stored.shape[-1] if self.stored else 0
        wider = max(len(self.columns), width) * self.present.itemsize
        step = max(1, _BLOCK_BYTES // wider)
        return ((row, min(row + step, len(self.rows))) for row in range(0, len(self.rows), step))

    def read(self, source: int | None, first: int, end: int) -> bytes:
        """The bytes of rows ``first`` to ``end``; ``source`` is the open file of ``stored``."""
        wanted = self.rows[first:end]
        here = wanted >= 0
        block = np.empty((end - first, len(self.columns)), self.present.dtype)
        block[:] = self.absent
        if here.any():
            block[here] = self.present
            if source is not None:
                stored = self._stored_rows(source, wanted[here])
                for begin, stop in _runs(self.columns):
                    column = self.columns[begin]
                    if column >= 0:
                        block[here, begin:stop] = stored[:, column : column + stop - begin]
        return block.tobytes()

    def _stored_rows(self, source: int, wanted: Index) -> Raw:
        """Rows of the stored matrix, with one read for each run of neighbours."""
        assert self.stored is not None, "an open file belongs to a stored matrix"
        width = self.stored.shape[-1]
        size = width * self.present.itemsize
        parts = []
        for start, end in _runs(wanted):
            length = (end - start) * size
            data = read_range(source, self.stored.offset + int(wanted[start]) * size, length)
            if len(data) < length:
                raise _changed(self.stored)
            parts.append(np.frombuffer(data, self.present.dtype).reshape(-1, width))
        return np.concatenate(parts)


def _runs(indices: Index) -> Iterator[tuple[int, int]]:
    """Start and end of every stretch of neighbours in ``indices``; a -1 stands alone."""
    breaks = np.flatnonzero((np.diff(indices) != 1) | (indices[:-1] < 0)) + 1
    ends = [*breaks.tolist(), len(indices)]
    return zip([0, *ends[:-1]], ends, strict=True)


def raw_values(values: npt.ArrayLike, dtype: str) -> Raw:
    """Bit patterns of float ``values`` in a stored dtype, rounded to nearest, ties to even."""
    floats = np.asarray(values, dtype="<f4")
    if dtype == "F16":
        return floats.astype("<f2").view("<u2")
    bits = floats.view("<u4")
    if dtype == "F32":
        return bits
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(DTYPES[dtype].raw)


def _changed(stored: StoredTensor) -> CheckpointError:
    return CheckpointError(
        Finding(
            code="file-changed",
            message="a source file became shorter while it was in use",
            file=stored.file,
            tensor=stored.name,
            hint="run again when nothing else writes to the checkpoint",
        )
    )
