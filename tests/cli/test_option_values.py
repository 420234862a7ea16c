"""Numbers that make no sense are wrong usage, for every numeric option of both programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from dspark_convert.cli import convert, verify
from tests.conftest import ROOT

TINY = ROOT / "fixtures/tiny"
DRAFT, TARGET = TINY / "draft_dense_full", TINY / "target"

ARGUMENTS = {
    "check": (DRAFT, "--target", TARGET, "--json"),
    "diagnose": (DRAFT, "--target", TARGET, "--json"),
    "record": (TARGET, "--for", DRAFT, "--out", "trace.safetensors", "--json"),
    "import-vllm": (
        *(".", "--text-origin", "greedy", "--target", TARGET, "--layers", "1"),
        *("--for", DRAFT, "--out", "trace.safetensors", "--prompt-length", "1", "--json"),
    ),
    "compare": ("absent.json", "absent.json", "--json"),
}
"""What each command needs beside the option in question."""

WHOLE = ("-1", str(2**70), str(10**18), "nan")
SENSIBLE = {("seed", str(10**18))}
REAL = ("-1", "nan", "inf", "-inf", "x")
LISTED = {
    "--stop-token-ids": ("-1", str(2**70), "1,nan", "1.5"),
    "--min-acceptance": ("-1", "nan", "inf", "0.5,2"),
    "--max-size": ("-1", "nan", "inf", "9" * 400, "1e999"),
    "--layers": (str(2**70), "-2", "nan"),
}
"""Options whose texts hold numbers."""


def options_of(app: typer.Typer) -> Iterator[tuple[str, str, str]]:
    """Command, option, and a value that makes no sense for it."""
    for command in app.registered_commands:
        for field, hint in get_type_hints(command.callback).items():
            option, kinds = f"--{field.replace('_', '-')}", {hint, *get_args(hint)}
            values = WHOLE if int in kinds else REAL if float in kinds else LISTED.get(option, ())
            for value in values:
                if (field, value) not in SENSIBLE:
                    yield command.name or "", option, value


CASES = [*options_of(convert.app), *options_of(verify.app)]


def test_every_numeric_option_is_among_the_cases() -> None:
    assert {option for _, option, _ in CASES} >= {"--temperature", "--top", "--seed", *LISTED}
    assert {command for command, _, _ in CASES} == set(ARGUMENTS)


@pytest.mark.parametrize(("command", "option", "value"), CASES)
def test_it_is_wrong_usage(
    command: str, option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [command, *map(str, ARGUMENTS[command]), f"{option}={value}"]
    outcome = CliRunner().invoke(verify.app, arguments)
    assert outcome.exit_code == 2, outcome.output[-300:]
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit)
    said = outcome.output.replace("-", "_")
    assert option.lstrip("-").replace("-", "_").partition("=")[0] in said
    assert not list(tmp_path.iterdir())
