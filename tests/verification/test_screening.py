"""Long traces: a sample of the anchors rules readings out, and names none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.schemas.diagnosis import Diagnosis
from dspark_convert.verification import screening
from dspark_convert.verification.diagnose import diagnose
from dspark_convert.verification.hypotheses import HYPOTHESES, Reading
from dspark_convert.verification.judgement import Trial, decision_rule
from dspark_convert.verification.paired import Scores
from dspark_convert.verification.screening import find_stride, screen
from dspark_convert.verification.suspect import suspect_of_trace
from dspark_convert.verification.together import SharedReplay
from dspark_convert.verification.trace import Trace

from .diagnoses import (
    DENSE,
    ONE_PLUS_N_DECLARED,
    TARGET,
    TINY,
    Plant,
    by_id,
    run,
)
from .test_diagnose import rope
from .test_together import CountingSteps, list_readings
from .traces import make_header

HYPOTHESIS = HYPOTHESES[0]


def sample(monkeypatch: pytest.MonkeyPatch, anchors: int) -> None:
    monkeypatch.setattr(screening, "SCREENING_ANCHORS", anchors)


def decode_options(trace: Trace) -> DecodeOptions:
    header = trace.header
    return DecodeOptions(
        max_new_tokens=header.max_new_tokens,
        stop_token_ids=frozenset(header.stop_token_ids),
        temperature=header.sampling.temperature,
    )


FAULTS: dict[str, tuple[str, tuple[Plant, ...]]] = {
    "layout-other": (DENSE, (ONE_PLUS_N_DECLARED,)),
    "rope-base": (DENSE, (rope(rope_theta=10000.0),)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_cause_is_named_on_the_same_numbers(
    fault: str, build: Callable[..., Path], trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, plants = FAULTS[fault]
    folder = build(base, *plants)
    whole = run(folder, trace)
    sample(monkeypatch, 200)
    screened = run(folder, trace)
    assert (screened.verdict, screened.best) == ("cause-found", fault)
    assert (whole.verdict, whole.best) == ("cause-found", fault)
    assert_consistent(screened, whole)
    assert screened.hypotheses[0] == whole.hypotheses[0]


@pytest.mark.parametrize("name", [DENSE])
def test_a_healthy_draft_stays_healthy(
    name: str, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(TINY / name, trace)
    sample(monkeypatch, 200)
    screened = run(TINY / name, trace)
    assert (screened.verdict, screened.best) == ("healthy", "as-declared")
    assert_consistent(screened, whole)
    assert screened.hypotheses[0] == whole.hypotheses[0]


def assert_consistent(screened: Diagnosis, whole: Diagnosis) -> None:
    """Ruled-out readings have numbers of a sample and no length; all others those of a whole."""
    assert {result.anchors for result in whole.hypotheses} <= {whole.anchors, None}
    ruled_out = [result for result in screened.hypotheses if result.anchors != screened.anchors]
    ruled_out = [result for result in ruled_out if result.status != "not-applicable"]
    assert len(ruled_out) >= 3
    assert len({result.anchors for result in ruled_out}) == 1
    for result in ruled_out:
        assert result.anchors is not None
        assert 200 <= result.anchors <= 300 + screened.texts
        assert (result.status, result.accepted_length, result.interval95) == (
            "rejected",
            None,
            None,
        )
        assert result.difference_decision_interval is not None
        assert result.difference_decision_interval[1] < screened.decision.min_overlap_gain
    for result in screened.hypotheses:
        if result.anchors == screened.anchors and result.id != "mask-other":
            # Of several masks the best one is shown, and another may have been ruled out.
            assert result == by_id(whole)[result.id]


def test_no_more_backbones_are_run_than_the_plan_says(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All backbones on the sample, and on all anchors those of the readings that are left."""
    sample(monkeypatch, 200)
    steps = CountingSteps()
    suspect = suspect_of_trace(TINY / DENSE, trace, target=TARGET, dtype=torch.float32)
    assert suspect.subject is not None
    names, readings = list_readings(suspect.subject.draft, suspect.subject.around)
    news: list[tuple[str, int, int]] = []
    diagnosis = diagnose(
        suspect, decode_options(trace), steps=steps, on_progress=lambda *new: news.append(new)
    )
    results = [result for result in diagnosis.hypotheses if result.anchors is not None]
    sampled = next(x.anchors for x in results if x.anchors != diagnosis.anchors)
    named = {x.id for x in results if x.anchors == diagnosis.anchors}
    left = [reading for name, reading in zip(names, readings, strict=True) if name in named]
    everywhere, again = (len(SharedReplay(some).backbones) for some in (readings, left))
    assert sampled is not None
    assert (everywhere, again) == (9, 2)
    assert steps.blocks == everywhere * sampled + again * diagnosis.anchors
    texts = len(trace)
    assert news == [
        (doing, done, texts)
        for doing in ("screening", "diagnosing")
        for done in range(1, texts + 1)
    ]


def test_the_command_says_on_how_many_anchors_a_reading_was_judged(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(monkeypatch, 200)
    arguments = ["diagnose", str(TINY / DENSE), "--trace", str(trace.files[0].path)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    (line,) = (line for line in shown.stdout.splitlines() if "judged on" in line)
    readings, size = line.removeprefix("ruled out").split(": ")
    assert {"layout-other", "markov-off"} <= set(readings.strip().split(", "))
    assert re.fullmatch(r"judged on 2\d\d of \d+ anchors *", size)
    sample(monkeypatch, 10_000)
    assert "judged on" not in CliRunner().invoke(app, arguments, env={"COLUMNS": "300"}).stdout


def test_a_short_trace_is_not_sampled(trace: Trace) -> None:
    assert find_stride(trace.header, decode_options(trace)) == 1


def test_the_stride_counts_anchors_as_replay_does(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors = run(TINY / DENSE, trace).anchors
    decode = decode_options(trace)
    for share in (1, 2, 5):
        sample(monkeypatch, anchors // share)
        assert find_stride(trace.header, decode) == share
    sample(monkeypatch, anchors // 2 + 1)
    assert find_stride(trace.header, decode) == 1


def test_a_text_without_a_stop_token_has_as_many_anchors_as_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two texts of 8 and 4 tokens after the prompt, of which the second ends with a stop token."""
    sample(monkeypatch, 1)
    header = make_header()
    assert find_stride(header, DecodeOptions(max_new_tokens=5)) == 5 + 3
    assert find_stride(header, DecodeOptions(max_new_tokens=2)) == 2 + 2


# What is ruled out ------------------------------------------------------------------------------

TEXTS, PER_TEXT = 20, 10


def scores(overlap: float, tokens: float, noise: float = 0.0) -> Scores:
    """Scores of a sample with these means; noise is the spread between texts."""
    spread = noise * np.random.default_rng(0).standard_normal(TEXTS)
    ones, nothing = np.ones(TEXTS), np.full(TEXTS, np.nan)
    return Scores(
        anchors=ones * PER_TEXT,
        overlap=(overlap + spread) * PER_TEXT,
        overlap_at_most=(overlap + spread) * PER_TEXT,
        accepted_tokens=(tokens + spread) * PER_TEXT,
        rounds=nothing,
        committed=nothing,
    )


KEPT = {
    "more overlap": scores(0.506, 1.0),
    "more tokens": scores(0.5, 1.04),
    "just enough": scores(0.5051, 1.0),
    "far more, for less of the other": scores(0.4, 1.5),
    "a loss that may be chance": scores(0.49, 1.0, 0.05),
}
RULED_OUT = {
    "the same": scores(0.5, 1.0),
    "a gain that does not count": scores(0.504, 1.02),
    "a loss": scores(0.3, 0.5, 0.05),
    "nothing stored, the same tokens": scores(float("nan"), 1.0),
}


@pytest.mark.parametrize("case", [*KEPT, *RULED_OUT])
def test_only_what_gains_nothing_that_counts_is_ruled_out(case: str) -> None:
    trials = [Trial(HYPOTHESIS, Reading(None, None))] * 2  # type: ignore[arg-type]
    own = KEPT.get(case) or RULED_OUT[case]
    left, ruled_out = screen(trials, [scores(0.5, 1.0), own], decision_rule(40), seed=0)
    assert (len(left), len(ruled_out)) == ((2, 0) if case in KEPT else (1, 1))
    for result in ruled_out:
        assert (result.status, result.anchors) == ("rejected", TEXTS * PER_TEXT)
        assert result.accepted_length is None


def test_one_text_can_name_nothing_so_nothing_is_left() -> None:
    trials = [Trial(HYPOTHESIS, Reading(None, None))] * 2  # type: ignore[arg-type]
    one = [
        Scores(*(values[:1] for values in vars(each).values()))
        for each in (scores(0.5, 1.0), scores(0.9, 3.0))
    ]
    left, ruled_out = screen(trials, one, decision_rule(2), seed=0)
    assert (len(left), len(ruled_out)) == (1, 1)
