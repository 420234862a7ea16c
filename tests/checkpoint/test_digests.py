"""Digests that follow a file while it grows, and what they are when it does not."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_convert.checkpoint import digests
from dspark_convert.checkpoint.digests import FollowingDigest, SourceDigests
from dspark_convert.checkpoint.folder import open_checkpoint
from dspark_convert.errors import CheckpointError

from .helpers import write_sharded

DATA = bytes(range(256)) * 40


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("buffer", [1 << 20, 1000, 1])
def test_it_is_the_digest_of_what_was_written(
    descriptor: int, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_BUFFER", buffer)
    with FollowingDigest(descriptor, len(DATA)) as digest:
        for start in range(0, len(DATA), 700):
            digest.advance(os.pwrite(descriptor, DATA[start : start + 700], start))
        assert digest.hexdigest() == hashlib.sha256(DATA).hexdigest()


def test_only_the_bytes_asked_for_count(descriptor: int) -> None:
    os.write(descriptor, DATA)
    with FollowingDigest(descriptor, 100) as digest:
        digest.advance(len(DATA))
        assert digest.hexdigest() == hashlib.sha256(DATA[:100]).hexdigest()
    with FollowingDigest(descriptor, 0) as digest:
        assert digest.hexdigest() == hashlib.sha256(b"").hexdigest()


def test_a_file_that_ends_early_has_none(descriptor: int) -> None:
    os.write(descriptor, DATA)
    with FollowingDigest(descriptor, len(DATA) + 1) as digest:
        digest.advance(len(DATA) + 1)
        assert digest.hexdigest() is None


def test_an_error_of_reading_is_told(descriptor: int, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with FollowingDigest(folder, 1) as digest:
            digest.advance(1)
            with pytest.raises(IsADirectoryError):
                digest.hexdigest()
    finally:
        os.close(folder)


def test_leaving_early_ends_the_thread(descriptor: int) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="stop"), FollowingDigest(descriptor, 10):
        raise ValueError("stop")
    assert threading.active_count() == before


def test_files_of_a_source_are_hashed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_BUFFER", 7)
    folder = write_sharded(tmp_path / "draft")
    with SourceDigests(open_checkpoint(folder).files) as taken:
        found = taken.hexdigests()
    assert found == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("*.safetensors")
    }


def test_a_source_that_goes_or_shrinks_meanwhile_is_refused(tmp_path: Path) -> None:
    files = open_checkpoint(write_sharded(tmp_path / "draft")).files
    os.truncate(files[0].path, 20)
    with SourceDigests(files) as taken, pytest.raises(CheckpointError, match="file-changed"):
        taken.hexdigests()
    shutil.rmtree(tmp_path / "draft")
    with SourceDigests(files) as taken, pytest.raises(CheckpointError, match="file-missing"):
        taken.hexdigests()


def test_leaving_early_ends_the_thread_of_a_source(tmp_path: Path) -> None:
    before = threading.active_count()
    with SourceDigests(open_checkpoint(write_sharded(tmp_path / "draft")).files):
        pass
    assert threading.active_count() == before
