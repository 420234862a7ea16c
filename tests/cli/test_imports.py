"""Converting and helping need no torch, nor anything else that is slow to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "transformers", "scipy", "pandas", "huggingface_hub"}

SCRIPT = """
import json, sys
from dspark_convert.cli.convert import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["to-dense", "{source}", "{output}", "--quiet"],
        ["inspect", "{source}", "--json"],
        ["check", "{source}", "--quiet"],
    ],
)
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
