from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_convert.checkpoint import transfer
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.transfer import copy_range, ranges_equal, same_tensor

from .helpers import codes

DATA = bytes(range(256)) * 64  # 16 KiB


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, int]]:
    (tmp_path / "source").write_bytes(DATA)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield source, target
    os.close(source)
    os.close(target)


def refuse_with(number: int):
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


def copy(files: tuple[int, int], offset: int, length: int, target_offset: int = 0) -> list[int]:
    pieces: list[int] = []
    copy_range(files[0], offset, length, files[1], target_offset, on_bytes=pieces.append)
    return pieces


@pytest.fixture(params=["kernel", "EXDEV", "EINVAL", "ENOSYS", "EOPNOTSUPP", "EPERM", "absent"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way of copying, in pieces of 1000 bytes so that a range takes several."""
    monkeypatch.setattr(transfer, "_KERNEL_CHUNK", 1000)
    monkeypatch.setattr(transfer, "_BUFFER", 1000)
    if request.param == "absent":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif request.param != "kernel":
        refuse = refuse_with(getattr(errno, request.param))
        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    return request.param


def test_copies_exactly_the_range(files, way: str) -> None:
    pieces = copy(files, 300, 2500, target_offset=7)
    assert os.pread(files[1], 10_000, 0) == bytes(7) + DATA[300:2800]
    assert pieces == [1000, 1000, 500]


def test_nothing_to_copy(files, way: str) -> None:
    assert copy(files, 300, 0) == []
    assert os.fstat(files[1]).st_size == 0


def test_source_that_ends_early(files, way: str) -> None:
    assert codes(lambda: copy(files, len(DATA) - 1500, 1501)) == ["file-changed"]


def test_kernel_that_gives_up_midway_is_taken_over(files, monkeypatch) -> None:
    if not hasattr(os, "copy_file_range"):
        pytest.skip("no copy_file_range here")
    real, calls = os.copy_file_range, []

    def once(*args: int) -> int:
        calls.append(args)
        return real(*args) if len(calls) == 1 else refuse_with(errno.EXDEV)()

    monkeypatch.setattr(os, "copy_file_range", once)
    monkeypatch.setattr(transfer, "_KERNEL_CHUNK", 1000)
    assert copy(files, 5, 3000) == [1000, 2000]
    assert os.pread(files[1], 10_000, 0) == DATA[5:3005]


def test_short_writes_are_completed(files, monkeypatch) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:77], at))
    copy(files, 0, 1000)
    assert os.pread(files[1], 10_000, 0) == DATA[:1000]


def test_error_of_the_source_disk_is_the_sources(files, monkeypatch) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    monkeypatch.setattr(os, "pread", refuse_with(errno.EIO))
    assert codes(lambda: copy(files, 0, 10)) == ["file-unreadable"]


def test_full_disk_stays_an_os_error(files) -> None:
    with Path("/dev/full").open("wb") as full, pytest.raises(OSError, match="No space"):
        copy((files[0], full.fileno()), 0, 10)


@settings(deadline=None)
@given(
    st.integers(0, 20_000),
    st.integers(1, 20_000),
    st.integers(0, 19_999),
    st.booleans(),
)
def test_equality_sees_one_byte(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, at: int, whole: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    at %= length
    data = os.urandom(16) * (length // 16 + 1)
    changed = bytearray(data)
    changed[at] ^= 1
    (folder / "first").write_bytes(bytes(start) + data)
    (folder / "second").write_bytes(data)
    (folder / "third").write_bytes(changed)
    names = ("first", "second", "third")
    first, second, third = (os.open(folder / name, os.O_RDONLY) for name in names)
    try:
        assert ranges_equal(first, start, second, 0, length, whole=whole)
        seen = whole or at < 4096 or at >= length - 4096
        assert ranges_equal(first, start, third, 0, length, whole=whole) is not seen
    finally:
        for descriptor in (first, second, third):
            os.close(descriptor)


@pytest.mark.parametrize("whole", [True, False])
def test_files_that_end_early_are_unequal(files, whole: bool) -> None:
    assert not ranges_equal(files[0], 0, files[0], 0, len(DATA) + 1, whole=whole)
    assert ranges_equal(files[0], 0, files[0], 0, len(DATA), whole=whole)
    assert ranges_equal(files[0], 0, files[0], 5, 0, whole=whole)


def test_whole_comparison_goes_through_every_buffer(files, monkeypatch) -> None:
    monkeypatch.setattr(transfer, "_BUFFER", 1000)
    os.write(files[1], DATA[:-1] + b"!")
    assert ranges_equal(*files[:1], 0, files[1], 0, len(DATA) - 1, whole=True)
    assert not ranges_equal(*files[:1], 0, files[1], 0, len(DATA), whole=True)


@pytest.mark.parametrize(
    ("dtype", "shape", "content", "whole", "common"),
    [
        ("BF16", (4, 2), DATA[:16], True, True),
        ("BF16", (3, 2), DATA[:12], False, True),
        ("BF16", (4, 2), DATA[:15] + b"!", False, False),
        ("BF16", (3, 2), DATA[:11] + b"!", False, False),
        ("BF16", (2, 4), DATA[:16], False, False),
        ("F16", (4, 2), DATA[:16], False, False),
    ],
)
def test_tensors_are_the_same_in_dtype_shape_and_bytes(
    dtype: str, shape: tuple[int, ...], content: bytes, whole: bool, common: bool, tmp_path: Path
) -> None:
    (tmp_path / "one").write_bytes(b"head" + DATA[:16])
    (tmp_path / "other").write_bytes(content)
    one = StoredTensor(tmp_path / "one", "one", "w", "BF16", (4, 2), 4, 16)
    other = StoredTensor(tmp_path / "other", "other", "v", dtype, shape, 0, len(content))
    for first, second in ((one, other), (other, one)):
        assert same_tensor(first, second) is whole
        assert same_tensor(first, second, common_rows=True) is common
