"""The GitHub Action: inputs reach the program as data, and its exit code comes back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

yaml = pytest.importorskip("yaml")

STUB = f"""#!{sys.executable}
import json, os, pathlib, sys
pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def action() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return document


def run_check(
    action: dict[str, Any], tmp_path: Path, code: int = 0, **inputs: str
) -> tuple[int, list[str], str]:
    """Runs the step as a runner would; gives the exit code, the arguments, and the outputs."""
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    step = action["runs"]["steps"][1]
    values = {name: entry.get("default", "") for name, entry in action["inputs"].items()}
    values |= {name.replace("_", "-"): value for name, value in inputs.items()}
    env = {
        name: values[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)[1]]  # type: ignore[index]
        for name, text in step["env"].items()
    }
    env |= {"PYTHON": str(stub), "SEEN": str(tmp_path / "seen"), "CODE": str(code)}
    env |= {"GITHUB_OUTPUT": str(tmp_path / "outputs"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    seen = json.loads((tmp_path / "seen").read_text())
    return done.returncode, seen, (tmp_path / "outputs").read_text()


def test_no_input_is_pasted_into_a_script(action: dict[str, Any]) -> None:
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_every_input_reaches_the_program(action: dict[str, Any]) -> None:
    text = (ROOT / "action.yml").read_text()
    assert all(f"${{{{ inputs.{name} }}}}" in text for name in action["inputs"])


def test_only_given_options_are_passed(action: dict[str, Any], tmp_path: Path) -> None:
    _, arguments, _ = run_check(action, tmp_path, draft="d", trace="t", target_weights="w")
    assert arguments == [
        "-m",
        "dspark_convert.cli.verify",
        "check",
        "--trace=t",
        "--target-weights=w",
        "--report=dspark-verify/report.json",
        "--junit=dspark-verify/report.xml",
        "--markdown=dspark-verify/report.md",
        "--html=dspark-verify/report.html",
        "--",
        "d",
    ]
    assert (tmp_path / "dspark-verify").is_dir()


@pytest.mark.parametrize(
    "text", ["$(touch pwned)", "`touch pwned`", "; touch pwned", "-x", "a b\n*"]
)
def test_hostile_inputs_are_data(text: str, action: dict[str, Any], tmp_path: Path) -> None:
    _, arguments, _ = run_check(action, tmp_path, draft=text, gate=text)
    assert arguments[-1] == text
    assert f"--gate={text}" in arguments
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "pass"), (1, "fail"), (3, ""), (4, "inconclusive")]
)
def test_exit_code_and_verdict_come_back(
    code: int, verdict: str, action: dict[str, Any], tmp_path: Path
) -> None:
    returned, _, outputs = run_check(action, tmp_path, code, draft="d")
    assert (returned, outputs) == (code, f"verdict={verdict}\n")
