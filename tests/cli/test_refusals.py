"""Refusals and wrong usage as they reach a user: code, exit code, and what is never touched."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from dspark_convert.cli.convert import app as convert_app
from dspark_convert.cli.verify import app as verify_app
from tests.conftest import ROOT, Outcome

pytest.importorskip("torch")

GOLDEN = ROOT / "fixtures" / "golden"
DENSE = GOLDEN / "dense_gated_fp32" / "checkpoint"
SPECULATORS = GOLDEN / "spec_vanilla_full_anchor_fp32" / "checkpoint"
TARGET = GOLDEN / "verifier_fp32"


def invoke(app: Typer, *arguments: object) -> Outcome:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "p", "prompt_token_ids": [1, 2, 3]}) + "\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("check", DENSE), "target-missing"),
        (("diagnose", DENSE), "target-missing"),
        (
            ("check", DENSE, "--target", TARGET, "--stop-token-ids", "one"),
            "stop-token-ids-invalid",
        ),
        (
            ("check", DENSE, "--target", TARGET, "--min-acceptance", "0.5,1.5"),
            "min-acceptance-invalid",
        ),
    ],
)
def test_wrong_usage_is_told_by_code(arguments: tuple[object, ...], code: str) -> None:
    outcome = invoke(verify_app, *arguments, "--json")
    assert (outcome.code, outcome.codes) == (2, [code])
    assert outcome.json["findings"][0]["expected"]


@pytest.mark.parametrize(
    ("app", "arguments", "code", "expected"),
    [
        (verify_app, ("explain", "nothing"), "check-unknown", "structure, pairing"),
        (verify_app, ("render", "absent.json"), "output-missing", "--junit, --markdown or --html"),
        (convert_app, ("schema", "nothing"), "unknown-schema", "check-report, comparison"),
    ],
)
def test_wrong_word_is_answered_with_the_right_ones(
    app: Typer, arguments: tuple[str, ...], code: str, expected: str
) -> None:
    outcome = invoke(app, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"error {code}: " in outcome.err
    assert expected in " ".join(outcome.err.split())


# Targets that cannot be read ---------------------------------------------------------------------


class Opened:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("program", ["convert", "check", "diagnose", "record"])
def test_target_of_pickles_is_refused_and_never_opened(
    program: str, tmp_path: Path, prompts: Path
) -> None:
    target, mark, out = tmp_path / "target", tmp_path / "opened", tmp_path / "out"
    target.mkdir()
    shutil.copy(TARGET / "config.json", target)
    (target / "pytorch_model.bin").write_bytes(pickle.dumps(Opened(mark)))
    line: dict[str, tuple[Typer, tuple[object, ...]]] = {
        "convert": (convert_app, ("to-dense", SPECULATORS, out, "--target", target)),
        "check": (verify_app, ("check", DENSE, "--target", target, "--prompts", prompts)),
        "diagnose": (verify_app, ("diagnose", DENSE, "--target", target, "--prompts", prompts)),
        "record": (
            verify_app,
            ("record", target, "--for", DENSE, "--out", out, "--prompts", prompts),
        ),
    }
    app, arguments = line[program]
    outcome = invoke(app, *arguments, "--json")
    assert (outcome.code, outcome.codes) == (3, ["pickle-only"])
    assert outcome.json["findings"][0]["file"] == "pytorch_model.bin"
    assert not mark.exists()
    assert not out.exists()
    pickle.loads((target / "pytorch_model.bin").read_bytes())
    assert mark.exists(), "opening it would have shown"


def test_broken_tokenizer_is_refused_and_its_hint_helps(tmp_path: Path, prompts: Path) -> None:
    target = shutil.copytree(TARGET, tmp_path / "target")
    (target / "tokenizer.json").write_text("{}")
    options = ("--prompts", prompts, "--max-new-tokens", 4, "--device", "cpu", "--json")
    outcome = invoke(verify_app, "check", DENSE, "--target", target, *options)
    assert (outcome.code, outcome.codes) == (3, ["tokenizer-unreadable"])
    assert "remove them" in outcome.json["findings"][0]["hint"]
    (target / "tokenizer.json").unlink()
    outcome = invoke(verify_app, "check", DENSE, "--target", target, *options)
    assert [check["verdict"] for check in outcome.json["checks"][:2]] == ["pass", "pass"]
