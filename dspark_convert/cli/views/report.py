"""A verification report as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import literal, visible
from dspark_convert.cli.views.tables import (
    VERDICT_STYLE,
    facts_grid,
    plain_table,
    rules_table,
)
from dspark_convert.reports.content import describe_decoder, list_gate_notes, list_weights
from dspark_convert.reports.text import bounds, count, number
from dspark_convert.schemas.numbers import (
    AcceptanceNumbers,
    AgreementNumbers,
    ConfidenceNumbers,
)
from dspark_convert.schemas.report import MarkedText, VerifyReport

SPAN_MARKS = {
    "first": ("(", ")", "dim"),
    "accepted": ("", "", "green"),
    "rejected": ("[", "]", "bold red"),
    "bonus": ("{", "}", "blue"),
}
_BAR_WIDTH = 24


def report_view(report: VerifyReport) -> RenderableType:
    """Verdicts with their reasons, then the acceptance and confidence numbers."""
    target = report.target.name if report.target else "none"
    settings = report.settings
    facts = [
        ("draft", f"{report.draft.name} ({report.draft.dialect})"),
        ("target", target),
        *list_weights(report),
        (
            "settings",
            f"{settings.num_prompts} prompts ({settings.trace or settings.prompts}), temperature "
            f"{settings.temperature:g}, {settings.max_new_tokens} new tokens, seed "
            f"{settings.seed}, {settings.device}",
        ),
    ]
    if settings.engine is not None:
        facts.append(("decoder", describe_decoder(settings)))
    views: list[RenderableType] = [facts_grid(facts), _checks(report)]
    for result in report.checks:
        if isinstance(result.numbers, AcceptanceNumbers) and result.numbers.rounds:
            views += [_by_position(result.numbers), _totals(result.numbers)]
        elif isinstance(result.numbers, AgreementNumbers):
            views += [_agreement(result.numbers), _warnings(result.numbers.warnings)]
        elif isinstance(result.numbers, ConfidenceNumbers) and result.numbers.tokens:
            views += [_calibration(result.numbers), _warnings(result.numbers.warnings)]
    views += [_marked(text) for text in report.worst]
    if report.gate and report.gate.rules:
        views.append(rules_table(f"Gate {visible(report.gate.file)}", report.gate.rules))
        views.append(facts_grid([("note", note) for note in list_gate_notes(report)]))
    views.append(Text(report.verdict, style=VERDICT_STYLE[report.verdict]))
    return Group(*views)


def _marked(text: MarkedText) -> RenderableType:
    """A text whose tokens are coloured, and also marked for terminals without colour."""
    body = Text(overflow="fold")
    for span in text.spans:
        before, after, style = SPAN_MARKS[span.kind]
        body.append_text(literal(f"{before}{span.text}{after}", style))
    title = f"Among the worst: {text.id}, accepted length {text.accepted_length:.3f}"
    legend = "plain: accepted, [..]: in place of a rejected token, {..}: bonus, (..): prefill"
    return Group(literal(title, "bold"), literal(legend, "dim"), body, Text())


def _checks(report: VerifyReport) -> Table:
    table = plain_table("Checks", ("check", "verdict", "because"))
    for result in report.checks:
        table.add_row(
            literal(result.id),
            Text(result.verdict, style=VERDICT_STYLE[result.verdict]),
            literal(result.reason),
        )
    return table


def _by_position(numbers: AcceptanceNumbers) -> Table:
    table = plain_table(
        "Acceptance by position",
        ("token", "acceptance", "95 %", "survival", "rounds by accepted tokens"),
    )
    for accepted, rounds in enumerate(numbers.histogram):
        row = ["-", "-", "-", "-"]
        if accepted:
            row = [
                str(accepted),
                number(numbers.acceptance_by_position[accepted - 1]),
                bounds(numbers.acceptance_interval95[accepted - 1]),
                number(numbers.survival_by_position[accepted - 1]),
            ]
        share = rounds / numbers.rounds
        bar = "█" * round(share * _BAR_WIDTH)
        table.add_row(*row, literal(f"{accepted}: {count(rounds):>7} {bar}"))
    return table


def _warnings(warnings: Sequence[str]) -> Table:
    return facts_grid([("warning", warning) for warning in warnings])


def _totals(numbers: AcceptanceNumbers) -> RenderableType:
    facts = [
        (
            "accepted length",
            f"{number(numbers.accepted_length)} (95 %: {bounds(numbers.interval95)}), bonus "
            "token included; interval by bootstrap over prompts",
        ),
        (
            "counts",
            f"{count(numbers.rounds)} rounds, {count(numbers.drafted)} drafted, "
            f"{count(numbers.accepted)} accepted, {count(numbers.committed)} committed"
            + (" (expected, given the texts)" if numbers.method == "replayed" else ""),
        ),
        (
            "with fewer tokens",
            _list(numbers.accepted_length_by_num_speculative_tokens),
        ),
        (
            "beyond the draft's vocabulary",
            f"{number(numbers.mass_outside_draft_vocabulary)} of the target's probability",
        ),
    ]
    if numbers.accepted_length_by_confidence_threshold:
        lengths = [
            f"{entry.confidence_threshold:g}: {entry.accepted_length:.3f}"
            for entry in numbers.accepted_length_by_confidence_threshold
        ]
        facts.append(("with a confidence threshold", ", ".join(lengths)))
    return Group(facts_grid(facts), _warnings(numbers.warnings))


def _agreement(numbers: AgreementNumbers) -> Table:
    table = plain_table("Agreement with the target's choice", ("token", "agreement", "95 %"))
    pairs = zip(numbers.agreement_by_position, numbers.agreement_interval95, strict=True)
    for position, (share, interval) in enumerate(pairs, start=1):
        table.add_row(str(position), number(share), bounds(interval))
    return table


def _calibration(numbers: ConfidenceNumbers) -> Table:
    table = plain_table("Confidence by position", ("token", "drafted", "confidence", "acceptance"))
    for entry in numbers.by_position:
        table.add_row(
            str(entry.position),
            count(entry.tokens),
            number(entry.mean_confidence),
            number(entry.acceptance),
        )
    return table


def _list(values: Sequence[float | None]) -> str:
    return ", ".join(f"{n}: {number(value)}" for n, value in enumerate(values, start=1))
