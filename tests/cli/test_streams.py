"""Standard streams that are closed, full or no longer read: the exit code stays documented."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dspark_convert.conversion.manifest import read_manifest
from tests.conftest import ROOT

COMMANDS = Path(sysconfig.get_path("scripts"))
DRAFT = ROOT / "fixtures/golden/spec_vanilla_reduced_anchor_bf16/checkpoint"
REFUSED, USAGE = 3, 2


def run(script: str) -> tuple[int, str]:
    """Exit code of ``dspark-convert`` in a script of bash, and all that reached stderr."""
    text = f'set -o pipefail; DRAFT="{DRAFT}"; PATH="{COMMANDS}:$PATH"; {script}'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ('dspark-convert inspect "$DRAFT" >&-', REFUSED),
        ('dspark-convert inspect "$DRAFT" >/dev/full', REFUSED),
        ('dspark-convert inspect "$DRAFT" --json | true', REFUSED),
        ("dspark-convert --help >&-", REFUSED),
        ("dspark-convert --help | true", REFUSED),
        ("dspark-verify explain >/dev/full", REFUSED),
        ('dspark-convert check "$DRAFT" --quiet >&-', 0),
        ('dspark-convert inspect "$DRAFT" 2>&-', 0),
        ('dspark-convert inspect "$DRAFT" 2>/dev/full', 0),
        ('dspark-convert inspect "$DRAFT/absent" 2>&-', REFUSED),
        ('dspark-convert inspect "$DRAFT/absent" 2> >(true)', REFUSED),
        ('dspark-convert inspect "$DRAFT/absent" >&- 2>&-', REFUSED),
        ("dspark-convert absent 2>&-", USAGE),
        ("dspark-convert absent 2>/dev/full", USAGE),
        ('dspark-convert inspect "$DRAFT" --json | head -1 | grep -q "{"', None),
    ],
)
def test_exit_code(script: str, code: int | None) -> None:
    found, said = run(script)
    assert found == code or (code is None and found in (0, REFUSED))
    if found == REFUSED and "2>" not in script:
        assert said.strip().splitlines()[-1].startswith("error stdout-not-writable: ")


@pytest.mark.parametrize("stream", [">/dev/full", ">&-", "| true"])
def test_nobody_says_that_a_result_was_not_written(stream: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said = run(f'dspark-convert to-dense "$DRAFT" {out} --json -q {stream}')
    assert (code, "nothing was" in said) == (REFUSED, False)
    assert read_manifest(out) is not None


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _ = run(f'dspark-convert to-dense "$DRAFT" {out} -q <&- >&- 2>&-')
    assert code == 0
    plain = tmp_path / "plain"
    assert run(f'dspark-convert to-dense "$DRAFT" {plain} -q')[0] == 0
    for path in plain.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_what_happens_to_a_file_is_not_blamed_on_stdout() -> None:
    program = """
import typer
from dspark_convert.cli.program import run
app = typer.Typer()

@app.command()
def fail():
    open("/absent/[red]\\x1b")

run(app)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        REFUSED,
        "error file-unusable: No such file or directory: /absent/[red]\\x1b\n",
    )
