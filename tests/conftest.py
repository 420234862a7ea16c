"""What the tests of every folder share: golden drafts, edited drafts, and the command line."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The models of the tests are tiny: a second thread only costs, and costs much on a busy machine.
# It must be said before PyTorch is imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from typer.testing import CliRunner

from dspark_convert.cli.convert import app
from fixtures.broken.cases import REDUCED, Case
from fixtures.broken.drafts import GOLDEN
from fixtures.broken.edits import Edit

ROOT = Path(__file__).parents[1]
COMMAND = Path(sysconfig.get_path("scripts")) / "dspark-convert"

# A machine that is busy with other things must not fail a property.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no process is left with one of them at the end."""
    longest = ("tests/diagnosis/", "tests/checks/", "tests/replay/", "tests/traces/")
    items.sort(key=lambda item: not item.nodeid.startswith(longest))


def write_otherwise(draft: Path, copy: Path) -> Path:
    """The same draft whose config has other bytes: not the draft itself, and an original of it."""
    shutil.copytree(draft, copy)
    config = json.loads((draft / "config.json").read_text())
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config, indent=3))
    return copy


def mostly_slow(cases: Iterable[Any], *, fast: Sequence[Any]) -> list[Any]:
    """Cases as parameters of a test; those that are not in ``fast`` are left to the slow suite."""
    listed = list(cases)
    assert all(case in listed for case in fast), "a fast case is not among the cases"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in listed
    ]


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def codes(self) -> list[str]:
        """The codes of the errors in a JSON document."""
        return [item["code"] for item in self.json["findings"] if item["severity"] == "error"]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def render_page() -> Callable[[str], str]:
    """Renders a generated page of ``docs/`` from the tables as they are: ``render_page(name)``."""
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]
    return lambda name: str(pages[name]())


@pytest.fixture
def draft(tmp_path: Path) -> Callable[..., Path]:
    """Builds a golden draft with edits: ``draft(*edits, base=...)`` returns its folder."""
    count = iter(range(1_000_000))

    def build(*edits: Edit, base: str = REDUCED) -> Path:
        return Case("", base, edits, (), ()).build(tmp_path / f"source-{next(count)}")

    return build


@pytest.fixture
def cli() -> Callable[..., Outcome]:
    """Runs ``dspark-convert`` inside this process, without a terminal."""

    def run(*arguments: object, env: Mapping[str, str] | None = None) -> Outcome:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def command() -> Callable[..., Outcome]:
    """Runs the installed ``dspark-convert`` in a process of its own."""

    def run(*arguments: object, cwd: Path | None = None, **env: str) -> Outcome:
        done = subprocess.run(
            [COMMAND, *map(str, arguments)],
            capture_output=True,
            cwd=cwd,
            env={**os.environ, **env},
            timeout=60,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
