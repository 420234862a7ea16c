"""A verification report as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import literal
from dspark_convert.cli.render import facts_grid, plain_table
from dspark_convert.schemas.report import (
    AcceptanceNumbers,
    ConfidenceNumbers,
    Interval,
    VerifyReport,
)

_STYLE = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow", "skipped": "dim"}
_BAR_WIDTH = 24


def report_view(report: VerifyReport) -> RenderableType:
    """Verdicts with their reasons, then the numbers of acceptance and confidence."""
    target = report.target.name if report.target else "none"
    settings = report.settings
    facts = [
        ("draft", f"{report.draft.name} ({report.draft.dialect})"),
        ("target", target),
        (
            "settings",
            f"{settings.num_prompts} prompts ({settings.prompts}), temperature "
            f"{settings.temperature:g}, {settings.max_new_tokens} new tokens, seed "
            f"{settings.seed}, {settings.device}",
        ),
    ]
    views: list[RenderableType] = [facts_grid(facts), _checks(report)]
    for result in report.checks:
        if isinstance(result.numbers, AcceptanceNumbers) and result.numbers.rounds:
            views += [_by_position(result.numbers), _totals(result.numbers)]
        elif isinstance(result.numbers, ConfidenceNumbers) and result.numbers.tokens:
            views.append(_calibration(result.numbers))
    views.append(Text(report.verdict, style=_STYLE[report.verdict]))
    return Group(*views)


def _checks(report: VerifyReport) -> Table:
    table = plain_table("Checks", ("check", "verdict", "because"))
    for result in report.checks:
        table.add_row(
            literal(result.id),
            Text(result.verdict, style=_STYLE[result.verdict]),
            literal(result.reason),
        )
    return table


def _by_position(numbers: AcceptanceNumbers) -> Table:
    table = plain_table(
        "Acceptance by position",
        ("token", "acceptance", "95 %", "survival", "rounds with so many accepted"),
    )
    for accepted, count in enumerate(numbers.histogram):
        row = ["-", "-", "-", "-"]
        if accepted:
            row = [
                str(accepted),
                _number(numbers.acceptance_by_position[accepted - 1]),
                _bounds(numbers.acceptance_interval95[accepted - 1]),
                _number(numbers.survival_by_position[accepted - 1]),
            ]
        share = count / numbers.rounds
        bar = "█" * round(share * _BAR_WIDTH)
        table.add_row(*row, literal(f"{accepted}: {count:5} {bar}"))
    return table


def _totals(numbers: AcceptanceNumbers) -> Table:
    facts = [
        (
            "accepted length",
            f"{_number(numbers.accepted_length)} (95 %: {_bounds(numbers.interval95)}), bonus "
            "token included; interval by bootstrap over prompts",
        ),
        (
            "counts",
            f"{numbers.rounds} rounds, {numbers.drafted} drafted, {numbers.accepted} accepted, "
            f"{numbers.committed} committed",
        ),
        (
            "with fewer tokens",
            _list(numbers.accepted_length_by_num_speculative_tokens),
        ),
        (
            "beyond the draft's vocabulary",
            f"{_number(numbers.mass_outside_draft_vocabulary)} of the target's probability",
        ),
    ]
    facts += [("warning", warning) for warning in numbers.warnings]
    return facts_grid(facts)


def _calibration(numbers: ConfidenceNumbers) -> Table:
    table = plain_table("Confidence by position", ("token", "drafted", "confidence", "acceptance"))
    for entry in numbers.by_position:
        table.add_row(
            str(entry.position),
            str(entry.tokens),
            _number(entry.mean_confidence),
            _number(entry.acceptance),
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _bounds(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


def _list(values: Sequence[float | None]) -> str:
    return ", ".join(f"{n}: {_number(value)}" for n, value in enumerate(values, start=1))
