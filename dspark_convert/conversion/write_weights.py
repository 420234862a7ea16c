"""Write the weight files of a result, and hash what is read and written while the bytes move."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.digests import FollowingDigest, SourceDigests
from dspark_convert.checkpoint.files import open_regular
from dspark_convert.checkpoint.folder import WeightFile
from dspark_convert.checkpoint.transfer import copy_range, write_at
from dspark_convert.conversion.assembled import Assembled
from dspark_convert.conversion.weights import OutputWeights
from dspark_convert.errors import CheckpointError, Findings

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class WeightDigests:
    """SHA-256 of all bytes of weight files, by name: those written, and those of the source."""

    output: dict[str, str]
    source: dict[str, str]


def write_weights(
    files: Iterable[OutputWeights], folder: Path, source: Sequence[WeightFile], on_bytes: OnBytes
) -> WeightDigests:
    """Write ``files`` into ``folder``, which holds none of them yet.

    Args:
        files: as planned.
        folder: where they go.
        source: the weight files of the draft; each is hashed whole. Those of a target are not: a
            conversion reads an embedding and a head from them, not gigabytes of layers.
        on_bytes: called with the size of every piece of a tensor that was copied.

    Raises:
        CheckpointError: ``cached-file-corrupt`` if a file of the Hub cache is not what the Hub
            has; ``file-changed``, ``file-unreadable`` and those of ``open_regular``. Write
            errors stay ``OSError``.
    """
    with SourceDigests(source) as digests:
        written = {file.name: _write_file(file, folder / file.name, on_bytes) for file in files}
        read = digests.hexdigests()
    _require_what_the_hub_has(source, read)
    return WeightDigests(written, read)


def _write_file(file: OutputWeights, path: Path, on_bytes: OnBytes) -> str:
    """Write one file; its SHA-256."""
    with ExitStack() as stack:
        output = stack.enter_context(_created(path))
        digest = stack.enter_context(FollowingDigest(output, file.size))

        def on_copied(count: int) -> None:
            digest.advance(count)
            on_bytes(count)

        sources: dict[Path, int] = {}
        write_at(output, 0, file.header)
        digest.advance(len(file.header))
        for entry in file.entries:
            content = file.pieces[entry.name].content
            offset = len(file.header) + entry.begin
            if isinstance(content, bytes):
                write_at(output, offset, content)
                digest.advance(len(content))
                continue
            stored = content.stored if isinstance(content, Assembled) else content
            if stored is not None and stored.path not in sources:
                opened = open_regular(stored.path, file=stored.file)
                sources[stored.path] = stack.enter_context(opened)
            if isinstance(content, Assembled):
                descriptor = sources[stored.path] if stored else None
                _write_blocks(content, descriptor, output, offset, on_copied)
                continue
            descriptor = sources[content.path]
            copy_range(
                descriptor, content.offset, content.nbytes, output, offset, on_bytes=on_copied
            )
        os.fsync(output)  # the disk works while the digests catch up
        sha256 = digest.hexdigest()
    assert sha256 is not None, "all bytes were written"
    return sha256


def _write_blocks(
    content: Assembled, source: int | None, output: int, offset: int, on_bytes: OnBytes
) -> None:
    for first, end in content.blocks():
        block = content.read(source, first, end)
        write_at(output, offset + first * content.row_bytes, block)
        on_bytes(len(block))


@contextmanager
def _created(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _require_what_the_hub_has(source: Iterable[WeightFile], read: dict[str, str]) -> None:
    findings = Findings()
    for file in source:
        if file.hub_sha256 not in (None, read[file.name]):
            findings.error(
                "cached-file-corrupt",
                "the file in the Hub cache has the right size but different bytes from the Hub's",
                file=file.name,
                expected=f"SHA-256 {file.hub_sha256}",
                found=f"SHA-256 {read[file.name]}",
                hint=f"delete {file.path} and run again to download it anew",
            )
    findings.raise_errors(CheckpointError)
