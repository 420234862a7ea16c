"""Which weights a checkpoint holds, as one digest by which two documents can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from dspark_convert.checkpoint.files import hash_range, open_regular, read_range
from dspark_convert.checkpoint.folder import WeightFile

ALL_BYTES_LIMIT = 4 << 30
"""Weights of up to this many bytes are hashed in full: a few seconds, and most drafts."""

_SAMPLE = 4 << 10

Method = Literal["all-bytes", "sampled"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``sha256`` identifies the weights of a checkpoint, ``nbytes`` bytes in all its files.

    ``method`` follows from ``nbytes`` alone, so that equal weights always have equal fingerprints.
    "sampled" covers names, sizes and headers, and of every tensor the first, the middle and the
    last 4 KiB: another training run differs there, a few changed bytes elsewhere do not show.
    """

    method: Method
    sha256: str
    nbytes: int


def fingerprint(files: Iterable[WeightFile]) -> Fingerprint:
    """The fingerprint of the weight files of one checkpoint.

    Raises ``CheckpointError``: those of `open_regular`, if a file has gone since the checkpoint was
    opened.
    """
    files = sorted(files, key=lambda file: file.name)
    nbytes = sum(file.size for file in files)
    method: Method = "all-bytes" if nbytes <= ALL_BYTES_LIMIT else "sampled"
    whole = hashlib.sha256(method.encode(), usedforsecurity=False)
    for file in files:
        with open_regular(file.path, file=file.name) as descriptor:
            if method == "all-bytes":
                digest = hash_range(descriptor, file.size)
            else:
                digest = _sample_digest(descriptor, file)
        whole.update(f"\n{file.name}\0{file.size}\0{digest}".encode("utf-8", "surrogateescape"))
    return Fingerprint(method, whole.hexdigest(), nbytes)


def _sample_digest(descriptor: int, file: WeightFile) -> str:
    digest = hashlib.sha256(
        read_range(descriptor, 0, file.header.data_begin), usedforsecurity=False
    )
    for offset, length in _samples(file):
        digest.update(read_range(descriptor, offset, length))
    return digest.hexdigest()


def _samples(file: WeightFile) -> Iterator[tuple[int, int]]:
    """Offset and length of the sampled ranges, in the order of the data."""
    for entry in file.header.entries:
        begin, end = file.header.data_begin + entry.begin, file.header.data_begin + entry.end
        if end - begin <= 3 * _SAMPLE:
            yield begin, end - begin
            continue
        middle = (begin + end - _SAMPLE) // 2
        yield from ((start, _SAMPLE) for start in (begin, middle, end - _SAMPLE))
