from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, serialize

from dspark_convert.checkpoint import header as header_module
from dspark_convert.checkpoint.dtypes import DTYPES
from dspark_convert.checkpoint.header import (
    MAX_HEADER_BYTES,
    Header,
    layout_entries,
    read_header,
    render_header,
    tensor_nbytes,
)
from dspark_convert.checkpoint.jsonfile import MAX_JSON_VALUES
from dspark_convert.errors import CheckpointError

from .helpers import codes, entry, pack

# Releases of the library know ever more dtypes, and are called in other ways.
pytestmark = pytest.mark.current

# What the library calls the dtypes when it writes; it has no name for the six-bit ones.
LIBRARY_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(lambda dims: (*dims, 4))  # F4, F6: whole bytes
SPECS = st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=8)
METADATA = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), NAMES, max_size=3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("header") / "model.safetensors"


def read_raw(path: Path, raw: bytes) -> Header:
    path.write_bytes(raw)
    return read_header(path)


def library_writes(tensors: dict[str, tuple[str, tuple[int, ...]]], metadata=None) -> bytes:
    """The bytes that the safetensors library makes of tensors filled with 0, 1, 2, ..."""
    buffers = {
        name: np.arange(math.prod(shape) * DTYPES[dtype].bits // 8).astype(np.uint8)
        for name, (dtype, shape) in tensors.items()
    }
    specs = {
        name: safetensors.TensorSpec(
            dtype=LIBRARY_NAMES[dtype],
            shape=list(shape),
            data_ptr=buffers[name].ctypes.data,
            data_len=buffers[name].nbytes,
        )
        for name, (dtype, shape) in tensors.items()
    }
    return bytes(serialize(specs, metadata=metadata))


def test_dtypes_are_those_of_the_library() -> None:
    with pytest.raises(SafetensorError) as caught:
        deserialize(pack({"a": entry("NONE", [1], 0, 1)}))
    listed = str(caught.value).partition("expected one of ")[2].partition(" at line")[0]
    # The order too: the library sorts tensors by it.
    assert [name.strip("` ") for name in listed.split(",")] == list(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_library_reads_what_is_rendered(dtype: str) -> None:
    data = bytes(range(DTYPES[dtype].bits))
    raw = render_header(layout_entries([("a", dtype, (2, 4))]), {}) + data
    ((name, info),) = deserialize(raw)
    assert (name, info["dtype"], info["shape"], bytes(info["data"])) == ("a", dtype, [2, 4], data)


@pytest.mark.parametrize("dtype", LIBRARY_NAMES)
def test_reads_what_the_library_writes(dtype: str, path: Path) -> None:
    raw = library_writes({"a": (dtype, (2, 4))})
    header = read_raw(path, raw)
    (only,) = header.entries
    assert (only.name, only.dtype, only.shape) == ("a", dtype, (2, 4))
    assert (only.begin, only.nbytes) == (0, len(raw) - header.data_begin)


@settings(deadline=None)
@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(LIBRARY_NAMES)), SHAPES), max_size=8),
    st.dictionaries(NAMES, NAMES, min_size=1, max_size=1),  # the library does not sort metadata
)
def test_rendered_header_is_byte_for_byte_that_of_the_library(tensors, metadata) -> None:
    entries = layout_entries((name, dtype, shape) for name, (dtype, shape) in tensors.items())
    rendered = render_header(entries, metadata)
    written = library_writes(tensors, metadata)
    assert written[: len(rendered)] == rendered
    assert len(written) == len(rendered) + sum(item.nbytes for item in entries)


@settings(deadline=None)
@given(SPECS, METADATA)
def test_any_layout_is_read_back_by_both(path: Path, specs, metadata) -> None:
    entries = layout_entries((name, dtype, shape) for name, (dtype, shape) in specs.items())
    rendered = render_header(entries, metadata)
    assert len(rendered) % 8 == 0
    raw = rendered + bytes(sum(item.nbytes for item in entries))
    header = read_raw(path, raw)
    assert header == Header(entries=entries, metadata=metadata, data_begin=len(rendered))
    assert {name: (info["dtype"], tuple(info["shape"])) for name, info in deserialize(raw)} == specs


@settings(deadline=None)
@given(SPECS, st.randoms(use_true_random=False))
def test_layout_does_not_depend_on_the_order_given(specs, random) -> None:
    listed = [(name, dtype, shape) for name, (dtype, shape) in specs.items()]
    expected = layout_entries(listed)
    random.shuffle(listed)
    assert layout_entries(listed) == expected


def test_metadata_are_sorted() -> None:
    assert render_header((), {"b": "1", "a": "2"}) == pack(
        b'{"__metadata__":{"a":"2","b":"1"}}      '
    )


VALID = pack(
    {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b": entry("BF16", [4], 24, 32),
    },
    bytes(32),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 33), st.integers(0, 255)), min_size=1))
def test_damaged_bytes_are_refused_or_still_valid_to_the_library(path: Path, edits) -> None:
    raw = bytearray(VALID)
    for position, value in edits[:4]:
        raw[position] = value
    try:
        header = read_raw(path, bytes(raw))
    except CheckpointError:
        return
    tensors = {
        name: (info["dtype"], tuple(info["shape"])) for name, info in deserialize(bytes(raw))
    }
    assert {item.name: (item.dtype, item.shape) for item in header.entries} == tensors


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 40) | st.floats() | st.sampled_from(["F32", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), JSON))
def test_any_json_is_refused_or_valid_to_the_library(path: Path, document) -> None:
    raw = pack(document, bytes(8))
    try:
        header = read_raw(path, raw)
    except CheckpointError:
        return
    assert len(deserialize(raw)) == len(header.entries)


@pytest.mark.parametrize(
    ("raw", "expected"),
    {
        "empty": (b"", ["file-truncated"]),
        "short": (b"\x10\0\0", ["file-truncated"]),
        "no-json": (b"\x10" + bytes(7), ["file-truncated"]),
        "cut-in-header": (VALID[:40], ["file-truncated"]),
        "cut-in-data": (VALID[:-1], ["file-truncated"]),
        "long": (VALID + b"\0", ["trailing-bytes"]),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ["lfs-pointer"]),
        "gguf": (b"GGUF\x03\0\0\0" + bytes(32), ["gguf"]),
        "pickle": (b"PK\x03\x04" + bytes(60), ["not-safetensors"]),
        "page": (b"<!DOCTYPE html><html></html>", ["not-safetensors"]),
        "list": (pack([]), ["not-safetensors"]),
        "huge-header": ((100_000_001).to_bytes(8, "little") + b"{}", ["not-safetensors"]),
        "large-header": (pack(b"{" + b" " * MAX_HEADER_BYTES + b"}"), ["header-too-large"]),
        "many-lists": (pack(b'{"a":[' + b"[]," * MAX_JSON_VALUES + b"[]]}"), ["bad-json"]),
        "bad-json": (pack(b"{]      "), ["bad-json"]),
        "name-twice": (pack(b'{"a":{},"a":{}}'), ["bad-json"]),
        "metadata-number": (pack({"__metadata__": {"a": 1}}), ["bad-header"]),
        "metadata-list": (pack({"__metadata__": []}), ["bad-header"]),
        "entry-text": (pack({"a": "x"}), ["bad-header"]),
        "entry-extra": (pack({"a": entry("U8", [0], 0, 0) | {"x": 1}}), ["bad-header"]),
        "negative": (pack({"a": entry("U8", [-1], 0, 0)}), ["bad-header"]),
        "true": (pack({"a": entry("U8", [True], 0, 1)}, b"0"), ["bad-header"]),
        "offsets": (pack({"a": {**entry("U8", [1], 0, 1), "data_offsets": [0]}}), ["bad-header"]),
        "dtype": (pack({"a": entry("F12", [1], 0, 1)}, b"0"), ["dtype-unknown"]),
        "dtype-list": (pack({"a": {**entry("", [1], 0, 1), "dtype": []}}), ["dtype-unknown"]),
        "size": (pack({"a": entry("F32", [2], 0, 4)}, bytes(4)), ["tensor-size-mismatch"]),
        "backwards": (pack({"a": entry("F32", [0], 4, 0)}, bytes(4)), ["tensor-size-mismatch"]),
        "half-byte": (pack({"a": entry("F4", [3], 0, 2)}, bytes(2)), ["tensor-size-mismatch"]),
        "overflow": (pack({"a": entry("U8", [2**62] * 9, 0, 0)}), ["tensor-size-mismatch"]),
        "zero-overflow": (
            pack({"a": entry("U8", [2**62] * 9 + [0], 0, 0)}),
            ["tensor-size-mismatch"],
        ),
        "gap": (pack({"a": entry("U8", [1], 1, 2)}, b"00"), ["data-gap"]),
        "overlap": (
            pack({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"000"),
            ["data-overlap"],
        ),
        "nested": (
            pack(
                {
                    "a": entry("U8", [4], 0, 4),
                    "b": entry("U8", [1], 1, 2),
                    "c": entry("U8", [1], 4, 5),
                },
                b"00000",
            ),
            ["data-overlap"],
        ),
        "all": (
            pack({"a": entry("U8", [1], 1, 2), "b": entry("U8", [1], 3, 4)}, b"0"),
            ["data-gap", "data-gap", "file-truncated"],
        ),
        "two-entries": (
            pack({"a": entry("U8", [1], 0, 2), "b": entry("X", [1], 3, 4)}, b"0"),
            ["tensor-size-mismatch", "dtype-unknown"],
        ),
    }.values(),
)
def test_refusals(raw: bytes, expected: list[str], path: Path) -> None:
    assert codes(lambda: read_raw(path, raw)) == expected


def test_refusal_of_a_thousand_bad_tensors_is_short(path: Path) -> None:
    raw = pack({str(number): entry("X", [1], 0, 1) for number in range(1000)})
    assert len(codes(lambda: read_raw(path, raw))) == 20
    raw = pack(
        {str(number): entry("U8", [1], 2 * number, 2 * number + 1) for number in range(1000)}
    )
    assert len(codes(lambda: read_raw(path, raw))) == 20


def test_null_metadata_is_no_metadata(path: Path) -> None:
    raw = pack({"__metadata__": None})
    assert deserialize(raw) == []
    assert read_raw(path, raw).metadata == {}


def test_file_that_shrinks_between_two_reads(path: Path, monkeypatch) -> None:
    path.write_bytes(VALID)
    status = os.stat_result((0o100644, 0, 0, 1, 0, 0, 10**6, 0, 0, 0))
    monkeypatch.setattr(header_module.os, "fstat", lambda descriptor: status)
    path.write_bytes(VALID[:30])
    assert codes(lambda: read_header(path)) == ["file-truncated"]


def test_data_are_never_read(path: Path) -> None:
    rendered = render_header(layout_entries([("a", "U8", (1 << 40,))]), {})
    path.write_bytes(rendered)
    os.truncate(path, len(rendered) + (1 << 40))  # a terabyte that takes no room
    assert read_header(path).entries[0].nbytes == 1 << 40
    path.unlink()


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("F32", (), 4),
        ("BF16", (3, 5), 30),
        ("F4", (3,), None),
        ("F6_E2M3", (4,), 3),
        ("U8", (0,), 0),
    ],
)
def test_tensor_nbytes(dtype: str, shape: tuple[int, ...], expected: int | None) -> None:
    assert tensor_nbytes(dtype, shape) == expected
