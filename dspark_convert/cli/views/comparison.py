"""What changed between two reports, as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import literal
from dspark_convert.cli.views.tables import (
    VERDICT_STYLE,
    facts_grid,
    plain_table,
    rules_table,
)
from dspark_convert.reports.text import number
from dspark_convert.schemas.comparison import Comparison


def comparison_view(comparison: Comparison) -> RenderableType:
    """Rules, positions and whatever else differs, then the verdict."""
    facts = [("base", comparison.base), ("new", comparison.new)]
    length = comparison.accepted_length
    if length:
        facts.append(
            (
                "accepted length",
                f"{length.base:.3f} -> {length.new:.3f}, a drop of {length.drop:.3f} (standard "
                f"error {number(length.standard_error)}, {length.prompts} prompts)",
            )
        )
    facts += [("note", note) for note in comparison.notes]
    views: list[RenderableType] = [facts_grid(facts)]
    if comparison.rules:
        views.append(rules_table("Rules", comparison.rules))
    if comparison.acceptance_by_position:
        views.append(_positions(comparison))
    if comparison.changed:
        views.append(_changes(comparison))
    views.append(Text(comparison.verdict, style=VERDICT_STYLE[comparison.verdict]))
    return Group(*views)


def _positions(comparison: Comparison) -> Table:
    table = plain_table("Acceptance by position", ("token", "base", "new"))
    for entry in comparison.acceptance_by_position:
        table.add_row(str(entry.position), number(entry.base), number(entry.new))
    return table


def _changes(comparison: Comparison) -> Table:
    table = plain_table("Changed", ("key", "base", "new"))
    for change in comparison.changed:
        table.add_row(literal(change.key), literal(change.base or "-"), literal(change.new or "-"))
    return table
