"""Moving and comparing byte ranges between open files, in constant memory."""

from __future__ import annotations

import os
from collections.abc import Callable

from dspark_convert.checkpoint.files import open_regular, read_range
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.errors import CheckpointError, Finding

_KERNEL_CHUNK = 64 << 20  # short enough for progress and signals between two calls
_BUFFER = 8 << 20
_EDGE = 4 << 10


def copy_range(
    source: int,
    offset: int,
    length: int,
    target: int,
    target_offset: int,
    *,
    on_bytes: Callable[[int], None],
) -> None:
    """Copy ``length`` bytes between two open files; ``on_bytes`` is called with each piece's size.

    The kernel copies where it can (some filesystems then share the blocks), a buffer otherwise.
    Raises ``CheckpointError``: ``file-changed`` when the source ends early, ``file-unreadable``.
    Write errors stay ``OSError``.
    """
    copied = _copy_in_kernel(source, offset, length, target, target_offset, on_bytes)
    while copied < length:
        data = read_some(source, offset + copied, min(_BUFFER, length - copied))
        write_at(target, target_offset + copied, data)
        copied += len(data)
        on_bytes(len(data))


def ranges_equal(
    first: int, first_offset: int, second: int, second_offset: int, length: int, *, whole: bool
) -> bool:
    """Whether two ranges of two open files hold the same bytes; False if a file ends early.

    Without ``whole`` only the first and the last 4 KiB are looked at.
    """
    if whole:
        pieces = [(start, min(_BUFFER, length - start)) for start in range(0, length, _BUFFER)]
    else:
        edge = min(_EDGE, length)
        pieces = [(0, edge), (length - edge, edge)]
    for start, size in pieces:
        data = read_range(first, first_offset + start, size)
        if len(data) < size or data != read_range(second, second_offset + start, size):
            return False
    return True


def same_tensor(first: StoredTensor, second: StoredTensor, *, common_rows: bool = False) -> bool:
    """Whether two stored tensors are equal in dtype, shape and bytes.

    With ``common_rows`` they may differ in their number of rows: those that both have are compared,
    as where an embedding is padded.
    """
    if first.dtype != second.dtype or first.shape[1:] != second.shape[1:]:
        return False
    if first.shape != second.shape and not common_rows:
        return False
    length = min(first.nbytes, second.nbytes)
    with (
        open_regular(first.path, file=first.file) as one,
        open_regular(second.path, file=second.file) as other,
    ):
        return ranges_equal(one, first.offset, other, second.offset, length, whole=True)


def write_at(target: int, offset: int, data: bytes) -> None:
    """Write all of ``data`` at ``offset`` of an open file; errors stay ``OSError``."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(target, rest, offset)
        rest, offset = rest[count:], offset + count


def _copy_in_kernel(
    source: int,
    offset: int,
    length: int,
    target: int,
    target_offset: int,
    on_bytes: Callable[[int], None],
) -> int:
    """Bytes copied before the kernel declined, or before the end of the source."""
    copied = 0
    while copied < length and hasattr(os, "copy_file_range"):
        try:
            count = os.copy_file_range(
                source,
                target,
                min(_KERNEL_CHUNK, length - copied),
                offset + copied,
                target_offset + copied,
            )
        except OSError:
            break  # unsupported here, or a real error: the buffered copy will find out which
        if count == 0:
            break
        copied += count
        on_bytes(count)
    return copied


def read_some(source: int, offset: int, length: int) -> bytes:
    """Between 1 and ``length`` bytes of a source at ``offset``.

    Raises ``CheckpointError``: ``file-changed`` at the end of the file, ``file-unreadable``.
    """
    try:
        data = os.pread(source, length, offset)
    except OSError as error:
        finding = Finding(
            code="file-unreadable",
            message=f"reading the source failed: {error.strerror}",
            hint="check the disk that holds the source",
        )
        raise CheckpointError(finding) from error
    if not data:
        raise CheckpointError(
            Finding(
                code="file-changed",
                message="a source file became shorter while it was in use",
                expected=f"{length} bytes at offset {offset}",
                found="the end of the file",
                hint="run again when nothing else writes to the checkpoint",
            )
        )
    return data
