"""Ctrl-C, whenever it comes: code 130, one line, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRAFT = "{golden}/spec_vanilla_reduced_anchor_bf16/checkpoint"

START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{before})
from dspark_convert.cli import entry

def strike():
    os.kill(os.getpid(), signal.SIGINT)

{trap}
program, *sys.argv[1:] = sys.argv[1:]
getattr(entry, program)()
"""

AT_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            strike()
sys.meta_path.insert(0, Finder())
"""

AT_EXIT = "import atexit; atexit.register(strike)"

IN_A_FINALISER = """
from dspark_convert.conversion import inspection

class Finalised:
    def __del__(self):
        strike()
        sum(range(10))

real = inspection.inspect_draft

def inspect_draft(*arguments, **options):
    Finalised()
    return real(*arguments, **options)

inspection.inspect_draft = inspect_draft
"""

AT_WORK = "from dspark_convert.hub import sources; sources.opened_headers = lambda *a: strike()"


def run(
    golden: Path, trap: str, *arguments: str, before: str = "default_int_handler"
) -> subprocess.CompletedProcess[str]:
    script = START.format(trap=trap, before=before)
    placed = [argument.format(golden=golden) for argument in arguments]
    command = [sys.executable, "-c", script, *placed]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("trap", "arguments"),
    [
        (AT_IMPORT.format(module="typer"), ("convert", "--help")),
        (AT_IMPORT.format(module="typer"), ("verify", "--help")),
        (AT_IMPORT.format(module="pydantic"), ("convert", "inspect", DRAFT)),
        (AT_IMPORT.format(module="rich.console"), ("convert", "inspect", DRAFT)),
        (AT_IMPORT.format(module="torch"), ("verify", "check", DRAFT, "--source", DRAFT)),
        (AT_IMPORT.format(module="torch"), ("verify", "diagnose", DRAFT, "--target", DRAFT)),
        (IN_A_FINALISER, ("convert", "inspect", DRAFT)),
        (AT_WORK, ("convert", "inspect", DRAFT)),
        (AT_EXIT, ("convert", "--version")),
    ],
)
def test_interrupt_is_130_and_one_line(trap: str, arguments: tuple[str, ...], golden: Path) -> None:
    done = run(golden, trap, *arguments)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_ignored_interrupt_stays_ignored(golden: Path) -> None:
    trap = AT_IMPORT.format(module="typer")
    done = run(golden, trap, "convert", "inspect", DRAFT, before="SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")
