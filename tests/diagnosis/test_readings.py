"""A reading is one row: it is tried, decided and reported, and nothing else names it."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dspark_convert.cli.views.diagnosis import diagnosis_view
from dspark_convert.diagnosis import diagnose as diagnosing
from dspark_convert.diagnosis.readings import (
    HYPOTHESES,
    Hypothesis,
    NotApplicableError,
    Reading,
    TargetFacts,
    reread,
)
from dspark_convert.runtime import DraftModel
from dspark_convert.traces.trace import Trace

from .helpers import DENSE, Config, Tensors, by_id, run

NORM = "norm.weight"


def negate_norm(config: Config, tensors: Tensors) -> None:
    tensors[NORM] = -tensors[NORM]


def read_negated(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    other = reread(draft, weights={NORM: -draft.state_dict()[NORM]})
    return [Reading(other, "turn the sign of the last norm")]


def read_nothing(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    raise NotApplicableError("there is nothing to read")


def test_a_row_is_tried_and_named_or_says_why_not(
    build: Callable[..., Path], short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        *HYPOTHESES,
        Hypothesis("norm-negated", "likely tokens are unlikely", read_negated),
        Hypothesis("never", "no draft", read_nothing),
    )
    monkeypatch.setattr(diagnosing, "HYPOTHESES", rows)
    diagnosis = run(build(DENSE, negate_norm), short_trace)
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", "norm-negated")
    best = diagnosis.hypotheses[0]
    assert (best.reason, best.fix) == (
        "likely tokens are unlikely",
        "turn the sign of the last norm",
    )
    assert by_id(diagnosis)["never"].reason == "there is nothing to read"
    out = StringIO()
    Console(file=out, width=200).print(diagnosis_view(diagnosis))
    assert "never: there is nothing to read" in out.getvalue()
    assert "fix: turn the sign of the last norm" in out.getvalue()
