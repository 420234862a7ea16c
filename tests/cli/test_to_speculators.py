"""``dspark-convert to-speculators`` as a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dspark_convert.schemas.catalog import schema_of

DENSE, REDUCED = "dense_vanilla_bf16", "spec_vanilla_reduced_anchor_bf16"


@pytest.fixture
def source(golden: Path) -> Path:
    return golden / DENSE / "checkpoint"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--verifier {verifier}", 0),
        ("--verifier {verifier} --dry-run", 0),
        ("--verifier org/name", 3),
        ("--verifier org/name --keep-verifier-weights", 0),
        ("", 3),
        ("--verifier ./nowhere", 2),
        ("--verifier {verifier} --set nonsense", 2),
    ],
)
def test_exit_code(
    options: str, code: int, source: Path, golden: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    arguments = options.format(verifier=golden / "verifier_bf16").split()
    outcome = cli("to-speculators", source, tmp_path / "out", *arguments)
    assert outcome.code == code, outcome
    assert (tmp_path / "out").exists() is (code == 0 and "--dry-run" not in options)


@pytest.mark.parametrize(
    ("option", "schema"), [("--dry-run", "conversion-plan"), ("--quiet", "conversion-manifest")]
)
def test_json_is_all_of_stdout_and_validates(
    option: str, schema: str, source: Path, golden: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    verifier = golden / "verifier_bf16"
    outcome = cli(
        "to-speculators", source, tmp_path / "out", "--verifier", verifier, "--json", option
    )
    jsonschema.validate(outcome.json, schema_of(schema))
    assert outcome.json["output_dialect"] == "speculators"


def test_there_and_back_needs_no_verifier(
    golden: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    assert cli("to-dense", golden / REDUCED / "checkpoint", tmp_path / "dense").code == 0
    outcome = cli("to-speculators", tmp_path / "dense", tmp_path / "out")
    assert outcome.code == 0
    assert "verifier-restored" in outcome.err
    assert cli("to-speculators", tmp_path / "dense", tmp_path / "out").code == 3
    options = ("--overwrite", "--verify-bytes")
    assert cli("to-speculators", tmp_path / "dense", tmp_path / "out", *options).code == 0
