"""Digests that follow a file while it grows, and what they are when it does not."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_convert.checkpoint import digests
from dspark_convert.checkpoint.digests import FollowingDigest

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
    with FollowingDigest(descriptor, 100, available=len(DATA)) as digest:
        assert digest.hexdigest() == hashlib.sha256(DATA[:100]).hexdigest()
    with FollowingDigest(descriptor, 0) as digest:
        assert digest.hexdigest() == hashlib.sha256(b"").hexdigest()


def test_a_file_that_ends_early_has_none(descriptor: int) -> None:
    os.write(descriptor, DATA)
    with FollowingDigest(descriptor, len(DATA) + 1, available=len(DATA) + 1) as digest:
        assert digest.hexdigest() is None


def test_an_error_of_reading_is_told(descriptor: int, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with FollowingDigest(folder, 1, available=1) as digest, pytest.raises(IsADirectoryError):
            digest.hexdigest()
    finally:
        os.close(folder)


def test_leaving_early_ends_the_thread(descriptor: int) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="stop"), FollowingDigest(descriptor, 10):
        raise ValueError("stop")
    assert threading.active_count() == before
