from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import threading
from collections import namedtuple
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dspark_convert.checkpoint import staging
from dspark_convert.checkpoint.interrupts import Interrupted
from dspark_convert.checkpoint.staging import staged_folder
from dspark_convert.errors import OutputError

from .helpers import codes


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def ours(folder: Path) -> bool:
    return (folder / "manifest").exists()


def staged(output: Path, **options) -> AbstractContextManager[Path]:
    defaults = {"overwrite": False, "owned": ours, "protected": (), "needed_bytes": 0}
    return staged_folder(output, **(defaults | options))


def write(output: Path, text: str = "new", **options) -> None:
    with staged(output, **options) as folder:
        (folder / "manifest").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text)


def content(folder: Path) -> dict[str, str]:
    """Every file under ``folder``, temporary ones too."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def tree(text: str) -> dict[str, str]:
    return {"output/manifest": text, "output/sub/file": text}


def leave_orphan(output: Path, *parts: str) -> Path:
    """The workplace of a process that was killed, as far as it had come."""
    folder = output.with_name(f".{output.name}.dspark-tmp-0badcafe")
    folder.mkdir()
    for part in parts:
        (folder / part).mkdir()
        (folder / part / "manifest").write_text(part)
    return folder


def fail_on_second_call(monkeypatch: pytest.MonkeyPatch, action) -> None:
    """Run ``action`` after the last check of the output, just before the swap."""
    real, calls = staging.replaceable, []

    def replaceable(place: Path, **options):
        result = real(place, **options)
        calls.append(place)
        if len(calls) == 2:
            action()
        return result

    monkeypatch.setattr(staging, "replaceable", replaceable)


def test_output_appears_whole_and_alone(output: Path) -> None:
    with staged(output) as folder:
        (folder / "manifest").write_text("new")
        assert not output.exists()
        assert folder.parent.parent == output.parent
    assert content(output.parent) == {"output/manifest": "new"}
    (output.parent / "ordinary").mkdir()
    assert output.stat().st_mode == (output.parent / "ordinary").stat().st_mode


def test_everything_is_synced_before_the_rename(output: Path, monkeypatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        assert output.exists() == (len(synced) == 4)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(output)
    assert synced == ["file", "sub", "manifest", "new", output.parent.name]


def test_folders_that_cannot_be_synced_are_fine(output: Path, monkeypatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "not a file")

    monkeypatch.setattr(os, "fsync", fsync)
    write(output)
    assert content(output.parent) == tree("new")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, BrokenPipeError])
def test_nothing_remains_after_an_exception(output: Path, error: type[BaseException]) -> None:
    def run() -> None:
        with staged(output) as folder:
            (folder / "manifest").write_text("half")
            raise error

    with pytest.raises(error):
        run()
    assert list(output.parent.iterdir()) == []


# What may be replaced


def test_existing_output_needs_overwrite(output: Path) -> None:
    write(output, "old")
    assert codes(lambda: write(output)) == ["output-exists"]
    assert content(output.parent) == tree("old")
    write(output, overwrite=True)
    assert content(output.parent) == tree("new")


def test_empty_folder_may_be_overwritten(output: Path) -> None:
    output.mkdir()
    assert codes(lambda: write(output)) == ["output-exists"]
    write(output, overwrite=True)
    assert content(output.parent) == tree("new")


def test_only_our_own_is_overwritten(output: Path) -> None:
    output.mkdir()
    (output / "photo").write_text("dear")
    assert codes(lambda: write(output, overwrite=True)) == ["output-not-ours"]
    assert content(output.parent) == {"output/photo": "dear"}


def test_output_that_stops_being_ours_during_the_run(output: Path) -> None:
    write(output, "old")

    def run() -> None:
        with staged(output, overwrite=True):
            (output / "manifest").unlink()

    assert codes(run) == ["output-not-ours"]
    assert content(output.parent) == {"output/sub/file": "old"}


def test_git_tree_is_never_overwritten(output: Path) -> None:
    write(output, "old")
    (output / ".git").write_text("gitdir: elsewhere")
    assert codes(lambda: write(output, overwrite=True)) == ["output-protected"]


def test_file_or_link_is_never_replaced(output: Path, tmp_path: Path) -> None:
    write(tmp_path / "real", "old")
    output.symlink_to("real")
    assert codes(lambda: write(output, overwrite=True)) == ["output-not-a-folder"]
    output.unlink()
    output.symlink_to("nowhere")
    assert codes(lambda: write(output, overwrite=True)) == ["output-not-a-folder"]
    output.unlink()
    output.write_text("file")
    assert codes(lambda: write(output, overwrite=True)) == ["output-not-a-folder"]
    assert output.read_text() == "file"


def test_protected_folders(tmp_path: Path) -> None:
    source = tmp_path / "above" / "source"
    source.mkdir(parents=True)
    (tmp_path / "link").symlink_to(source)

    def refused(output: Path, protected: Path = source) -> list[str]:
        options = {"overwrite": True, "owned": lambda folder: True, "protected": (protected,)}
        return codes(lambda: write(output, **options))

    assert refused(source) == ["output-protected"]
    assert refused(source / "inside") == ["output-protected"]
    assert refused(source.parent) == ["output-protected"]
    assert refused(source / ".." / "source") == ["output-protected"]
    assert refused(tmp_path / "link" / "inside") == ["output-protected"]
    assert refused(source, tmp_path / "link") == ["output-protected"]
    write(source.parent / "source-2", protected=(source,))  # a mere prefix is another folder


@pytest.mark.parametrize("spelling", [".", "..", "../here", "/", "above/.."])
def test_current_folder_and_those_above_are_kept(tmp_path, monkeypatch, spelling: str) -> None:
    here = tmp_path / "here"
    (here / "above").mkdir(parents=True)
    monkeypatch.chdir(here)
    options = {"overwrite": True, "owned": lambda folder: True}
    assert codes(lambda: write(Path(spelling), **options)) == ["output-protected"]


def test_relative_output(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("output"))
    assert content(tmp_path) == tree("new")


# Where it may go


def test_parent_must_exist(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for parent in ("absent", "file", "loop"):
        assert codes(lambda at=parent: write(tmp_path / at / "output")) == ["output-parent-missing"]


def test_parent_must_be_writable(output: Path, monkeypatch) -> None:
    def mkdir(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert codes(lambda: write(output)) == ["output-not-writable"]


def test_name_too_long(tmp_path: Path) -> None:
    assert codes(lambda: write(tmp_path / ("x" * 250))) == ["output-not-writable"]


def test_space_is_checked_first(output: Path, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 1, 99))
    write(output, needed_bytes=99)
    with pytest.raises(OutputError) as caught:
        write(output, needed_bytes=100, overwrite=True)
    (finding,) = caught.value.findings
    assert (finding.code, finding.expected) == ("disk-full", "100 bytes")
    assert finding.found == f"99 bytes free in {output.parent}"
    assert content(output.parent) == tree("new")


def test_disk_that_becomes_full(output: Path) -> None:
    def run() -> None:
        with staged(output), Path("/dev/full").open("w") as full:
            full.write("x")

    assert codes(run) == ["disk-full"]
    assert list(output.parent.iterdir()) == []


def test_disk_that_turns_out_full_when_synced(output: Path, monkeypatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", fsync)
    assert codes(lambda: write(output)) == ["disk-full"]
    assert list(output.parent.iterdir()) == []


# Two at a time


def test_second_writer_does_not_clobber_the_first(output: Path) -> None:
    def run() -> None:
        with staged(output) as folder:
            (folder / "manifest").write_text("late")
            write(output, "first")

    assert codes(run) == ["output-exists"]
    assert content(output.parent) == tree("first")


@pytest.mark.parametrize("exists", [True, False])
def test_second_overwriter_does_not_clobber_the_first(output: Path, exists: bool) -> None:
    if exists:
        write(output, "old")

    def run() -> None:
        with staged(output, overwrite=True) as folder:
            (folder / "manifest").write_text("late")
            write(output, "first", overwrite=True)

    assert codes(run) == ["output-changed"]
    assert content(output.parent) == tree("first")


def test_output_that_appears_at_the_last_moment(output: Path, monkeypatch) -> None:
    def appear() -> None:
        output.mkdir()
        (output / "photo").write_text("dear")

    fail_on_second_call(monkeypatch, appear)
    assert codes(lambda: write(output)) == ["output-changed"]
    assert content(output.parent) == {"output/photo": "dear"}


def test_file_that_appears_at_the_last_moment(output: Path, monkeypatch) -> None:
    fail_on_second_call(monkeypatch, lambda: output.write_text("dear"))
    assert codes(lambda: write(output)) == ["output-changed"]
    assert content(output.parent) == {"output": "dear"}


def test_output_that_vanishes_at_the_last_moment(output: Path, monkeypatch) -> None:
    write(output, "old")
    fail_on_second_call(monkeypatch, lambda: shutil.rmtree(output))
    assert codes(lambda: write(output, overwrite=True)) == ["output-changed"]
    assert list(output.parent.iterdir()) == []


def test_failed_swap_is_rolled_back(output: Path, monkeypatch) -> None:
    write(output, "old")

    def move_in(stage, place: Path) -> None:
        assert not place.exists()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(staging, "_move_in", move_in)
    assert codes(lambda: write(output, overwrite=True)) == ["output-not-writable"]
    assert content(output.parent) == tree("old")


def test_former_output_is_kept_when_the_roll_back_fails(output: Path, monkeypatch) -> None:
    write(output, "old")

    def move_in(stage, place: Path) -> None:
        place.write_text("dear")
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(staging, "_move_in", move_in)
    with pytest.raises(OutputError) as caught:
        write(output, overwrite=True)
    assert caught.value.code == "output-unrecovered"
    kept = Path(caught.value.findings[0].found or "")
    assert content(kept) == {"manifest": "old", "sub/file": "old"}
    assert output.read_text() == "dear"
    # Nor does the next run touch it, until somebody has decided.
    monkeypatch.undo()
    assert codes(lambda: write(output)) == ["output-unrecovered"]
    assert content(kept) == {"manifest": "old", "sub/file": "old"}
    output.unlink()
    assert codes(lambda: write(output)) == ["output-exists"]
    assert content(output.parent) == tree("old")


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
