from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from dspark_convert.checkpoint import staging
from dspark_convert.errors import OutputError

from .helpers import codes, content, staged, tree, write


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
