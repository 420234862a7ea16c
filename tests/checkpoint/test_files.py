from __future__ import annotations

import os
from pathlib import Path

import pytest

from dspark_convert.checkpoint import files
from dspark_convert.checkpoint.files import open_regular, read_range, require_model_documents

from .helpers import codes


def opened(path: Path) -> bytes:
    with open_regular(path) as descriptor:
        return read_range(descriptor, 0, 100)


def test_descriptor_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with open_regular(tmp_path / "file") as descriptor:
        assert read_range(descriptor, 1, 2) == b"ex"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_device_is_not_even_opened(tmp_path: Path, monkeypatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(os, "open", lambda *args: calls.append(args))
    assert codes(lambda: opened(Path("/dev/null"))) == ["not-a-regular-file"]
    assert calls == []


def test_pipe_that_takes_the_place_of_a_file_does_not_block(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    regular = (tmp_path / "file").stat()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "stat", lambda path: regular)
    assert codes(lambda: opened(tmp_path / "pipe")) == ["not-a-regular-file"]


@pytest.mark.parametrize("start", [0, 3])
def test_ranges_are_put_together_from_short_reads(tmp_path: Path, monkeypatch, start: int) -> None:
    monkeypatch.setattr(files, "_READ_CHUNK", 4)
    (tmp_path / "file").write_bytes(b"0123456789")
    with open_regular(tmp_path / "file") as descriptor:
        assert read_range(descriptor, start, 7) == b"0123456789"[start : start + 7]
        assert read_range(descriptor, start, 100) == b"0123456789"[start:]
        assert read_range(descriptor, start, 0) == b""


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 300])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    assert codes(lambda: opened(tmp_path / name)) == ["file-unreadable"]


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja", "merges.txt"])
def test_a_model_folder_holds_no_document_that_blocks_or_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "assets.json").mkdir()
    (tmp_path / "dangling.json").symlink_to("absent")
    (tmp_path / "socket-of-something-else").symlink_to("/dev/null")
    require_model_documents(tmp_path)
    (tmp_path / name).symlink_to("/dev/zero")
    assert codes(lambda: require_model_documents(tmp_path)) == ["not-a-regular-file"]
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert codes(lambda: require_model_documents(tmp_path)) == ["not-a-regular-file"]
    (tmp_path / name).unlink()
    (tmp_path / name).write_text("four")
    monkeypatch.setattr(files, "MAX_DOCUMENT_BYTES", 3)
    assert codes(lambda: require_model_documents(tmp_path)) == ["file-too-large"]
