"""Staging after a process was killed, and while signals arrive."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from dspark_convert.checkpoint import staging
from dspark_convert.checkpoint.interrupts import Interrupted

from .helpers import codes, content, staged, tree, write


def leave_orphan(output: Path, *parts: str) -> Path:
    """The workplace of a process that was killed, as far as it had come."""
    folder = output.with_name(f".{output.name}.dspark-tmp-0badcafe")
    folder.mkdir()
    for part in parts:
        (folder / part).mkdir()
        (folder / part / "manifest").write_text(part)
    return folder


# Orphans


@pytest.mark.parametrize("parts", [(), ("new",), ("old",)])
def test_orphan_is_removed(output: Path, parts: tuple[str, ...]) -> None:
    leave_orphan(output, *parts)
    write(output)
    assert content(output.parent) == tree("new")
    assert [path.name for path in output.parent.iterdir()] == ["output"]


def test_names_are_not_patterns(tmp_path: Path) -> None:
    orphan, other = leave_orphan(tmp_path / "a+b"), leave_orphan(tmp_path / "aab")
    write(tmp_path / "a+b")
    assert (orphan.exists(), other.exists()) == (False, True)


def test_output_that_was_moved_aside_is_put_back_first(output: Path) -> None:
    leave_orphan(output, "new", "old")
    assert codes(lambda: write(output)) == ["output-exists"]
    assert content(output.parent) == {"output/manifest": "old"}


def test_orphan_does_not_remove_a_finished_output(output: Path) -> None:
    write(output, "finished")
    leave_orphan(output, "old")
    assert codes(lambda: write(output)) == ["output-exists"]
    assert content(output.parent) == tree("finished")


def test_living_workplace_is_left_alone(output: Path) -> None:
    folder = leave_orphan(output, "new")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    write(output)
    assert (folder / "new" / "manifest").exists()
    os.close(lock)
    write(output, overwrite=True)
    assert [path.name for path in output.parent.iterdir()] == ["output"]


@pytest.mark.parametrize(
    "name",
    [
        ".output.dspark-tmp-0badcaf",
        ".output.dspark-tmp-0badcafe2",
        ".output2.dspark-tmp-0badcafe",
        ".output.dspark-tmp-x.dspark-tmp-0badcafe",
        "output.dspark-tmp-0badcafe",
    ],
)
def test_other_names_are_left_alone(output: Path, name: str) -> None:
    (output.parent / name).mkdir()
    write(output)
    assert (output.parent / name).exists()


def test_file_and_link_of_that_name_are_left_alone(output: Path) -> None:
    (output.parent / "real").mkdir()
    (output.parent / ".output.dspark-tmp-00000001").symlink_to("real")
    (output.parent / ".output.dspark-tmp-00000002").touch()
    write(output)
    assert len(list(output.parent.iterdir())) == 4


def test_workplace_of_another_user_is_left_alone(output: Path, monkeypatch) -> None:
    leave_orphan(output, "new", "old")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    write(output)
    assert (output / "manifest").read_text() == "new"
    assert (output.parent / ".output.dspark-tmp-0badcafe" / "old").exists()


def test_disk_without_locks(output: Path, monkeypatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    leave_orphan(output, "new")
    monkeypatch.setattr(fcntl, "flock", flock)
    write(output)
    assert sorted(path.name for path in output.parent.iterdir()) == [
        ".output.dspark-tmp-0badcafe",
        "output",
    ]


def test_workplace_taken_for_an_orphan_before_it_was_locked(output: Path, monkeypatch) -> None:
    real, calls = staging._take_lock, []

    def take_lock(folder: Path) -> int:
        calls.append(folder)
        if len(calls) == 1:
            folder.rmdir()
        return real(folder)

    monkeypatch.setattr(staging, "_take_lock", take_lock)
    write(output)
    assert len(set(calls)) == 2
    assert content(output.parent) == tree("new")


def test_lock_of_a_workplace_that_is_being_removed_does_not_count(tmp_path, monkeypatch) -> None:
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BlockingIOError):
        staging._take_lock(tmp_path)


# Signals, in this process (test_signals.py kills others)

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def interrupted(action, signum: signal.Signals) -> None:
    """``action`` must end by the exception that stands for ``signum``."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises((KeyboardInterrupt, Interrupted)) as caught:
        action()
    if signum is signal.SIGINT:
        assert caught.type is KeyboardInterrupt
    else:
        assert caught.value.signum == signum
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_in_the_block(output: Path, signum: signal.Signals) -> None:
    def run() -> None:
        with staged(output) as folder:
            (folder / "manifest").write_text("half")
            signal.raise_signal(signum)
            passed.append(folder)

    passed: list[Path] = []
    interrupted(run, signum)
    assert passed == []
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_during_cleanup_waits(output: Path, signum: signal.Signals, monkeypatch) -> None:
    real = shutil.rmtree

    def rmtree(folder: Path, **options: bool) -> None:
        for number in SIGNALS:
            signal.raise_signal(number)
        real(folder, **options)

    def run() -> None:
        with staged(output) as folder:
            (folder / "manifest").write_text("half")
            signal.raise_signal(signum)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    interrupted(run, signum)
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_during_the_swap_waits(output: Path, signum: signal.Signals, monkeypatch) -> None:
    write(output, "old")
    real = staging._move_in

    def move_in(*args) -> None:
        signal.raise_signal(signum)
        real(*args)

    monkeypatch.setattr(staging, "_move_in", move_in)
    interrupted(lambda: write(output, overwrite=True), signum)
    assert content(output.parent) == tree("new")


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_before_the_block_begins(output: Path, signum: signal.Signals, monkeypatch) -> None:
    real = staging._create_stage

    def create_stage(place: Path):
        signal.raise_signal(signum)
        return real(place)

    began: list[Path] = []

    def run() -> None:
        with staged(output) as folder:
            began.append(folder)

    monkeypatch.setattr(staging, "_create_stage", create_stage)
    interrupted(run, signum)
    assert began == []
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_just_before_the_cleanup_holds_it_off(output, signum, monkeypatch) -> None:
    class LateGuard(staging.SignalGuard):
        def hold(self) -> None:
            signal.raise_signal(signum)
            super().hold()

    monkeypatch.setattr(staging, "SignalGuard", LateGuard)
    interrupted(lambda: write(output), signum)
    assert list(output.parent.iterdir()) == []


def test_ignored_signal_stays_ignored(output: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with staged(output) as folder:
            signal.raise_signal(signal.SIGHUP)
            (folder / "manifest").write_text("new")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert content(output.parent) == {"output/manifest": "new"}


def test_other_threads_may_stage_too(output: Path) -> None:
    thread = threading.Thread(target=write, args=(output,))
    thread.start()
    thread.join()
    assert content(output.parent) == tree("new")
