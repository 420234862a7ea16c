"""The report of ``engines`` about drafts on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.errors import DraftError
from fixtures.broken import build
from fixtures.broken.edits import cut, put

from .reference import CONFIGS


@pytest.mark.parametrize("variant", CONFIGS)
def test_number_of_tokens_is_that_of_the_golden_draft(variant: str, golden: Path) -> None:
    expected = json.loads((golden / variant / "expected.json").read_text())
    report = report_engines(golden / variant / "checkpoint")
    tokens = expected["tokens_per_proposal"]
    assert report.num_speculative_tokens == tokens
    assert [engine.engine for engine in report.engines] == [
        "vLLM",
        "SGLang",
        "llama.cpp",
        "DeepSpec",
        "speculators",
    ]
    for engine in report.engines:
        assert bool(engine.launch) == (engine.verdict != "refuses")
        assert {note.engine for note in engine.notes} == {engine.engine}
    if report.engines[0].launch:
        assert f'"num_speculative_tokens": {tokens}' in report.engines[0].launch[0]


def test_rnn_in_the_1n_layout_has_two_readings_and_that_is_said(
    draft: Callable[..., Path],
) -> None:
    def codes(folder: Path) -> set[str]:
        return {finding.code for finding in report_engines(folder).findings}

    assert "rnn-state-readings" in codes(
        draft(put(sample_from_anchor=False), base="dense_rnn_bf16")
    )
    assert "rnn-state-readings" not in codes(draft(base="dense_rnn_bf16"))
    other = draft(put(sample_from_anchor=False), base="dense_gated_fp32")
    assert "rnn-state-readings" not in codes(other)


def test_broken_draft_is_refused(draft: Callable[..., Path]) -> None:
    with pytest.raises(DraftError):
        report_engines(draft(cut("mask_token_id")))


def test_export_of_specforge_runs_in_llama_cpp_only(tmp_path: Path) -> None:
    report = report_engines(build("specforge", tmp_path))
    verdicts = {engine.engine: engine.verdict for engine in report.engines}
    assert verdicts == {
        "vLLM": "refuses",
        "SGLang": "refuses",
        "llama.cpp": "loads",
        "DeepSpec": "refuses",
        "speculators": "refuses",
    }
