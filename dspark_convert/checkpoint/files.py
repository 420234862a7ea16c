"""Opening and reading files that are not trusted: regular files only, bounded, never blocking."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark_convert.errors import CheckpointError, Finding

_HASH_CHUNK = 8 << 20
MAX_DOCUMENT_BYTES = 500_000_000  # of a model; the largest tokenizers take some 35 MB
_MODEL_SUFFIXES = frozenset(
    {".jinja", ".json", ".model", ".py", ".safetensors", ".tiktoken", ".txt"}
)
_READ_CHUNK = 1 << 30  # Linux and macOS cut a single read short near 2 GiB


@contextmanager
def open_regular(path: Path, *, file: str | None = None) -> Iterator[int]:
    """Open a regular file, or a link to one, for reading; yields the descriptor.

    ``file`` is the name used in errors (default: the last part of ``path``). Raises
    ``CheckpointError``: ``file-missing``, ``link-dangling``, ``file-unreadable``,
    ``not-a-regular-file``.
    """
    descriptor = _open(path, file or path.name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_range(descriptor: int, offset: int, length: int) -> bytes:
    """``length`` bytes from ``offset``; fewer only if the file ends sooner."""
    parts = []
    while length > 0:
        part = os.pread(descriptor, min(length, _READ_CHUNK), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def hash_range(descriptor: int, end: int, *, start: bytes = b"", method: str = "sha256") -> str:
    """Digest, in hex, of ``start`` and the first ``end`` bytes of an open file."""
    digest = hashlib.new(method, start, usedforsecurity=False)
    for offset in range(0, end, _HASH_CHUNK):
        digest.update(read_range(descriptor, offset, min(_HASH_CHUNK, end - offset)))
    return digest.hexdigest()


def read_limited(path: Path, *, limit: int) -> bytes:
    """The whole file, refused with ``file-too-large`` above ``limit`` bytes; see `open_regular`."""
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise CheckpointError(_too_large(path, size, limit))
        return read_range(descriptor, 0, size)


def is_folder(path: Path) -> bool:
    """Whether a folder is there; False where the system cannot tell, as for too long a name."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises there


def require_model_documents(folder: Path) -> None:
    """Refuse a folder in which a library that reads all of it would wait or fill the memory.

    Looks at what libraries open in the folder of a model: a pipe or device is refused with
    ``not-a-regular-file``, a document above 500 MB with ``file-too-large``.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix not in _MODEL_SUFFIXES or path.is_dir():
            continue
        try:
            status = path.stat()
        except OSError:  # leads nowhere, or is unreadable: the library says so
            continue
        _require_regular(status.st_mode, path.name)
        if path.suffix != ".safetensors" and status.st_size > MAX_DOCUMENT_BYTES:
            raise CheckpointError(_too_large(path, status.st_size, MAX_DOCUMENT_BYTES))


def _open(path: Path, file: str) -> int:
    try:
        # Look before opening: merely opening some devices has effects.
        _require_regular(path.stat().st_mode, file)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError(_missing(path, file)) from error
    except OSError as error:
        raise CheckpointError(
            Finding(
                code="file-unreadable",
                message=f"the file cannot be opened: {error.strerror}",
                file=file,
                hint="check the permissions of the file and its folder",
            )
        ) from error
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise CheckpointError(
            Finding(
                code="file-unreadable",
                message="no file can have this name",
                file=repr(file),
                hint="correct the name, wherever it is given",
            )
        ) from error
    try:
        _require_regular(os.fstat(descriptor).st_mode, file)
    except CheckpointError:
        os.close(descriptor)
        raise
    return descriptor


def _too_large(path: Path, size: int, limit: int) -> Finding:
    return Finding(
        code="file-too-large",
        message="the file is larger than any sensible file of its kind",
        file=path.name,
        expected=f"at most {limit} bytes",
        found=f"{size} bytes",
        hint="check that this is the file you meant",
    )


def _missing(path: Path, file: str) -> Finding:
    if path.is_symlink():
        return Finding(
            code="link-dangling",
            message="the link points to a file that does not exist",
            file=file,
            found=str(path.readlink()),
            hint="download the checkpoint again; an interrupted download leaves such links",
        )
    return Finding(
        code="file-missing",
        message="the file does not exist",
        file=file,
        hint="check the path; if the checkpoint lacks the file, it was not copied completely",
    )


def _require_regular(mode: int, file: str) -> None:
    if stat.S_ISREG(mode):
        return
    kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
    raise CheckpointError(
        Finding(
            code="not-a-regular-file",
            message="only a regular file, or a link to one, is read",
            file=file,
            expected="a regular file",
            found=kind,
            hint="put the file itself there",
        )
    )
