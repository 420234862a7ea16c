"""A new engine is one file and one row of ``ENGINES``: everything else follows from the row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import inspect_draft
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import ENGINES, Claim, Engine, find_engine, written_for
from dspark_convert.engines.base import TARGET, KeySpelling, Spelling
from dspark_convert.errors import DraftError, UsageError

REDUCED, GATED = "spec_vanilla_reduced_anchor_bf16", "spec_gated_reduced_1plusN_bf16"
TOY = Engine(
    key="toy",
    name="ToyServe",
    version="1.2",
    claims=(
        Claim(
            verdict="refuses",
            when=lambda draft: draft.markov == "gated",
            reason="it wants {n} plain tokens",
            evidence="toy/serve.py:1-2",
            code="markov-head-unsupported",
            way_out="{elsewhere}",
            inherent=True,
        ),
    ),
    commands=lambda path, tokens: (("toyserve", TARGET, path, f"--tokens={tokens}"),),
    spelling=Spelling(
        names={"draft_id_to_target_id": "toy_table"},
        keys=(KeySpelling(("toy_slots",), lambda config: config.block_size, "ToyServe reads it"),),
    ),
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, TOY.key, TOY)


def test_it_can_be_written_for() -> None:
    assert "toy" in written_for()
    assert find_engine("toy") is TOY


def test_an_unknown_name_is_told_what_can_be_named() -> None:
    with pytest.raises(UsageError) as caught:
        find_engine("toy-2")
    (finding,) = caught.value.findings
    assert finding.code == "unknown-engine"
    assert finding.expected == "reference, vllm, sglang, llama.cpp, deepspec, toy"


def test_an_engine_that_does_not_read_the_dense_form_cannot_be_named() -> None:
    assert "speculators" in ENGINES
    with pytest.raises(UsageError):
        find_engine("speculators")


def test_it_is_reported_with_its_launch_line(golden: Path) -> None:
    report = report_engines(golden / REDUCED / "checkpoint", published_as="org/name")
    toy = report.engines[-1]
    assert (toy.engine, toy.version, toy.verdict) == ("ToyServe", "1.2", "loads")
    assert toy.launch == (f"toyserve {TARGET} org/name --tokens={report.num_speculative_tokens}",)
    refused = report_engines(golden / GATED / "checkpoint").engines[-1]
    assert (refused.verdict, refused.launch) == ("refuses", ())
    assert refused.notes[0].reason == "it wants 6 plain tokens"


def test_it_is_advised_where_others_cannot_run_the_draft(golden: Path) -> None:
    notes = inspect_draft(golden / REDUCED / "checkpoint").engines
    advice = {note.engine: note.way_out for note in notes if note.code == "vocabulary-unsupported"}
    assert "ToyServe" in str(advice["SGLang"])


def test_its_spelling_is_written_and_its_refusals_are_ours(golden: Path, tmp_path: Path) -> None:
    conversion = plan_to_dense(golden / REDUCED / "checkpoint", written_for="toy")
    assert run_conversion(conversion, tmp_path / "out").written_for == "toy"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["toy_slots"] == config["block_size"]
    assert "toy_table" in {step.name for step in conversion.plan.tensors}
    with pytest.raises(DraftError) as caught:
        plan_to_dense(golden / GATED / "checkpoint", written_for="toy")
    assert [finding.code for finding in caught.value.findings] == ["markov-head-unsupported"]


def test_the_command_line_takes_it(cli: Callable[..., Any], golden: Path, tmp_path: Path) -> None:
    source = golden / REDUCED / "checkpoint"
    assert cli("to-dense", source, tmp_path / "out", "--for", "toy", "--dry-run").code == 0
    assert "llama.cpp|deepspec|toy" in cli("to-dense", "--help", env={"COLUMNS": "300"}).out
    assert "ToyServe 1.2  loads" in cli("engines", source, env={"COLUMNS": "300"}).out


def test_it_is_documented(render_page: Callable[[str], str]) -> None:
    page = render_page("engines.md")
    assert "## ToyServe 1.2" in page
    assert "it wants N plain tokens" in page
