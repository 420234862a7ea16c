"""What ``dspark-verify diagnose`` does: get texts, try every reading, show what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import Sink, literal
from dspark_convert.cli.exits import refusals
from dspark_convert.cli.render import facts_grid, plain_table
from dspark_convert.cli.run_options import RawRun, build_options
from dspark_convert.errors import Finding, UsageError
from dspark_convert.reports.content import describe_engine, gain, sample_size
from dspark_convert.reports.text import number
from dspark_convert.schemas.diagnosis import Diagnosis, HypothesisResult

if TYPE_CHECKING:
    from dspark_convert.checks.options import VerifyOptions
    from dspark_convert.diagnosis.subject import DiagnosisInput
    from dspark_convert.runtime import DecodeOptions
    from dspark_convert.traces.record import RecordOptions

EXIT_CODES = {"healthy": 0, "cause-found": 1, "undecided": 4}

_STYLES = {"healthy": "bold green", "cause-found": "bold red", "undecided": "bold yellow"}

Progress = Callable[[str, int, int], None]


def diagnose(raw: RawRun, *, as_json: bool, quiet: bool) -> None:
    """Diagnose a draft; the exit code is the verdict."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        options = _options(raw, sink)
        with sink.steps() as on_progress:
            result = _diagnose(raw, options, on_progress)
        sink.data(result.model_dump(mode="json"), diagnosis_view(result))
        raise typer.Exit(EXIT_CODES[result.verdict])


def diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    """The verdict with its evidence, then every reading that was tried."""
    tried = [result for result in diagnosis.hypotheses if result.status != "not-applicable"]
    skipped = [result for result in diagnosis.hypotheses if result.status == "not-applicable"]
    facts = [
        ("draft", diagnosis.draft),
        ("target", diagnosis.target),
        ("texts", _texts(diagnosis)),
    ]
    if diagnosis.engine is not None:
        facts.append(("engine", describe_engine(diagnosis)))
    facts += [("settled early", text) for text in _settled_early(tried, diagnosis)]
    facts += [("not tried", f"{result.id}: {result.reason}") for result in skipped]
    verdict = Text(diagnosis.verdict, style=_STYLES[diagnosis.verdict])
    named = "" if diagnosis.best == "as-declared" else f" {diagnosis.best}"
    verdict.append_text(literal(f"{named}: {diagnosis.reason}"))
    views: list[RenderableType] = [facts_grid(facts), _table(tried), verdict]
    best = diagnosis.hypotheses[0]
    if diagnosis.verdict == "cause-found" and best.fix is not None:
        views.append(literal(f"fix: {best.fix}"))
    return Group(*views)


def _texts(diagnosis: Diagnosis) -> str:
    if diagnosis.temperature is None:
        return "none were needed"
    rule = diagnosis.decision
    return (
        f"{diagnosis.texts} at temperature {diagnosis.temperature:g}, {diagnosis.anchors} anchors; "
        f"a cause needs an interval above 0 at level {rule.level:.2%}"
    )


def _settled_early(tried: list[HypothesisResult], diagnosis: Diagnosis) -> list[str]:
    """Readings that were not replayed on all anchors, by the number that they were judged on."""
    early: dict[str, list[str]] = {}
    for result in tried:
        if size := sample_size(result, diagnosis):
            early.setdefault(size, []).append(result.id)
    return [f"{', '.join(ids)}: {size}" for size, ids in early.items()]


def _table(results: list[HypothesisResult]) -> Table:
    columns = ("reading", "", "length", "overlap", "overlap gain", "accepted tokens gain")
    table = plain_table("Readings, against the declared one on the same anchors", columns)
    table.columns[0].no_wrap = True
    for result in results:
        table.add_row(
            literal(result.id),
            literal(result.status),
            number(result.accepted_length),
            number(result.overlap),
            gain(result.difference, result.difference_decision_interval),
            gain(result.accepted_tokens_difference, result.accepted_tokens_decision_interval),
        )
    return table


def _options(raw: RawRun, sink: Sink) -> VerifyOptions:
    _require_one_source(raw)
    options = build_options(raw, sink)
    options.check()
    return options


def _require_one_source(raw: RawRun) -> None:
    if raw.target is None and raw.trace is None:
        raise UsageError(
            Finding(
                code="target-missing",
                message="diagnosis needs texts of the target",
                expected="--target DIR or --trace FILE",
                hint="a trace recorded with --neighbours lets layer ids be diagnosed too",
            )
        )


def _diagnose(raw: RawRun, options: VerifyOptions, on_progress: Progress) -> Diagnosis:
    from dspark_convert.diagnosis.diagnose import diagnose
    from dspark_convert.runtime.fast import choose_steps
    from dspark_convert.runtime.replay import PLAIN

    suspect, decode = _find_suspect(options, on_progress)
    subject = suspect.subject
    steps = PLAIN if subject is None else choose_steps(subject.draft, options.engine)
    return diagnose(suspect, decode, seed=raw.seed, steps=steps, on_progress=on_progress)


def _find_suspect(
    options: VerifyOptions, on_progress: Progress
) -> tuple[DiagnosisInput, DecodeOptions]:
    """The draft with texts, and how these were made."""
    from dspark_convert.checks.replay_run import follow_trace
    from dspark_convert.diagnosis.subject import suspect_of_target, suspect_of_trace
    from dspark_convert.traces.trace import open_trace

    stop = options.stop_token_ids or frozenset()
    decode = replace(options.decode, stop_token_ids=stop)
    if options.trace is not None:
        trace = open_trace(options.trace)
        decode = follow_trace(trace.header, decode, options.stated)
        suspect = suspect_of_trace(
            options.draft,
            trace,
            target=options.target_weights,
            device=options.torch_device(),
            dtype=options.torch_dtype(),
            trust_remote_code=options.trust_remote_code,
        )
        return suspect, decode
    suspect = suspect_of_target(_record_options(options), on_progress=on_progress)
    if suspect.subject is not None:
        decode = follow_trace(suspect.subject.around.header, decode, frozenset())
    return suspect, decode


def _record_options(options: VerifyOptions) -> RecordOptions:
    from dspark_convert.traces.record import RecordOptions

    assert options.target is not None, "the options were checked"
    return RecordOptions(
        target=options.target,
        draft=options.draft,
        output=Path(),
        prompts=options.prompts,
        max_new_tokens=options.decode.max_new_tokens,
        sampling=options.decode.sampling,
        stop_token_ids=options.stop_token_ids,
        seed=options.seed,
        batch_size=options.batch_size,
        device=options.torch_device(),
        dtype=options.torch_dtype(),
        trust_remote_code=options.trust_remote_code,
    )
