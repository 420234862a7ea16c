"""Markdown for GitHub: job summaries, pull requests and model cards."""

from __future__ import annotations

import re

from dspark_convert.reports.content import (
    Table,
    checks_table,
    describe_length,
    find_acceptance,
    find_agreement,
    find_confidence,
    list_facts,
    list_gate_notes,
    list_tables,
)
from dspark_convert.reports.text import visible
from dspark_convert.schemas.report import VerifyReport

# Characters of markup, HTML, mentions, references and formulas; colons make links and emoji.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|~#@&!$^]|:(?!\s)|(?<=www)\.", re.IGNORECASE)
_MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️", "skipped": "➖"}


def render_markdown(report: VerifyReport) -> str:
    """The report as sections and tables, with a final newline."""
    verdict = f"{_MARKS[report.verdict]} {report.verdict}"
    parts = [f"## dspark-verify: {escape_markdown(report.draft.name)}: {verdict}"]
    parts.append(
        "\n".join(f"- **{label}**: {escape_markdown(text)}" for label, text in list_facts(report))
    )
    parts.append(_table(checks_table(report)))
    acceptance = find_acceptance(report)
    if acceptance:
        parts.append(escape_markdown(describe_length(acceptance)))
        parts += [f"> {escape_markdown(warning)}" for warning in acceptance.warnings]
    for numbers in (find_agreement(report), find_confidence(report)):
        if numbers:
            parts += [f"> {escape_markdown(warning)}" for warning in numbers.warnings]
    parts += [f"> {escape_markdown(note)}" for note in list_gate_notes(report)]
    parts += [_table(table) for table in list_tables(report)]
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: object) -> str:
    """``text`` as data on one line: every character that could be markup becomes an entity."""
    return _MARKUP.sub(lambda match: f"&#{ord(match.group())};", visible(text))


def _table(table: Table) -> str:
    rows = [table.headers, tuple("---" for _ in table.headers), *map(_cells, table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((f"### {escape_markdown(table.title)}", "", *lines))


def _cells(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        f"{_MARKS[cell]} {cell}" if cell in _MARKS else escape_markdown(cell) for cell in row
    )
