"""``engines``, ``to-dense --for`` and ``--expand-vocab``, bundled drafts: as users meet them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dspark_convert.cli.convert_commands import to_dense
from dspark_convert.engines import ENGINES, REFERENCE, written_for
from dspark_convert.schemas.catalog import schema_text
from fixtures.deepseek_v4 import target, write_target

REDUCED, GATED = "spec_vanilla_reduced_anchor_bf16", "spec_gated_reduced_1plusN_bf16"
Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("engines {reduced}", 0),
        ("engines {gated} --layout anchor-first", 0),
        ("engines {absent}", 3),
        ("engines {bundled}", 3),
        ("engines", 2),
        ("to-dense {reduced} {output} --for vllm", 0),
        ("to-dense {reduced} {output} --for llama.cpp --dry-run", 0),
        ("to-dense {gated} {output} --for vllm", 3),
        ("to-dense {reduced} {output} --for deepspec", 3),
        ("to-dense {reduced} {output} --for deepspec --expand-vocab --target {target}", 0),
        ("to-dense {reduced} {output} --expand-vocab", 0),
        ("to-dense {reduced} {output} --for trt", 2),
        ("inspect {bundled}", 0),
        ("check {bundled}", 0),
        ("to-dense {bundled} {output}", 3),
    ],
)
def test_exit_code(arguments: str, code: int, cli: Cli, golden: Path, tmp_path: Path) -> None:
    places = {
        "reduced": golden / REDUCED / "checkpoint",
        "gated": golden / GATED / "checkpoint",
        "target": golden / "verifier_bf16",
        "absent": tmp_path / "absent",
        "output": tmp_path / "out",
    }
    if "bundled" in arguments:
        places["bundled"] = write_target(tmp_path / "bundled", target())
    outcome = cli(*(part.format(**places) for part in arguments.split()))
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.out + outcome.err


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine that only its row knows."""
    monkeypatch.setitem(ENGINES, "toy", replace(ENGINES["vllm"], key="toy", name="ToyServe"))
    return "toy"


def test_help_names_every_engine_that_is_written_for(cli: Cli, toy: str) -> None:
    assert f"--for <{'|'.join(written_for())}>" in cli("to-dense", "--help").out
    assert toy in written_for()


def test_a_new_row_is_an_engine_to_write_for(
    cli: Cli, toy: str, golden: Path, tmp_path: Path
) -> None:
    outcome = cli(
        "to-dense", golden / REDUCED / "checkpoint", tmp_path / "out", "--for", toy, "--json"
    )
    assert (outcome.code, outcome.json["written_for"]) == (0, toy)


def test_an_unknown_engine_is_wrong_usage_and_the_known_ones_are_listed(
    cli: Cli, golden: Path, tmp_path: Path
) -> None:
    outcome = cli(
        "to-dense", golden / REDUCED / "checkpoint", tmp_path / "out", "--for", "trt", "--json"
    )
    (finding,) = outcome.json["findings"]
    assert (outcome.code, finding["code"], finding["found"]) == (2, "unknown-engine", "trt")
    assert finding["expected"] == ", ".join(written_for())
    assert not (tmp_path / "out").exists()


def test_what_is_written_without_for_is_the_reference_form() -> None:
    assert signature(to_dense).parameters["written_for"].default == REFERENCE


def test_report_validates_and_is_all_of_stdout(cli: Cli, golden: Path) -> None:
    outcome = cli("engines", golden / GATED / "checkpoint", "--json")
    schema = json.loads(schema_text("engines-report"))
    Draft202012Validator(schema).validate(outcome.json)
    assert outcome.json["num_speculative_tokens"] == 6


def test_launch_line_can_be_copied_from_a_narrow_terminal(
    cli: Cli, golden: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a draft of mine"
    folder.symlink_to(golden / REDUCED / "checkpoint")
    said = cli("engines", folder, env={"COLUMNS": "60"}).out
    (line,) = [line for line in said.splitlines() if "vllm serve" in line]
    words = shlex.split(line.strip().removeprefix("$ "))
    assert json.loads(words[-1])["model"] == str(folder)


def test_verdicts_reasons_and_ways_out_are_shown(cli: Cli, golden: Path) -> None:
    said = cli("engines", golden / GATED / "checkpoint", env={"COLUMNS": "400"}).out
    assert "vLLM 0.33.0  refuses" in said
    assert "it has no gated Markov head" in said
    assert "avoided: it drafts 7 tokens unless told num_speculative_tokens=6" in said
    assert "convert it with to-dense --for sglang" in said


def test_bundled_draft_is_described(cli: Cli, tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", target())
    outcome = cli("inspect", folder, env={"COLUMNS": "200"})
    assert "bundled in a DeepSeek-V4 target: 3 stages" in outcome.out
    assert "engines load it from this folder, under these names" in outcome.out
    assert "note bundled-draft" in outcome.err
    inspection = cli("inspect", folder, "--json").json
    Draft202012Validator(json.loads(schema_text("inspection"))).validate(inspection)


def test_result_for_an_engine_says_so(cli: Cli, golden: Path, tmp_path: Path) -> None:
    source = golden / REDUCED / "checkpoint"
    said = cli("to-dense", source, tmp_path / "out", "--for", "vllm", "--expand-vocab").out
    assert "written for" in said
    assert "expanded" in said
    manifest = json.loads((tmp_path / "out/dspark_conversion.json").read_text())
    assert (manifest["written_for"], manifest["vocabulary_expanded"]) == ("vllm", True)
