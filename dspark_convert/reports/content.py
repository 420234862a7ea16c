"""What a report says to people, as facts and tables that are not yet formatted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspark_convert.reports.text import bounds, count, number
from dspark_convert.schemas.diagnosis import Diagnosis, HypothesisResult
from dspark_convert.schemas.identity import WeightsIdentity
from dspark_convert.schemas.numbers import (
    AcceptanceNumbers,
    AgreementNumbers,
    ConfidenceNumbers,
    Interval,
)
from dspark_convert.schemas.report import VerifyReport, VerifySettings


@dataclass(frozen=True)
class Table:
    """Texts under headings, not escaped yet."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tabulate_diagnosis(diagnosis: Diagnosis) -> Table:
    """Every reading that was tried, with its gain over the declared one."""
    rows = [
        (
            result.id,
            ", ".join(filter(None, (result.status, sample_size(result, diagnosis)))),
            number(result.accepted_length),
            number(result.overlap),
            gain(result.difference, result.difference_decision_interval),
            gain(result.accepted_tokens_difference, result.accepted_tokens_decision_interval),
            (result.fix or "") if result.status in ("cause", "hint") else "",
        )
        for result in diagnosis.hypotheses
        if result.status != "not-applicable"
    ]
    return Table(
        f"Diagnosis: {diagnosis.verdict}",
        (
            "reading",
            "status",
            "accepted length",
            "overlap",
            "overlap gain",
            "accepted tokens gain",
            "what to do",
        ),
        rows,
    )


def sample_size(result: HypothesisResult, diagnosis: Diagnosis) -> str | None:
    """On how many anchors a reading was judged, if not on all; it then has no length."""
    if result.anchors is None or result.anchors == diagnosis.anchors:
        return None
    return f"judged on {result.anchors} of {diagnosis.anchors} anchors"


def gain(value: float | None, interval: Interval | None) -> str:
    """A difference with its interval."""
    return "-" if value is None else f"{value:+.4f} ({bounds(interval)})"


def list_facts(report: VerifyReport) -> list[tuple[str, str]]:
    """What was verified, against what, and how."""
    settings, target = report.settings, report.target
    facts = [
        ("draft", f"{report.draft.name} ({report.draft.dialect or 'unknown dialect'})"),
        ("target", target.name if target else "none"),
        *list_weights(report),
        (
            "texts",
            f"{settings.num_prompts} prompts of {settings.trace or settings.prompts}, "
            f"{settings.max_new_tokens} new tokens",
        ),
        (
            "sampling",
            f"temperature {settings.temperature:g}, top-k {_or_none(settings.top_k)}, top-p "
            f"{_or_none(settings.top_p)}, draft {settings.draft_sampling}, seed {settings.seed}",
        ),
        ("machine", f"{settings.device}, {settings.dtype}"),
    ]
    if settings.engine is not None:
        facts.append(("decoder", describe_decoder(settings)))
    versions = ", ".join(f"{name} {version}" for name, version in settings.versions.items())
    return [*facts, ("versions", versions)]


def list_weights(report: VerifyReport) -> list[tuple[str, str]]:
    """Which weights draft and target have, as far as the report names them."""
    named = {"draft": report.draft.weights, "target": report.target and report.target.weights}
    return [
        (f"{side} weights", describe_weights(weights)) for side, weights in named.items() if weights
    ]


def describe_weights(weights: WeightsIdentity) -> str:
    """The digest, and of what."""
    how = "all bytes"
    if weights.method == "sampled":
        how = "the first, the middle and the last 4 KiB of every tensor"
    return f"SHA-256 {weights.sha256[:16]}… of {how}"


def describe_decoder(settings: VerifySettings | Diagnosis) -> str:
    """What decoded or replayed, and why not the fast one."""
    reason = "" if settings.engine_reason is None else f", since {settings.engine_reason}"
    return f"{settings.engine}{reason}"


def find_acceptance(report: VerifyReport) -> AcceptanceNumbers | None:
    """The acceptance numbers, if there was a round."""
    for check in report.checks:
        if isinstance(check.numbers, AcceptanceNumbers) and check.numbers.rounds:
            return check.numbers
    return None


def find_agreement(report: VerifyReport) -> AgreementNumbers | None:
    """The agreement numbers, on texts that the target did not write."""
    found = (check.numbers for check in report.checks)
    return next((numbers for numbers in found if isinstance(numbers, AgreementNumbers)), None)


def find_confidence(report: VerifyReport) -> ConfidenceNumbers | None:
    """The confidence numbers, if a token was drafted."""
    for check in report.checks:
        if isinstance(check.numbers, ConfidenceNumbers) and check.numbers.tokens:
            return check.numbers
    return None


def checks_table(report: VerifyReport) -> Table:
    """Every check with its verdict."""
    rows = [(check.id, check.verdict, check.reason) for check in report.checks]
    return Table("Checks", ("check", "verdict", "because"), rows)


def list_gate_notes(report: VerifyReport) -> tuple[str, ...]:
    """What the gate adds to its rules."""
    return report.gate.notes if report.gate else ()


def gate_table(report: VerifyReport) -> Table | None:
    """The rules of the thresholds file, if there was one."""
    gate = report.gate
    if gate is None or not gate.rules:
        return None
    title = f"Gate {gate.file}" + (f", prompt set {gate.prompt_set}" if gate.prompt_set else "")
    rows = [(rule.rule, rule.verdict, rule.reason) for rule in gate.rules]
    return Table(title, ("rule", "verdict", "because"), rows)


def describe_length(numbers: AcceptanceNumbers) -> str:
    """The accepted length in one sentence, with the counts behind it."""
    expected = " (expected, given the texts)" if numbers.method == "replayed" else ""
    return (
        f"Accepted length {number(numbers.accepted_length)} committed tokens per round, the bonus "
        f"token included (95 % interval {bounds(numbers.interval95)}, bootstrap over prompts); "
        f"{count(numbers.rounds)} rounds, {count(numbers.drafted)} drafted, "
        f"{count(numbers.accepted)} accepted, {count(numbers.committed)} committed{expected}."
    )


def positions_table(numbers: AcceptanceNumbers) -> Table:
    """Acceptance and survival by position, and the accepted length if proposals end there."""
    columns = (
        numbers.acceptance_by_position,
        numbers.acceptance_interval95,
        numbers.survival_by_position,
        numbers.accepted_length_by_num_speculative_tokens,
    )
    rows = [
        (str(position), number(acceptance), bounds(interval), number(survival), number(length))
        for position, (acceptance, interval, survival, length) in enumerate(
            zip(*columns, strict=True), start=1
        )
    ]
    headers = ("token", "acceptance", "95 %", "survival", "accepted length if the last")
    return Table("Acceptance by position", headers, rows)


def histogram_table(numbers: AcceptanceNumbers) -> Table:
    """Rounds by how many draft tokens they accepted."""
    rows = [
        (str(accepted), count(rounds), f"{rounds / numbers.rounds:.1%}")
        for accepted, rounds in enumerate(numbers.histogram)
    ]
    return Table("Accepted draft tokens", ("accepted", "rounds", "share"), rows)


def thresholds_table(numbers: AcceptanceNumbers) -> Table | None:
    """Accepted length by confidence threshold, if a trace was replayed."""
    lengths = numbers.accepted_length_by_confidence_threshold
    if not lengths:
        return None
    rows = [(f"{x.confidence_threshold:g}", number(x.accepted_length)) for x in lengths]
    return Table("With a confidence threshold", ("threshold", "accepted length"), rows)


def agreement_table(numbers: AgreementNumbers) -> Table:
    """Agreement by position."""
    pairs = zip(numbers.agreement_by_position, numbers.agreement_interval95, strict=True)
    rows = [
        (str(k), number(share), bounds(interval)) for k, (share, interval) in enumerate(pairs, 1)
    ]
    return Table("Agreement with the target's choice", ("token", "agreement", "95 %"), rows)


def calibration_table(numbers: ConfidenceNumbers) -> Table:
    """Confidence against acceptance by position."""
    rows = [
        (str(x.position), count(x.tokens), number(x.mean_confidence), number(x.acceptance))
        for x in numbers.by_position
    ]
    headers = ("token", "drafted", "confidence", "acceptance")
    return Table("Confidence by position", headers, rows)


def reliability_table(numbers: ConfidenceNumbers) -> Table | None:
    """Confidence against acceptance by confidence."""
    rows = [
        (
            f"{x.low:g} to {x.high:g}",
            count(x.tokens),
            number(x.mean_confidence),
            number(x.acceptance),
        )
        for x in numbers.reliability
        if x.tokens
    ]
    headers = ("confidence", "drafted", "mean", "acceptance")
    return Table("Reliability of the confidence head", headers, rows) if rows else None


def list_tables(report: VerifyReport) -> Iterator[Table]:
    """All tables after that of the checks, in the order used by the forms that only have tables."""
    acceptance, confidence = find_acceptance(report), find_confidence(report)
    agreement = find_agreement(report)
    optional: list[Table | None] = [gate_table(report)]
    if acceptance:
        optional += [
            positions_table(acceptance),
            histogram_table(acceptance),
            thresholds_table(acceptance),
        ]
    if agreement:
        optional.append(agreement_table(agreement))
    if confidence:
        optional += [calibration_table(confidence), reliability_table(confidence)]
    yield from (table for table in optional if table is not None)


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
