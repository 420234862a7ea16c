"""The two shapes that every view is made of, and what verdicts look like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import literal
from dspark_convert.schemas.gate_outcome import RuleResult

VERDICT_STYLE = {
    "pass": "bold green",
    "fail": "bold red",
    "inconclusive": "bold yellow",
    "skipped": "dim",
}


def facts_grid(facts: Iterable[tuple[str, str]]) -> Table:
    """Labels and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(label, literal(value))
    return grid


def plain_table(title: str, headers: tuple[str, ...]) -> Table:
    """A table without lines that wraps rather than truncates."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold", header_style="dim")
    return table


def rules_table(title: str, rules: Sequence[RuleResult]) -> Table:
    """The rules of a gate or a comparison."""
    table = plain_table(title, ("rule", "verdict", "because"))
    for rule in rules:
        verdict = Text(rule.verdict, style=VERDICT_STYLE[rule.verdict])
        table.add_row(literal(rule.rule), verdict, literal(rule.reason))
    return table
