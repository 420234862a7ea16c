"""Headers of safetensors files: read and checked, laid out, rendered. No tensor data is touched.

A file is an 8-byte little-endian length, that many bytes of JSON, then the data section. The JSON
maps each tensor name to its dtype, shape and byte range in the data section; the key
``__metadata__`` maps strings to strings. The ranges cover the data section exactly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.dtypes import DTYPES
from dspark_convert.checkpoint.files import open_regular, read_range
from dspark_convert.checkpoint.jsonfile import Json, parse_json
from dspark_convert.errors import CheckpointError, Finding

MAX_HEADER_BYTES = 16_000_000
"""For a hundred thousand tensors. The safetensors library allows 100 MB, which nobody needs."""

_LIBRARY_HEADER_BYTES = 100_000_000

_DTYPE_RANK = {dtype: rank for rank, dtype in enumerate(DTYPES)}
_METADATA_KEY = "__metadata__"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
_LENGTH_BYTES = 8
_MAX_BITS = 1 << 66  # 2**63 bytes: what a 64-bit size can say
_MAX_FINDINGS = 20  # per file: otherwise a damaged header would repeat itself for every tensor
_MAX_SHOWN = 120  # characters of an untrusted value in a message
_DAMAGED = "download or copy the file again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of one file; ``begin`` and ``end`` are byte offsets in the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: ``entries`` in data order, ``data_begin`` an absolute file offset."""

    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    data_begin: int


def read_header(path: Path) -> Header:
    """Read a header and check it against the size of the file.

    Raises ``CheckpointError`` with all findings (20 at most): ``lfs-pointer``, ``gguf``,
    ``not-safetensors``, ``file-truncated``, ``header-too-large``, ``bad-json``, ``bad-header``,
    ``dtype-unknown``, ``tensor-size-mismatch``, ``data-gap``, ``data-overlap``,
    ``trailing-bytes``, and those of `open_regular`.
    """
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        length = _header_length(read_range(descriptor, 0, 64), size, path.name)
        text = read_range(descriptor, _LENGTH_BYTES, length)
    if len(text) < length:
        raise _truncated(path.name, _LENGTH_BYTES + length, _LENGTH_BYTES + len(text))
    document = _header_document(text, path.name)
    metadata = _metadata(document.pop(_METADATA_KEY, None), path.name)
    entries = _entries(document, path.name)
    data_begin = _LENGTH_BYTES + length
    _check_coverage(entries, size - data_begin, path.name)
    return Header(entries=entries, metadata=metadata, data_begin=data_begin)


def tensor_nbytes(dtype: str, shape: Iterable[int]) -> int | None:
    """Bytes of a tensor; None if it does not fill whole bytes or its size exceeds 64 bits."""
    bits = DTYPES[dtype].bits
    for dimension in shape:
        bits *= dimension
        if bits > _MAX_BITS:
            return None
    return None if bits % 8 else bits // 8


def layout_entries(specs: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[TensorEntry, ...]:
    """Place tensors ``(name, dtype, shape)`` in the order in which the safetensors library does.

    That order (dtype, widest first, then name) keeps every tensor aligned and depends on nothing
    but the set of tensors. Names must be distinct and dtypes known.
    """
    entries: list[TensorEntry] = []
    offset = 0
    for name, dtype, shape in sorted(specs, key=lambda spec: (-_DTYPE_RANK[spec[1]], spec[0])):
        nbytes = tensor_nbytes(dtype, shape)
        assert nbytes is not None, f"{name}: {dtype} {shape} has no size in bytes"
        entries.append(TensorEntry(name, dtype, tuple(shape), offset, offset + nbytes))
        offset += nbytes
    assert len({entry.name for entry in entries}) == len(entries), "tensor names repeat"
    return tuple(entries)


def render_header(entries: Iterable[TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file up to its data section: length, then JSON padded to a multiple of 8.

    Metadata come first, sorted; tensors keep the order given. An empty ``metadata`` is left out.
    """
    tensors = {
        entry.name: {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.begin, entry.end),
        }
        for entry in entries
    }
    assert _METADATA_KEY not in tensors, "the name is reserved"
    first = {_METADATA_KEY: dict(sorted(metadata.items()))} if metadata else {}
    document = {**first, **tensors}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    assert len(text) <= MAX_HEADER_BYTES, "no loader would read a header of this size"
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _header_length(start: bytes, size: int, file: str) -> int:
    """The length of the JSON, after every check that the first bytes and the size allow."""
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            Finding(
                code="lfs-pointer",
                message="this is a Git LFS pointer, not the file that it stands for",
                file=file,
                hint="run `git lfs pull` in the repository, or download from the Hub",
            )
        )
    if start.startswith(b"GGUF"):
        raise CheckpointError(gguf_finding(file))
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if size > _LENGTH_BYTES and (length > _LIBRARY_HEADER_BYTES or start[8:9] != b"{"):
        raise CheckpointError(
            Finding(
                code="not-safetensors",
                message="the file does not start like a safetensors file",
                file=file,
                expected=f"a length of at most {_LIBRARY_HEADER_BYTES}, then '{{'",
                found=f"{start[:9]!r}",
                hint=_DAMAGED,
            )
        )
    if size < _LENGTH_BYTES + max(length, 2):
        raise _truncated(file, _LENGTH_BYTES + max(length, 2), size)
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            Finding(
                code="header-too-large",
                message="the header is larger than that of any sensible checkpoint",
                file=file,
                expected=f"at most {MAX_HEADER_BYTES} bytes",
                found=f"{length} bytes",
                hint="save the checkpoint in shards, or without its metadata",
            )
        )
    return length


def gguf_finding(file: str) -> Finding:
    """The refusal of a GGUF file, whatever its name."""
    return Finding(
        code="gguf",
        message="this is a GGUF file, which is not supported",
        file=file,
        hint="convert from the safetensors checkpoint that the GGUF file was made of",
    )


def _truncated(file: str, expected: int, found: int) -> CheckpointError:
    return CheckpointError(
        Finding(
            code="file-truncated",
            message="the file ends before its content does",
            file=file,
            expected=f"{expected} bytes or more",
            found=f"{found} bytes",
            hint=_DAMAGED,
        )
    )


def _bad_header(
    file: str, message: str, *, tensor: str | None = None, key: str | None = None
) -> CheckpointError:
    return CheckpointError(
        Finding(
            code="bad-header", message=message, file=file, tensor=tensor, key=key, hint=_DAMAGED
        )
    )


def _header_document(text: bytes, file: str) -> dict[str, Json]:
    document = parse_json(text, file=file)
    assert isinstance(document, dict), "text that begins with '{' parses to an object"
    return document


def _metadata(value: Json, file: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _bad_header(file, "metadata must map strings to strings", key=_METADATA_KEY)
    return value


def _entries(document: dict[str, Json], file: str) -> tuple[TensorEntry, ...]:
    entries: list[TensorEntry] = []
    findings: list[Finding] = []
    for name, value in document.items():
        try:
            entries.append(_entry(name, value, file))
        except CheckpointError as error:
            findings.extend(error.findings)
            if len(findings) == _MAX_FINDINGS:
                break
    if findings:
        raise CheckpointError(*findings)
    return tuple(sorted(entries, key=lambda entry: (entry.begin, entry.end)))


def _entry(name: str, value: Json, file: str) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != _ENTRY_KEYS:
        raise _bad_header(file, "an entry has dtype, shape and data_offsets", tensor=name)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _bad_header(file, "shape and data_offsets are lists of sizes", tensor=name)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            Finding(
                code="dtype-unknown",
                message="the dtype is not one of the safetensors format",
                file=file,
                tensor=name,
                expected=", ".join(DTYPES),
                found=repr(dtype)[:_MAX_SHOWN],
                hint="a newer dspark-convert may know it",
            )
        )
    entry = TensorEntry(name, dtype, tuple(shape), offsets[0], offsets[1])
    nbytes = tensor_nbytes(dtype, shape)
    if entry.nbytes != nbytes:
        raise CheckpointError(
            Finding(
                code="tensor-size-mismatch",
                message=f"the byte range does not fit {dtype} of shape {shape}"[:_MAX_SHOWN],
                file=file,
                tensor=name,
                expected="a whole number of bytes" if nbytes is None else f"{nbytes} bytes",
                found=f"{entry.nbytes} bytes",
                hint=_DAMAGED,
            )
        )
    return entry


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 1 << 63 for item in value
    )


def _check_coverage(entries: tuple[TensorEntry, ...], data_bytes: int, file: str) -> None:
    """Entries must follow each other without gap or overlap and fill the data section."""
    findings = list(_coverage_findings(entries, file))
    end = max((entry.end for entry in entries), default=0)
    if end > data_bytes:
        findings.extend(_truncated_data(entries, data_bytes, file))
    elif end < data_bytes:
        findings.append(
            Finding(
                code="trailing-bytes",
                message="the file goes on after its last tensor",
                file=file,
                expected=f"{end} bytes of data",
                found=f"{data_bytes} bytes of data",
                hint=_DAMAGED,
            )
        )
    if findings:
        raise CheckpointError(*findings[:_MAX_FINDINGS])


def _coverage_findings(entries: tuple[TensorEntry, ...], file: str) -> Iterator[Finding]:
    end = 0
    for entry in entries:
        if entry.begin != end:
            gap = entry.begin > end
            yield Finding(
                code="data-gap" if gap else "data-overlap",
                message="bytes before the tensor belong to none"
                if gap
                else "the tensor shares bytes with another",
                file=file,
                tensor=entry.name,
                expected=f"offset {end}",
                found=f"offset {entry.begin}",
                hint=_DAMAGED,
            )
        end = max(end, entry.end)


def _truncated_data(
    entries: tuple[TensorEntry, ...], data_bytes: int, file: str
) -> Iterator[Finding]:
    cut = [entry for entry in entries if entry.end > data_bytes]
    yield Finding(
        code="file-truncated",
        message=f"the file ends before its content does; {len(cut)} tensors are incomplete",
        file=file,
        tensor=cut[0].name,
        expected=f"{cut[-1].end} bytes of data",
        found=f"{data_bytes} bytes of data",
        hint=_DAMAGED,
    )
