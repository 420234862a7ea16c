"""What the commands of ``dspark-verify`` do: build the options, verify, show, set the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dspark_convert.checks import CHECKS, find_check
from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import refusals
from dspark_convert.cli.report import report_view
from dspark_convert.cli.report_commands import EXIT_CODES, Outputs, append_step_summary
from dspark_convert.cli.run_options import RawRun, build_options, open_folder, quieten_transformers
from dspark_convert.errors import Finding, UsageError
from dspark_convert.reports.gate import apply_gate, follow_gate, open_gate
from dspark_convert.schemas.report import VerifyReport

if TYPE_CHECKING:
    from dspark_convert.checks.run import VerifyOptions


@dataclass(frozen=True, kw_only=True)
class RawOptions(RawRun):
    """The options of ``check`` as typed; lists are still texts."""

    source: str | None
    confidence_threshold: float | None
    min_accepted_length: float | None
    min_acceptance: str | None
    worst: int


def check(
    raw: RawOptions,
    *,
    gate: Path | None,
    prompt_set: str | None,
    outputs: Outputs,
    as_json: bool,
    quiet: bool,
) -> None:
    """Verify a draft; the exit code is the verdict."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        outputs.check(*filter(None, (raw.draft, raw.target, raw.source)))
        result = _check(raw, gate, prompt_set, sink)
        outputs.write(result)
        append_step_summary(result)
        sink.data(result.model_dump(mode="json"), report_view(result))
        _offer_diagnosis(raw, result, sink)
        raise typer.Exit(EXIT_CODES[result.verdict])


def _offer_diagnosis(raw: RawOptions, report: VerifyReport, sink: Sink) -> None:
    failed = {check.id for check in report.checks if check.verdict == "fail"}
    if "acceptance" in failed:
        texts = f"--trace {raw.trace}" if raw.trace else f"--target {raw.target}"
        sink.note(f"to find out why: dspark-verify diagnose {raw.draft} {texts}")


def explain(check_id: str | None) -> None:
    """Print the text of a check, or the list of checks."""
    sink = Sink()
    with refusals(sink):
        if check_id is None:
            for check in CHECKS.values():
                typer.echo(f"{check.id:18} {check.title}")
        else:
            typer.echo(find_check(check_id).explain(), nl=False)


def _check(raw: RawOptions, gate: Path | None, prompt_set: str | None, sink: Sink) -> VerifyReport:
    if gate is None:
        if prompt_set is not None:
            raise _usage("gate-missing", "--prompt-set needs --gate", prompt_set, "--gate FILE")
        return _verify(_options(raw, sink), sink)
    thresholds = open_gate(gate, prompt_set)
    return apply_gate(thresholds, _verify(follow_gate(_options(raw, sink), thresholds), sink))


def _options(raw: RawOptions, sink: Sink) -> VerifyOptions:
    quieten_transformers()
    from dspark_convert.checks.options import VerifyOptions

    return build_options(
        VerifyOptions,
        raw,
        sink,
        confidence_threshold=raw.confidence_threshold,
        source=None if raw.source is None else open_folder(raw, sink)(raw.source),
        min_accepted_length=raw.min_accepted_length,
        min_acceptance=_fractions(raw.min_acceptance),
        worst=raw.worst,
    )


def _verify(options: VerifyOptions, sink: Sink) -> VerifyReport:
    from dspark_convert.checks.run import verify

    with sink.steps() as on_progress:
        return verify(options, on_progress=on_progress)


def _fractions(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0.0 <= value <= 1.0 for value in values):
        raise _usage(
            "min-acceptance-invalid", "--min-acceptance is a list of fractions", text, "0.6,0.4"
        )
    return values


def _usage(code: str, message: str, found: str, expected: str) -> UsageError:
    return UsageError(Finding(code=code, message=message, found=found, expected=expected))
