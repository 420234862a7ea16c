"""Converting and helping need no torch, nor anything else that is slow to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import mostly_slow

HEAVY = {"torch", "transformers", "scipy", "pandas", "huggingface_hub"}

SCRIPT = """
import json, sys
from importlib import import_module
app = import_module("dspark_convert.cli." + sys.argv.pop(1)).app
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


COMMANDS = [
    ["convert", "--help"],
    ["convert", "--version"],
    ["convert", "to-dense", "--help"],
    ["convert", "to-dense", "{source}", "{output}", "--quiet"],
    ["convert", "inspect", "{source}", "--json"],
    ["convert", "check", "{source}", "--quiet"],
    ["verify", "--help"],
    ["verify", "--version"],
    ["verify", "check", "--help"],
    ["verify", "diagnose", "--help"],
    ["verify", "record", "--help"],
    ["verify", "explain"],
]
COMMANDS_BY_DEFAULT = [
    *(command for command in COMMANDS if "--quiet" in command or "--json" in command),
    ["verify", "check", "--help"],
    ["verify", "explain"],
]


@pytest.mark.parametrize("arguments", mostly_slow(COMMANDS, fast=COMMANDS_BY_DEFAULT), ids=" ".join)
def test_no_heavy_module_is_imported(arguments: list[str], golden: Path, tmp_path: Path) -> None:
    places = {
        "source": golden / "spec_vanilla_reduced_anchor_bf16/checkpoint",
        "output": tmp_path / "out",
    }
    command = [sys.executable, "-c", SCRIPT, *(part.format(**places) for part in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code in (0, None)
    assert "dspark_convert" in modules
    assert not HEAVY & set(modules)


@pytest.mark.parametrize("program", ["convert", "verify"])
def test_help_needs_neither_documents_nor_tables(program: str) -> None:
    command = [sys.executable, "-c", SCRIPT, program, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, modules = json.loads(done.stdout.splitlines()[-1])
    assert "typer" in modules
    assert not {"numpy", "pydantic", "rich"} & set(modules)
