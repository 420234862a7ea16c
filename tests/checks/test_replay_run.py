"""``check --trace``: the report of a replay against that of the decode run that it stands for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dspark_convert.checks.acceptance import (
    AcceptanceSettings,
    count_rounds,
    measure_acceptance,
)
from dspark_convert.checks.agreement import check_agreement
from dspark_convert.checks.confidence import check_confidence
from dspark_convert.checks.replay_run import ReplayRun
from dspark_convert.checks.run import VerifyOptions, verify
from dspark_convert.cli.verify import app
from dspark_convert.errors import DSparkError, UsageError
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.records import DecodeOptions, DecodeResult
from dspark_convert.runtime.sampling import SamplingOptions
from dspark_convert.schemas.numbers import (
    AcceptanceNumbers,
    AgreementNumbers,
    ConfidenceNumbers,
    PromptExpectation,
)
from dspark_convert.schemas.report import CheckResult, VerifyReport
from dspark_convert.traces.record import record
from dspark_convert.traces.trace import Trace, TraceSequence, open_trace
from dspark_convert.traces.writer import staged_trace
from tests.replay.test_replay import decode_texts, pair, replay_options
from tests.replay.test_replay import record as record_texts
from tests.runtime.helpers import GOLDEN, random_prompts
from tests.traces.helpers import (
    FULL,
    PROMPTS,
    REDUCED,
    VERIFIER,
    make_header,
    record_options,
    write_prompts,
)

LOSSLESS = ("lossless-greedy", "lossless-sampling")


def write_sequences(
    path: Path, sequences: Sequence[TraceSequence], options: DecodeOptions, **changes: Any
) -> Trace:
    """A trace file of the bigram pair."""
    target = make_header().target.model_copy(
        update={"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 3}
    )
    entries = [
        {"id": s.id, "num_tokens": len(s.token_ids), "first_generated": s.first_generated}
        for s in sequences
    ]
    header = make_header(
        target=target.model_dump(),
        sampling={"temperature": options.temperature, "top_k": None, "top_p": None},
        max_new_tokens=options.max_new_tokens,
        extra_tokens=6,
        stop_token_ids=sorted(options.stop_token_ids),
        layer_ids=[-1, 0, 1, 2],
        sequences=entries,
        **changes,
    )
    with staged_trace(path, header, {}, overwrite=False) as writer:
        for sequence in sequences:
            writer.add(sequence)
    return open_trace(path)


def greedy_run(
    folder: Path, options: DecodeOptions
) -> tuple[DraftModel, tuple[DecodeResult, ...], Trace]:
    """Decoded prompts of the bigram pair, and a trace of the texts."""
    target, draft = pair("anchor_first")
    prompts = random_prompts(64, [3, 9, 5, 14, 1, 7])
    results, texts = decode_texts((target, draft), prompts, options)
    sequences = record_texts(target, texts, prompts, options)
    return draft, results, write_sequences(folder / "trace.safetensors", sequences, options)


def numbers_of(report: VerifyReport, check_id: str) -> Any:
    return next(check for check in report.checks if check.id == check_id).numbers


def assert_same_acceptance(decoded: CheckResult, replayed: CheckResult) -> None:
    one, two = decoded.numbers, replayed.numbers
    assert isinstance(one, AcceptanceNumbers)
    assert isinstance(two, AcceptanceNumbers)
    assert two.method == "replayed"
    other = {
        "method",
        "accepted_length_by_num_speculative_tokens",
        "accepted_length_by_confidence_threshold",
        "mass_outside_draft_vocabulary",
        "prompts",
    }
    assert two.model_dump(exclude=other) == one.model_dump(exclude=other)
    assert (replayed.verdict, replayed.reason) == (decoded.verdict, decoded.reason)
    rounds = [prompt.model_dump()["accepted_per_round"] for prompt in two.prompts]
    assert rounds == [prompt.model_dump()["accepted_per_round"] for prompt in one.prompts]
    assert all(type(value) is int for value in (two.rounds, two.accepted, *two.histogram))


@pytest.mark.parametrize(
    "changes", [{}, {"stop_token_ids": frozenset(range(0, 64, 5))}, {"num_speculative_tokens": 2}]
)
def test_greedy_reports_are_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    options = DecodeOptions(**{"max_new_tokens": 24, **changes})
    draft, results, trace = greedy_run(tmp_path, options)
    run = ReplayRun(draft, trace, replay_options(options))
    settings = AcceptanceSettings(num_tokens=run.num_tokens, min_accepted_length=1.5)
    names = [str(index) for index in range(len(results))]
    decoded = measure_acceptance(
        results, names, settings, groups=group_prompts(names), mass_outside=0.0
    )
    assert_same_acceptance(decoded, run.check_acceptance(settings))
    tally, counted = run.tally(), count_rounds(results, run.num_tokens)
    assert np.array_equal(tally.trials, counted.trials)
    one, two = (
        check_confidence(results, run.num_tokens, group_prompts(names)),
        run.check_confidence(),
    )
    assert isinstance(one.numbers, ConfidenceNumbers)
    assert isinstance(two.numbers, ConfidenceNumbers)
    assert two.numbers.tokens == one.numbers.tokens
    assert two.numbers.auc == pytest.approx(one.numbers.auc, abs=1e-6)
    assert two.numbers.expected_calibration_error == pytest.approx(
        one.numbers.expected_calibration_error, abs=1e-6
    )


def test_repeated_prompts_of_a_trace_count_once(tmp_path: Path) -> None:
    """As in the decode run that it stands for, whatever the texts are called."""
    options = DecodeOptions(max_new_tokens=24)
    target, draft = pair("anchor_first")
    prompts = [random_prompts(64, [9])[0]] * 3 + random_prompts(64, [5, 14])
    results, texts = decode_texts((target, draft), prompts, options)
    sequences = record_texts(target, texts, prompts, options)
    trace = write_sequences(tmp_path / "trace.safetensors", sequences, options)
    run, groups = (
        ReplayRun(draft, trace, replay_options(options)),
        group_prompts(map(tuple, prompts)),
    )
    assert run.groups == groups
    assert groups.first == (0, 0, 0, 3, 4)
    settings = AcceptanceSettings(num_tokens=run.num_tokens, min_accepted_length=1.5)
    names = [str(index) for index in range(5)]
    decoded = measure_acceptance(results, names, settings, groups=groups, mass_outside=0.0)
    replayed = run.check_acceptance(settings)
    assert_same_acceptance(decoded, replayed)
    assert isinstance(replayed.numbers, AcceptanceNumbers)
    assert [x.same_prompt_as for x in replayed.numbers.prompts] == [None, 0, 0, None, None]
    one, two = check_confidence(results, run.num_tokens, groups), run.check_confidence()
    assert isinstance(one.numbers, ConfidenceNumbers)
    assert isinstance(two.numbers, ConfidenceNumbers)
    assert two.numbers.auc_standard_error == one.numbers.auc_standard_error
    assert two.numbers.warnings == groups.warnings


def test_lengths_of_other_drafting_are_those_of_runs_with_it(tmp_path: Path) -> None:
    """Fewer tokens, or a confidence threshold: one replay says what each decode run would."""
    options = DecodeOptions(max_new_tokens=24)
    draft, _, trace = greedy_run(tmp_path, options)
    run = ReplayRun(draft, trace, replay_options(options))
    numbers = run.check_acceptance(AcceptanceSettings(num_tokens=5)).numbers
    assert isinstance(numbers, AcceptanceNumbers)
    assert numbers.accepted_length_by_confidence_threshold is not None

    def decoded_length(**changes: Any) -> float:
        prompts = random_prompts(64, [3, 9, 5, 14, 1, 7])
        results, _ = decode_texts(pair("anchor_first"), prompts, replace(options, **changes))
        return sum(r.committed for r in results) / sum(len(r.rounds) for r in results)

    for count, length in enumerate(numbers.accepted_length_by_num_speculative_tokens, start=1):
        assert length == decoded_length(num_speculative_tokens=count)
    for entry in numbers.accepted_length_by_confidence_threshold[::3]:
        threshold = entry.confidence_threshold
        assert entry.accepted_length == decoded_length(confidence_threshold=threshold)
    cut = ReplayRun(draft, trace, replay_options(replace(options, confidence_threshold=0.4)))
    numbers = cut.check_acceptance(AcceptanceSettings(num_tokens=5)).numbers
    assert isinstance(numbers, AcceptanceNumbers)
    assert numbers.drafted is None
    assert numbers.accepted_length_by_confidence_threshold is None
    assert numbers.accepted_length == decoded_length(confidence_threshold=0.4)


def test_given_texts_have_no_accepted_length(tmp_path: Path) -> None:
    options = DecodeOptions(max_new_tokens=24)
    target, draft = pair("anchor_first")
    prompts = random_prompts(64, [3, 5])
    texts = [[*prompt, *random_prompts(64, [20], seed=9)[0]] for prompt in prompts]
    sequences = record_texts(target, texts, prompts, options)
    trace = write_sequences(
        tmp_path / "t.safetensors", sequences, options, text_origin="given", has_argmax=True
    )
    result = check_agreement(
        draft, trace, replay_options(options), seed=0, on_progress=lambda *news: None
    )
    assert result.verdict == "inconclusive"
    assert isinstance(result.numbers, AgreementNumbers)
    assert (result.numbers.texts, result.numbers.anchors) == (2, 38)
    assert all(share is not None for share in result.numbers.agreement_by_position)
    assert all(interval is not None for interval in result.numbers.agreement_interval95)
    assert result.numbers.warnings == ()
    twice = write_sequences(
        tmp_path / "twice.safetensors",
        record_texts(target, texts[:1] * 2, prompts[:1] * 2, options),
        options,
        text_origin="given",
        has_argmax=True,
    )
    repeated = check_agreement(
        draft, twice, replay_options(options), seed=0, on_progress=lambda *news: None
    ).numbers
    assert isinstance(repeated, AgreementNumbers)
    assert set(repeated.agreement_interval95) == {None}
    assert repeated.warnings == ("1 of 2 prompts are repetitions, and count once in intervals",)


def test_a_trace_decides_the_sampling() -> None:
    header = make_header(sampling={"temperature": 0.8, "top_k": 5, "top_p": None})
    asked = DecodeOptions(max_new_tokens=128, draft_sampling="greedy", num_speculative_tokens=3)
    followed = VerifyOptions(draft=FULL, decode=asked).follow_trace(header)
    assert followed == replace(
        asked, max_new_tokens=5, stop_token_ids=frozenset({49}), temperature=0.8, top_k=5
    )
    same = VerifyOptions(
        draft=FULL,
        decode=replace(asked, temperature=0.8),
        stop_token_ids=frozenset({49}),
        stated=frozenset({"temperature", "stop_token_ids"}),
    )
    assert same.follow_trace(header) == followed
    for name in ("temperature", "top_p", "max_new_tokens", "stop_token_ids"):
        changed = VerifyOptions(
            draft=FULL,
            decode=replace(asked, temperature=0.7, top_p=0.5),
            stop_token_ids=frozenset(),
            stated=frozenset({name}),
        )
        with pytest.raises(UsageError) as caught:
            changed.follow_trace(header)
        assert caught.value.code == "trace-option-conflict"


CPU = Machine(device="cpu")


def check_trace(trace: Path, draft: Path = FULL, **changes: Any) -> VerifyReport:
    return verify(VerifyOptions(draft=draft, trace=trace, machine=CPU, **changes))


def test_a_whole_check_equals_the_one_with_the_target(tmp_path: Path) -> None:
    options = record_options(tmp_path)
    record(options)
    replayed = check_trace(options.output)
    decoded = verify(
        VerifyOptions(
            draft=FULL,
            target=VERIFIER,
            prompts=options.prompts,
            decode=DecodeOptions(max_new_tokens=10),
            stop_token_ids=frozenset(),
            machine=CPU,
        )
    )
    both = [
        next(check for check in report.checks if check.id == "acceptance")
        for report in (decoded, replayed)
    ]
    assert_same_acceptance(*both)
    assert [check.id for check in replayed.checks] == [check.id for check in decoded.checks]
    skipped = {c.id: c.reason for c in replayed.checks if c.verdict == "skipped"}
    assert all("nothing was decoded" in skipped[check_id] for check_id in LOSSLESS)
    assert replayed.settings.trace == "trace.safetensors"
    assert replayed.settings.num_prompts == 3
    assert replayed.settings.max_new_tokens == 10
    assert (replayed.settings.engine, replayed.settings.engine_reason) == (
        "plain",
        "the device is cpu",
    )
    assert replayed.target is not None
    assert replayed.target.name == "verifier_fp32"


def test_a_sampled_trace_gives_expected_counts(tmp_path: Path) -> None:
    options = record_options(tmp_path, sampling=SamplingOptions(temperature=1.0))
    record(options)
    report = check_trace(options.output, decode=DecodeOptions(max_new_tokens=1))
    numbers = numbers_of(report, "acceptance")
    assert isinstance(numbers.rounds, float)
    assert all(isinstance(prompt, PromptExpectation) for prompt in numbers.prompts)
    assert numbers.committed >= 30
    again = VerifyReport.model_validate_json(report.model_dump_json())
    assert again == report


def test_a_borrowed_tensor_comes_from_the_trace_or_the_target(tmp_path: Path) -> None:
    options = record_options(tmp_path)
    header = record(options)
    assert header.has_embedding
    own = numbers_of(check_trace(options.output), "acceptance")
    weights = numbers_of(check_trace(options.output, target_weights=VERIFIER), "acceptance")
    assert own == weights
    with pytest.raises(DSparkError) as caught:
        check_trace(options.output, target_weights=GOLDEN / "verifier_bf16")
    assert caught.value.code == "trace-other-target"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target": VERIFIER}, "trace-option-conflict"),
        ({"prompts": Path("prompts.jsonl")}, "trace-option-conflict"),
        ({"decode": DecodeOptions(max_new_tokens=9), "stated": frozenset({"max_new_tokens"})},
         "trace-option-conflict"),
        ({"decode": DecodeOptions(max_new_tokens=9, num_speculative_tokens=8)},
         "too-many-speculative-tokens"),
        ({"min_acceptance": (0.1,) * 9}, "option-out-of-range"),
        ({"trace": None, "target_weights": VERIFIER, "source": FULL}, "trace-missing"),
    ],
)  # fmt: skip
def test_options_that_contradict_a_trace(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    options = record_options(tmp_path)
    record(options)
    with pytest.raises(UsageError) as caught:
        verify(VerifyOptions(**{"draft": FULL, "trace": options.output, **changes}))
    assert caught.value.code == code


def test_a_trace_without_the_draft_s_layers_is_refused(tmp_path: Path) -> None:
    options = record_options(tmp_path)
    record(options)
    other = shutil.copytree(FULL, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["aux_hidden_state_layer_ids"] = [1, 2, 4]
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(DSparkError) as caught:
        check_trace(options.output, other)
    assert caught.value.code == "trace-layers-missing"


def test_given_texts_end_inconclusive(tmp_path: Path) -> None:
    lines = [
        {"id": str(number), "prompt_token_ids": list(prompt), "response_token_ids": [3, 4, 5, 6]}
        for number, prompt in enumerate(PROMPTS)
    ]
    prompts = write_prompts(tmp_path, lines)
    options = record_options(tmp_path, given=True, prompts=prompts)
    record(options)
    report = check_trace(options.output)
    assert report.verdict == "inconclusive"
    assert isinstance(numbers_of(report, "acceptance"), AgreementNumbers)


def test_the_command_shows_and_decides(tmp_path: Path) -> None:
    options = record_options(tmp_path, sampling=SamplingOptions(temperature=1.0))
    record(options)
    runner, arguments = CliRunner(), ["check", str(FULL), "--trace", str(options.output)]
    shown = runner.invoke(app, arguments, env={"COLUMNS": "200"})
    assert "expected, given the texts" in shown.stdout
    assert "with a confidence threshold" in shown.stdout
    failed = runner.invoke(app, [*arguments, "--min-accepted-length", "4", "--json"])
    assert failed.exit_code == 1
    document = json.loads(failed.stdout)
    assert document["settings"]["temperature"] == 1.0
    conflict = runner.invoke(app, [*arguments, "--temperature", "0", "--json"])
    assert conflict.exit_code == 2
    assert runner.invoke(app, [*arguments, "--temperature", "1"]).exit_code in (0, 4)
    reduced = ["check", str(REDUCED), "--trace", str(options.output)]
    weights = [*reduced, "--target-weights", str(GOLDEN / "verifier_bf16")]
    assert runner.invoke(app, weights).exit_code == 3
