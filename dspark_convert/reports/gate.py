"""The gate of a release: ``dspark.toml`` is read, applied to a run, and decided on its report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from dspark_convert.checkpoint.files import read_limited
from dspark_convert.checks import CHECKS
from dspark_convert.errors import Finding, GateError, UsageError
from dspark_convert.reports.compare import DropLimits, decide_drop, list_notes
from dspark_convert.reports.read import read_report
from dspark_convert.schemas.gate import Baseline, GateFile, Limits
from dspark_convert.schemas.gate_outcome import GateOutcome, RuleResult, RuleVerdict, worst
from dspark_convert.schemas.report import CheckId, VerifyReport

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:  # it needs PyTorch
    from dspark_convert.checks.options import VerifyOptions

MAX_GATE_BYTES = 100_000
_MAX_DOTS = 200  # of a line; a key of n parts is parsed in time that grows with the square of n
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The thresholds of one run, with every file found."""

    file: str
    prompt_set: str | None
    prompts: Path | None
    trace: Path | None
    min_accepted_length: float | None
    min_acceptance: tuple[float, ...]
    required_checks: tuple[CheckId, ...]
    baseline: tuple[Baseline, VerifyReport] | None


def open_gate(path: Path, prompt_set: str | None = None) -> Gate:
    """Read a thresholds file and what it names, for a run with or without a prompt set.

    Raises:
        GateError: ``gate-invalid``.
        UsageError: ``prompt-set-unknown``.
        ReportError, CheckpointError: the baseline, or the file, cannot be read.
    """
    document = read_gate(path)
    chosen: Limits = document
    prompts = trace = None
    if prompt_set is not None:
        entry = document.prompt_sets.get(prompt_set)
        if entry is None:
            raise _unknown_set(path, prompt_set, document)
        chosen = entry
        prompts, trace = (
            None if name is None else path.parent / name for name in (entry.prompts, entry.trace)
        )
    baseline = _first(chosen.baseline, document.baseline)
    return Gate(
        file=path.name,
        prompt_set=prompt_set,
        prompts=prompts,
        trace=trace,
        min_accepted_length=_first(chosen.min_accepted_length, document.min_accepted_length),
        min_acceptance=_first(chosen.min_acceptance, document.min_acceptance) or (),
        required_checks=_first(chosen.required_checks, document.required_checks) or (),
        baseline=None
        if baseline is None
        else (baseline, read_report(path.parent / baseline.report)),
    )


def read_gate(path: Path) -> GateFile:
    """A thresholds file as written; raises ``GateError`` (``gate-invalid``) with every fault."""
    try:
        text = read_limited(path, limit=MAX_GATE_BYTES).decode("utf-8")
        _require_short_keys(text)
        return GateFile.model_validate(tomllib.loads(text), context={"checks": CHECKS})
    except ValidationError as error:
        first, *more = [
            _invalid(path, fault["msg"], ".".join(map(str, fault["loc"])) or None)
            for fault in error.errors(include_url=False)
        ]
        raise GateError(first, *more) from None
    except (ValueError, RecursionError) as error:  # of TOML or UTF-8
        raise GateError(_invalid(path, str(error))) from None


def _require_short_keys(text: str) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".") > _MAX_DOTS and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots")


def follow_gate(options: VerifyOptions, gate: Gate) -> VerifyOptions:
    """Options with the prompts of the gate, and with its thresholds unless others were given.

    Raises ``UsageError`` (``prompt-set-conflict``) if prompts or a trace were given too.
    """
    named = gate.prompts or gate.trace
    given = options.prompts or options.trace
    if named and given:
        raise UsageError(
            Finding(
                code="prompt-set-conflict",
                message="the prompt set names its own prompts",
                found=f"{given.name} beside {named.name}",
                hint="omit --prompts and --trace, or omit --prompt-set",
            )
        )
    return replace(
        options,
        prompts=gate.prompts or options.prompts,
        trace=gate.trace or options.trace,
        min_accepted_length=_first(options.min_accepted_length, gate.min_accepted_length),
        min_acceptance=options.min_acceptance or gate.min_acceptance,
    )


def apply_gate(gate: Gate, report: VerifyReport) -> VerifyReport:
    """The report with the outcome of the gate; its verdict is the worse of the two."""
    rules = tuple(_decide(gate, report))
    verdict = worst(rule.verdict for rule in rules)
    outcome = GateOutcome(
        file=gate.file,
        prompt_set=gate.prompt_set,
        baseline=Path(gate.baseline[0].report).name if gate.baseline else None,
        verdict=verdict,
        rules=rules,
        notes=tuple(list_notes(gate.baseline[1], report)) if gate.baseline else (),
    )
    both = worst((report.verdict, verdict))
    return report.model_copy(update={"gate": outcome, "verdict": both})


def _decide(gate: Gate, report: VerifyReport) -> Iterator[RuleResult]:
    results = {check.id: check for check in report.checks}
    for check_id in dict.fromkeys(gate.required_checks):
        check = results[check_id]  # a report has an entry for every check
        verdict: RuleVerdict = "fail" if check.verdict == "skipped" else check.verdict
        reason = check.reason if check.verdict != "skipped" else f"skipped: {check.reason}"
        yield RuleResult(rule=f"required-check:{check_id}", verdict=verdict, reason=reason)
    if gate.baseline:
        limits, base = gate.baseline
        drop = DropLimits(absolute=limits.max_drop, standard_errors=limits.max_drop_standard_errors)
        yield from decide_drop(base, report, drop)


def _first(chosen: T | None, fallback: T | None) -> T | None:
    return fallback if chosen is None else chosen


def _unknown_set(path: Path, name: str, document: GateFile) -> UsageError:
    return UsageError(
        Finding(
            code="prompt-set-unknown",
            message="the thresholds file has no such prompt set",
            file=path.name,
            found=name,
            expected=", ".join(sorted(document.prompt_sets)) or "none is defined",
        )
    )


def _invalid(path: Path, message: str, key: str | None = None) -> Finding:
    return Finding(
        code="gate-invalid",
        message=message,
        file=path.name,
        key=key,
        hint="the schema is printed by dspark-convert schema gate",
    )
