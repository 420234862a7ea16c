"""Which weights a checkpoint holds, as one digest that two documents can be compared by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from dspark_convert.checkpoint.files import open_regular, read_range
from dspark_convert.checkpoint.folder import StoredTensor

ALL_BYTES_LIMIT = 4 << 30
"""Bytes of tensors up to which every one is hashed: a few seconds, and most drafts."""

_SAMPLE = 4 << 10
_CHUNK = 4 << 20

Method = Literal["all-bytes", "sampled"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``sha256`` identifies the tensors of a checkpoint, which take ``nbytes`` bytes.

    It covers name, dtype, shape and bytes of every tensor, and neither how they are spread over
    files nor metadata: sharding a checkpoint anew does not make another model of it. ``method``
    follows from ``nbytes`` alone, so that equal tensors always have equal fingerprints. "sampled"
    hashes of every tensor the first, the middle and the last 4 KiB: another training run differs
    there, a few changed bytes elsewhere do not show.
    """

    method: Method
    sha256: str
    nbytes: int


def fingerprint(tensors: Iterable[StoredTensor]) -> Fingerprint:
    """The fingerprint of tensors, best given in the order of files and of the data in them.

    Raises ``CheckpointError``: those of `open_regular`, where a file has gone since it was opened.
    """
    tensors = tuple(tensors)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    method = choose_method(nbytes)
    lines = []
    for path, group in groupby(tensors, key=lambda tensor: tensor.path):
        members = list(group)
        with open_regular(path, file=members[0].file) as descriptor:
            lines += [_line(descriptor, tensor, method) for tensor in members]
    whole = hashlib.sha256("\n".join([method, *sorted(lines)]).encode(), usedforsecurity=False)
    return Fingerprint(method, whole.hexdigest(), nbytes)


def choose_method(nbytes: int) -> Method:
    """How tensors that take this many bytes together are hashed."""
    return "all-bytes" if nbytes <= ALL_BYTES_LIMIT else "sampled"


def _line(descriptor: int, tensor: StoredTensor, method: Method) -> str:
    digest = hashlib.sha256(usedforsecurity=False)
    for offset, length in _ranges(tensor, method):
        digest.update(read_range(descriptor, offset, length))
    return f"{tensor.name!r} {tensor.dtype} {list(tensor.shape)} {digest.hexdigest()}"


def _ranges(tensor: StoredTensor, method: Method) -> Iterator[tuple[int, int]]:
    """Offset and length of what is hashed, a few megabytes at a time."""
    begin, end = tensor.offset, tensor.offset + tensor.nbytes
    if method == "all-bytes" or tensor.nbytes <= 3 * _SAMPLE:
        yield from ((start, min(_CHUNK, end - start)) for start in range(begin, end, _CHUNK))
    else:
        middle = (begin + end - _SAMPLE) // 2
        yield from ((start, _SAMPLE) for start in (begin, middle, end - _SAMPLE))
