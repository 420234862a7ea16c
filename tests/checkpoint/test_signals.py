"""Processes that are killed in the middle of their work."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .helpers import content, tree, write

ROOT = Path(__file__).parents[2]

# Writes an output, and halts at the step named by the third argument.
CHILD = """
import os, sys, time
from pathlib import Path
from dspark_convert.checkpoint import staging
from dspark_convert.checkpoint.interrupts import Interrupted
from dspark_convert.checkpoint.transfer import copy_range

source, output, step = sys.argv[1:]

def halt(*args, **options):
    print("halted", flush=True)
    time.sleep(60)

def copy(folder):
    with open(source, "rb") as read, open(folder / "manifest", "wb") as written:
        on_bytes = halt if step == "copying" else lambda count: None
        copy_range(read.fileno(), 0, 3, written.fileno(), 0, on_bytes=on_bytes)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(Path(source).read_bytes())

if step == "syncing":
    staging._sync_tree = halt
if step == "swapping":
    staging._move_in = halt
if step == "removing":
    staging._Stage.remove = halt
try:
    with staging.staged_folder(
        Path(output), overwrite=True, owned=lambda path: True, protected=(), needed_bytes=0
    ) as folder:
        copy(folder)
except Interrupted as interrupted:
    sys.exit(128 + interrupted.signum)
except KeyboardInterrupt:
    sys.exit(130)
"""


def kill(tmp_path: Path, step: str, signum: signal.Signals, *later: signal.Signals) -> int:
    """Run the child until it halts in ``step``, send the signals; its exit status."""
    source = tmp_path.with_name(tmp_path.name + "-source")
    source.write_text("new")
    command = [sys.executable, "-c", CHILD, str(source), str(tmp_path / "output"), step]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "halted\n"
        for number in (signum, *later):
            child.send_signal(number)
        return child.wait(timeout=10)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("step", ["copying", "syncing"])
def test_signal_leaves_nothing(tmp_path: Path, step: str, signum: signal.Signals) -> None:
    write(tmp_path / "output", "old")
    assert kill(tmp_path, step, signum) == 128 + signum
    assert content(tmp_path) == tree("old")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_two_signals_leave_nothing(tmp_path: Path) -> None:
    assert kill(tmp_path, "copying", signal.SIGTERM, signal.SIGINT) in (130, 143)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize(
    ("step", "after"),
    [("copying", "old"), ("syncing", "old"), ("swapping", "old"), ("removing", "new")],
)
def test_killed_process_is_cleaned_up_after(
    tmp_path: Path, step: str, after: str, existing: bool
) -> None:
    output = tmp_path / "output"
    if existing:
        write(output, "old")
    assert kill(tmp_path, step, signal.SIGKILL) == -signal.SIGKILL
    if step != "swapping":  # there the old output waits aside to be put back
        expected = after if existing or after == "new" else None
        assert (output / "manifest").exists() == (expected is not None)
        assert expected is None or (output / "manifest").read_text() == expected
    assert len(list(tmp_path.glob(".output.dspark-tmp-*"))) == 1

    seen: list[str] = []
    write(output, "third", overwrite=True, owned=lambda at: seen.append(tree_text(at)) or True)
    # What the next run found at the output is what the killed one owed.
    assert set(seen) == ({after} if existing or after == "new" else set())
    assert content(tmp_path) == tree("third")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def tree_text(folder: Path) -> str:
    (text,) = set(content(folder).values())
    return text
