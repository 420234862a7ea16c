"""Long traces: a sample of the anchors settles readings, and names none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from dspark_convert.diagnosis import diagnose as diagnosing
from dspark_convert.diagnosis import screening
from dspark_convert.diagnosis.decision import Judge, Trial, decision_rule
from dspark_convert.diagnosis.diagnose import diagnose
from dspark_convert.diagnosis.readings import HYPOTHESES, Reading
from dspark_convert.diagnosis.scores import Scores
from dspark_convert.diagnosis.screening import Sample, Screening, choose_sample, screen
from dspark_convert.diagnosis.shared_replay import SharedReplay
from dspark_convert.diagnosis.subject import diagnosis_input_of_trace
from dspark_convert.replay.replay import cut_text
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.schemas.diagnosis import Diagnosis, HypothesisResult
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.trace import Trace
from tests.conftest import mostly_slow
from tests.traces.helpers import make_header

from .helpers import (
    DENSE,
    FLOAT32,
    ONE_PLUS_N_DECLARED,
    TARGET,
    TINY,
    Plant,
    by_id,
    run,
)
from .test_diagnose import rope
from .test_shared_replay import CountingSteps, list_readings

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


# A wrong layout costs so much that a short trace shows it.
TRACED = [("layout-other", "short_trace"), *((fault, "trace") for fault in FAULTS)]


@pytest.mark.parametrize(("fault", "recorded"), mostly_slow(TRACED, fast=TRACED[:1]))
def test_the_same_cause_is_named_on_the_same_numbers(
    fault: str,
    recorded: str,
    build: Callable[..., Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace: Trace = request.getfixturevalue(recorded)
    base, plants = FAULTS[fault]
    folder = build(base, *plants)
    whole = run(folder, trace)
    sample(monkeypatch, 200)
    screened = run(folder, trace)
    assert (screened.verdict, screened.best) == ("cause-found", fault)
    assert (whole.verdict, whole.best) == ("cause-found", fault)
    assert_consistent(screened, whole)
    assert screened.hypotheses[0] == whole.hypotheses[0]


@pytest.mark.slow
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
    """Readings settled early have numbers of a sample and no length; others those of a whole."""
    assert {result.anchors for result in whole.hypotheses} <= {whole.anchors, None}
    early = [result for result in screened.hypotheses if result.anchors != screened.anchors]
    early = [result for result in early if result.status != "not-applicable"]
    assert len(early) >= 3
    assert len({result.anchors for result in early}) == 1
    for result in early:
        assert result.anchors is not None
        assert 200 <= result.anchors <= 300 + screened.texts
        assert result.status in ("rejected", "hint")
        assert (result.accepted_length, result.interval95) == (None, None)
        assert result.difference_decision_interval is not None
    for result in screened.hypotheses:
        if result.anchors == screened.anchors and result.id != "mask-other":
            # Of several masks the best one is shown, and another may have been ruled out.
            assert result == by_id(whole)[result.id]


def test_no_more_backbones_are_run_than_the_plan_says(
    short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All backbones on the sample, and on all anchors those of the readings that are left."""
    sample(monkeypatch, 200)
    steps = CountingSteps()
    inputs = diagnosis_input_of_trace(TINY / DENSE, short_trace, target=TARGET, machine=FLOAT32)
    assert inputs.replay_input is not None
    names, readings = list_readings(inputs.replay_input.draft, inputs.replay_input.facts)
    news: list[tuple[str, int, int]] = []
    diagnosis = diagnose(
        inputs,
        decode_options(short_trace),
        steps=steps,
        on_progress=lambda *new: news.append(new),
    )
    results = [result for result in diagnosis.hypotheses if result.anchors is not None]
    sampled = next(x.anchors for x in results if x.anchors != diagnosis.anchors)
    named = {x.id for x in results if x.anchors == diagnosis.anchors}
    left = [reading for name, reading in zip(names, readings, strict=True) if name in named]
    everywhere, again = (len(SharedReplay(some).backbones) for some in (readings, left))
    assert sampled is not None
    assert (everywhere, again) == (9, 1)
    assert steps.blocks == everywhere * sampled + again * diagnosis.anchors
    texts = len(short_trace)
    assert news == [
        (doing, done, texts)
        for doing in ("screening", "diagnosing")
        for done in range(1, texts + 1)
    ]


def test_the_command_says_on_how_many_anchors_a_reading_was_judged(
    short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(monkeypatch, 200)
    arguments = ["diagnose", str(TINY / DENSE), "--trace", str(short_trace.files[0].path)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    (line,) = (line for line in shown.stdout.splitlines() if "judged on" in line)
    readings, size = line.removeprefix("settled early").split(": ")
    assert {"layout-other", "markov-off"} <= set(readings.strip().split(", "))
    assert re.fullmatch(r"judged on 2\d\d of \d+ anchors *", size)


def test_the_command_says_nothing_of_a_sample_where_there_was_none(short_trace: Trace) -> None:
    arguments = ["diagnose", str(TINY / DENSE), "--trace", str(short_trace.files[0].path)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    assert "judged on" not in shown.stdout


# The sample --------------------------------------------------------------------------------------


def header_of(anchors: Sequence[int]) -> TraceHeader:
    """Texts of so many anchors, each after one token and before a last one."""
    header = make_header()
    entry = header.sequences[0]
    entries = [
        entry.model_copy(update={"first_generated": 1, "num_tokens": count + 2})
        for count in anchors
    ]
    return header.model_copy(update={"sequences": tuple(entries)})


def test_a_short_trace_is_not_sampled(short_trace: Trace) -> None:
    assert choose_sample(short_trace.header, decode_options(short_trace)) is None


def test_the_stride_counts_anchors_as_replay_does(
    short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, header = decode_options(short_trace), short_trace.header
    every_text = tuple(range(len(short_trace)))
    anchors = sum(len(cut_text(text, decode, num_tokens=1)[1]) for text in short_trace)
    for share in (2, 5):
        sample(monkeypatch, anchors // share)
        assert choose_sample(header, decode) == Sample(every_text, share)
    sample(monkeypatch, anchors // 2 + 1)
    assert choose_sample(header, decode) is None


def test_a_text_without_a_stop_token_has_as_many_anchors_as_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two texts of 8 and 4 tokens after the prompt, of which the second ends with a stop token."""
    sample(monkeypatch, 1)
    header = make_header()
    for limit, anchors in ((5, 5 + 3), (2, 2 + 2)):
        assert choose_sample(header, DecodeOptions(max_new_tokens=limit)) == Sample((0, 1), anchors)


LIMIT = DecodeOptions(max_new_tokens=10_000)


@pytest.mark.parametrize(
    ("texts", "anchors_of_each", "chosen", "stride"),
    [
        (16, 2000, range(16), 31),
        (200, 160, range(0, 200, 4), 7),
        (96, 2000, range(0, 96, 2), 93),
        (95, 2000, range(95), 185),
        (5000, 20, range(0, 5000, 98), 1),
        (1, 5000, range(1), 4),
    ],
)
def test_a_sample_is_of_few_texts_and_of_enough_anchors(
    texts: int, anchors_of_each: int, chosen: range, stride: int
) -> None:
    """One text of every row between the starts of rows."""
    found = choose_sample(header_of([anchors_of_each] * texts), LIMIT)
    assert found is not None
    assert found.stride == stride
    ends = [*chosen[1:], texts]
    assert len(found.texts) == len(chosen)
    for text, start, end in zip(found.texts, chosen, ends, strict=True):
        assert start <= text < end
    anchors = len(chosen) * -(-anchors_of_each // stride)
    assert 1024 <= anchors <= 2048 + len(chosen)


@pytest.mark.parametrize("place", [0, 1, 57, 99])
def test_uneven_texts_are_sampled_where_the_anchors_are(place: int) -> None:
    anchors = [0] * 100
    anchors[place] = 5000
    found = choose_sample(header_of(anchors), LIMIT)
    assert found == Sample((place,), 4)


def test_texts_without_an_anchor_are_not_chosen() -> None:
    """Half of the texts are silent, and every second one would be chosen."""
    found = choose_sample(header_of([0, 100] * 96), LIMIT)
    assert found is not None
    assert (len(found.texts), found.stride) == (48, 4)
    assert all(text % 2 for text in found.texts)


def test_kinds_of_texts_that_come_in_turn_are_all_in_the_sample() -> None:
    found = choose_sample(header_of([200] * 400), LIMIT)
    assert found is not None
    assert len({text % 8 for text in found.texts}) == 8


def test_texts_of_a_sample_are_evenly_spaced(
    short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those and no others are replayed, and reported as progress."""
    sample(monkeypatch, 100)
    monkeypatch.setattr(screening, "SCREENING_TEXTS", 8)
    inputs = diagnosis_input_of_trace(TINY / DENSE, short_trace, target=TARGET, machine=FLOAT32)
    news: list[tuple[str, int, int]] = []
    diagnosis = diagnose(
        inputs, decode_options(short_trace), on_progress=lambda *new: news.append(new)
    )
    assert len(short_trace) == 24
    assert news == [("screening", done, 8) for done in range(1, 9)] + [
        ("diagnosing", done, 24) for done in range(1, 25)
    ]
    assert (diagnosis.verdict, diagnosis.best) == ("healthy", "as-declared")


# What is settled -------------------------------------------------------------------------------

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


def worse_but_noisy() -> Scores:
    overlap, tokens = scores(0.4, 1.0), scores(0.5, 1.0, 0.3)
    return replace(overlap, accepted_tokens=tokens.accepted_tokens)


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
    "a loss of overlap, and tokens that may be more": worse_but_noisy(),
    "nothing stored, the same tokens": scores(float("nan"), 1.0),
}


def trials(count: int) -> list[Trial]:
    return [Trial(HYPOTHESIS, Reading(None, str(number))) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("case", [*KEPT, *RULED_OUT])
def test_only_what_gains_nothing_that_counts_is_ruled_out(case: str) -> None:
    own = KEPT.get(case) or RULED_OUT[case]
    found = screen(trials(2), [scores(0.5, 1.0), own], decision_rule(40), seed=0)
    kept = case in KEPT
    assert (len(found.left), len(found.rejected), found.outdone) == (1 + kept, 1 - kept, [])
    for result in found.rejected:
        assert (result.status, result.anchors) == ("rejected", TEXTS * PER_TEXT)
        assert result.accepted_length is None


def test_what_another_reading_outdoes_is_set_aside() -> None:
    declared, best = scores(0.5, 1.0), scores(0.7, 2.0)
    others = {
        "better, by less": scores(0.6, 1.5),
        "perhaps better": scores(0.5, 1.0, 0.2),
        "as good by one statistic": scores(0.7, 1.5),
        "as good": scores(0.7, 2.0),
        "better by the other statistic": scores(0.4, 2.5),
    }
    found = screen(trials(7), [declared, best, *others.values()], decision_rule(40), seed=0)
    names = ["declared", "best", *others]
    assert [names[int(trial.reading.fix or 0)] for trial in found.left] == [
        "declared",
        "best",
        "as good",
        "better by the other statistic",
    ]
    assert [names[int(trial.reading.fix or 0)] for trial, _ in found.outdone] == [
        "better, by less",
        "perhaps better",
        "as good by one statistic",
    ]
    assert {result.status for _, result in found.outdone} <= {"hint", "rejected"}


def test_nothing_is_set_aside_for_a_gain_that_may_be_chance() -> None:
    """Better than the other one beyond doubt, but not than the declared one."""
    better, other = scores(0.56, 1.05, 0.1), scores(0.55, 1.04, 0.1)
    found = screen(trials(3), [scores(0.5, 1.0), better, other], decision_rule(40), seed=0)
    assert (len(found.left), found.outdone, found.best) == (3, [], 0)


def test_a_gain_of_a_few_texts_is_not_ruled_out() -> None:
    """A sample can miss most texts that gain by a reading, but not tell that it has."""
    few = scores(0.5, 1.0)
    few.overlap[:2] += 0.001
    found = screen(trials(2), [scores(0.5, 1.0), few], decision_rule(40), seed=0)
    assert len(found.left) == 2


@pytest.mark.parametrize(
    ("left", "outdone", "again"),
    [("markov-off", "layout-other", True), ("layout-other", "markov-off", False)],
)
def test_what_was_outdone_is_judged_on_all_anchors_only_if_it_was_in_vain(
    left: str,
    outdone: str,
    again: bool,
    build: Callable[..., Path],
    short_trace: Trace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the sample had preferred one reading, right or wrong, to the other."""
    sample(monkeypatch, 200)
    doings: list[str] = []

    def prefer(tried: Sequence[Trial], sampled: Sequence[Scores], *rest: object) -> Screening:
        by_name = {trial.hypothesis.id: trial for trial in tried}
        aside = HypothesisResult.model_validate(
            {"id": outdone, "status": "hint", "reason": "", "anchors": 200}
        )
        return Screening([tried[0], by_name[left]], [], [(by_name[outdone], aside)], best=1)

    monkeypatch.setattr(diagnosing, "screen", prefer)
    folder = build(DENSE, ONE_PLUS_N_DECLARED)
    inputs = diagnosis_input_of_trace(folder, short_trace, target=TARGET, machine=FLOAT32)
    diagnosis = diagnose(
        inputs, decode_options(short_trace), on_progress=lambda doing, *_: doings.append(doing)
    )
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", "layout-other")
    assert diagnosis.hypotheses[0].anchors == diagnosis.anchors
    assert ("diagnosing again" in doings) == again
    assert by_id(diagnosis)[outdone].anchors == (diagnosis.anchors if again else 200)


def test_a_text_without_an_anchor_is_not_counted() -> None:
    """One text that speaks among others that say nothing is one text, not certainty."""
    silent = np.zeros(TEXTS)
    silent[3] = 1.0
    declared, other = (
        Scores(*(np.nan_to_num(values) * silent for values in vars(each).values()))
        for each in (scores(0.5, 1.0), scores(0.9, 3.0))
    )
    judge = Judge(declared, decision_rule(2), seed=0)
    assert judge.texts == 1
    comparison = judge.compare(other)
    assert not comparison.gains
    assert comparison.overlap.decision is None


def test_few_texts_can_name_nothing_and_settle_nothing() -> None:
    few = [
        Scores(*(values[:7] for values in vars(each).values()))
        for each in (scores(0.5, 1.0), scores(0.9, 3.0), scores(0.1, 0.2))
    ]
    found = screen(trials(3), few, decision_rule(2), seed=0)
    assert (len(found.left), found.rejected, found.outdone) == (3, [], [])
