"""A file appears whole or not at all, and nothing that lies beside it is written to."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest

from dspark_convert.checkpoint import staged_file as module
from dspark_convert.checkpoint.staged_file import staged_file, write_file
from dspark_convert.errors import OutputError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(place: Path, text: bytes = b"new", *, alone: bool = False) -> None:
    with staged_file(place, alone=alone) as staged:
        os.write(staged.descriptor, text)


@pytest.mark.parametrize("former", [None, b"old"])
def test_the_file_takes_its_place_at_the_end(place: Path, former: bytes | None) -> None:
    if former is not None:
        place.write_bytes(former)
    with staged_file(place) as staged:
        os.write(staged.descriptor, b"new")
        assert staged.path.read_bytes() == b"new"
        assert not place.exists() if former is None else place.read_bytes() == former
    assert place.read_bytes() == b"new"
    assert names(place.parent) == [place.name]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_after_an_error_everything_is_as_it_was(place: Path, error: type[BaseException]) -> None:
    place.write_bytes(b"old")
    with pytest.raises(error), staged_file(place):
        raise error
    assert place.read_bytes() == b"old"
    assert names(place.parent) == [place.name]


def test_a_signal_is_an_error_of_the_block(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staged_file(place):
        os.kill(os.getpid(), signal.SIGINT)
    assert names(place.parent) == []


def test_clean_up_does_not_hide_why_it_was_needed(place: Path) -> None:
    def fail() -> None:
        with staged_file(place) as staged:
            staged.path.unlink()
            raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        fail()


def test_what_the_last_look_finds_stops_the_replacement(place: Path) -> None:
    place.write_bytes(b"old")

    def refuse() -> None:
        raise OSError("changed")

    with pytest.raises(OSError, match="changed"), staged_file(place, recheck=refuse):
        pass
    assert place.read_bytes() == b"old"
    assert names(place.parent) == [place.name]


def test_names_cannot_be_foreseen_and_what_was_planted_is_not_written_to(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = place.with_name("victim")
    victim.write_bytes(b"precious")
    planted = place.with_name(f".{place.name}.dspark-tmp-0badcafe")
    planted.symlink_to(victim)
    place.with_name(f".{place.name}.dspark-tmp").symlink_to(victim)
    place.with_name(f".{place.name}.tmp").symlink_to(victim)
    write(place)
    assert (place.read_bytes(), victim.read_bytes()) == (b"new", b"precious")
    assert planted.is_symlink()
    monkeypatch.setattr(module.secrets, "token_hex", lambda count: "0badcafe")
    with pytest.raises(FileExistsError):
        write(place)
    assert victim.read_bytes() == b"precious"


def test_a_second_name_of_a_file_is_taken_off_and_the_file_kept(place: Path) -> None:
    victim = place.with_name("victim")
    victim.write_bytes(b"precious")
    place.with_name(f".{place.name}.dspark-tmp-0badcafe").hardlink_to(victim)
    write(place)
    assert victim.read_bytes() == b"precious"
    assert names(place.parent) == [place.name, "victim"]


def test_what_a_killed_run_left_is_removed_and_what_a_run_holds_is_not(place: Path) -> None:
    orphan, held = (place.with_name(f".{place.name}.dspark-tmp-{n:08x}") for n in (1, 2))
    orphan.write_bytes(b"half")
    held.write_bytes(b"half")
    with held.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="output-busy"):
            write(place, alone=True)
        assert not place.exists()
        write(place)
    assert names(place.parent) == [held.name, place.name]


@pytest.mark.parametrize(
    "name",
    [
        ".out.json.dspark-tmp-0badcaf",
        ".out.json.dspark-tmp-0badcafe2",
        ".out2.json.dspark-tmp-0badcafe",
        "out.json.dspark-tmp-0badcafe",
    ],
)
def test_files_of_other_names_are_left_alone(place: Path, name: str) -> None:
    place.with_name(name).write_bytes(b"mine")
    write(place)
    assert place.with_name(name).read_bytes() == b"mine"


def test_a_fifo_and_a_folder_of_our_name_neither_block_nor_go(place: Path) -> None:
    os.mkfifo(place.with_name(f".{place.name}.dspark-tmp-00000001"))
    place.with_name(f".{place.name}.dspark-tmp-00000002").mkdir()
    write(place)
    assert len(names(place.parent)) == 3


def test_an_orphan_that_another_run_takes_first_is_made_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr(module, "_is_ours", lambda staged: next(answers))
    write(place)
    assert place.read_bytes() == b"new"


@pytest.mark.parametrize("length", [233, 234, 252, 255])
def test_any_name_that_a_file_can_have_can_be_written(tmp_path: Path, length: int) -> None:
    place = tmp_path / ("é" * (length // 2) + "r" * (length % 2))
    write(place)
    write(place, b"again")
    assert place.read_bytes() == b"again"
    assert names(tmp_path) == [place.name]


def test_a_long_name_does_not_keep_what_a_killed_run_left(tmp_path: Path) -> None:
    place = tmp_path / ("r" * 250)
    (tmp_path / f"{module._prefix(place)}00000001").write_bytes(b"half")
    write(place)
    assert names(tmp_path) == [place.name]


def test_a_folder_need_not_be_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        write(place)
    assert place.read_bytes() == b"new"


def test_write_file_follows_links_and_writes_to_pipes(place: Path) -> None:
    link, dangling = place.with_name("link"), place.with_name("dangling")
    link.symlink_to(place.name)
    dangling.symlink_to("made")
    write_file(link, b"through a link")
    write_file(dangling, b"made")
    assert (link.is_symlink(), place.read_bytes()) == (True, b"through a link")
    assert place.with_name("made").read_bytes() == b"made"
    source, sink = os.pipe()
    write_file(Path(f"/dev/fd/{sink}"), b"to a pipe")
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        assert stream.read() == b"to a pipe"
    with pytest.raises(IsADirectoryError):
        write_file(place.parent, b"")
