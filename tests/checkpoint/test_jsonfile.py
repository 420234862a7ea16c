from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_convert.checkpoint.jsonfile import MAX_JSON_DEPTH, parse_json, read_json
from dspark_convert.errors import CheckpointError

from .helpers import codes

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abé"), inner),
)


@settings(deadline=None)
@given(VALUES, st.booleans())
def test_parses_what_json_writes(value, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode(), file="a") == value


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    with suppress(CheckpointError):
        parse_json(data, file="a")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1,}', "double quotes|trailing comma"),
        (b'{"a": 1, "b": 2, "a": 3}', "key 'a' occurs twice"),
        (b'[{"x": {"b": 1, "b": 1}}]', "key 'b' occurs twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"1e999", "beyond float64"),
        (b"9" * 5000, "a number has 5000 characters"),
        (b"0." + b"9" * 5000, "a number has 5002 characters"),
        (b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1), "deeper than 64"),
        (b'{"a":' * 100_000, "deeper than 64"),
        (b"[" * 500_000, "deeper than 64"),
        (b"[" * 1_000_000, "more than 600000 values"),
        (b"[" + b"0," * 600_000 + b"0]", "more than 600000 values"),
        (b'"\xff"', "utf-8"),
        (b'"\\ud800"', "surrogates"),
        (b'{"\\uDC00": 1}', "surrogates"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{} {}", "Extra data"),
    ],
)
def test_refusals(data: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason) as caught:
        parse_json(data, file="config.json")
    assert (caught.value.code, caught.value.findings[0].file) == ("bad-json", "config.json")


def test_depth_up_to_the_limit_is_read() -> None:
    text = b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH
    assert json.dumps(parse_json(text, file="a")).encode() == text


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[1, 2]")
    assert read_json(path, limit=6) == [1, 2]
    assert codes(lambda: read_json(path, limit=5)) == ["file-too-large"]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[]")
    (tmp_path / "link.json").symlink_to("real.json")
    assert read_json(tmp_path / "link.json") == []
    (tmp_path / "dangling.json").symlink_to("nowhere")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "null.json").symlink_to("/dev/null")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # an ordinary open would wait for a writer
    expected = {
        "absent": "file-missing",
        "dangling": "link-dangling",
        "loop": "file-unreadable",
        "null": "not-a-regular-file",
        "folder": "not-a-regular-file",
        "pipe": "not-a-regular-file",
    }
    found = {name: codes(lambda n=name: read_json(tmp_path / f"{n}.json")) for name in expected}
    assert found == {name: [code] for name, code in expected.items()}
