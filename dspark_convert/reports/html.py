"""One page, with no scripts and nothing to fetch: verdicts, plots with their tables, an example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources
from typing import get_args

from dspark_convert.reports import content, plots
from dspark_convert.reports.content import Table
from dspark_convert.reports.text import number, visible
from dspark_convert.schemas.report import ExampleText, MarkedText, Verdict, VerifyReport

_VERDICTS = frozenset(get_args(Verdict))
_MARKS = {"first": "span", "accepted": "ins", "rejected": "b", "bonus": "b"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_html(report: VerifyReport, *, diagnosis: Table | None = None) -> str:
    """The page. ``diagnosis``, if given, is shown after the checks.

    Raises ``DependencyError`` if matplotlib is missing (even on import of this module).
    """
    title = f"{_text(report.draft.name)}: {report.verdict}"
    body = "\n".join(_sections(report, diagnosis))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{_style()}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _sections(report: VerifyReport, diagnosis: Table | None) -> Iterator[str]:
    yield f"<h1>{_text(report.draft.name)}: {_verdict(report.verdict)}</h1>"
    yield _facts(content.list_facts(report))
    yield _section("Checks", _table(content.checks_table(report)))
    gate = content.gate_table(report)
    if gate:
        yield _section(gate.title, _table(gate), *_remarks("Note", content.list_gate_notes(report)))
    if diagnosis:
        yield _section(diagnosis.title, _table(diagnosis))
    yield from _acceptance(report)
    yield from _agreement(report)
    yield from _confidence(report)
    if report.example:
        yield _section("Example", _example(report.example))
    if report.worst:
        yield _section("Texts of lowest accepted length", *map(_marked, report.worst))


def _acceptance(report: VerifyReport) -> Iterator[str]:
    numbers = content.find_acceptance(report)
    if numbers is None:
        return
    thresholds = content.thresholds_table(numbers)
    yield _section(
        "Acceptance",
        f"<p>{_text(content.describe_length(numbers))}</p>",
        *_remarks("Warning", numbers.warnings),
        _figure(
            plots.plot_positions(numbers),
            "Acceptance is conditional on the tokens before it; survival is the share of all "
            "rounds whose first tokens up to there stand. Bars are 95 % intervals.",
        ),
        _table(content.positions_table(numbers)),
        _figure(
            plots.plot_histogram(numbers),
            "Rounds by the number of draft tokens that they accepted.",
        ),
        _table(content.histogram_table(numbers)),
        _table(thresholds) if thresholds else "",
    )


def _agreement(report: VerifyReport) -> Iterator[str]:
    numbers = content.find_agreement(report)
    if numbers:
        drawn = plots.plot_agreement(numbers.agreement_by_position, numbers.agreement_interval95)
        caption = "How often the draft's likeliest token is the target's, on texts by others."
        table = _table(content.agreement_table(numbers))
        warnings = _remarks("Warning", numbers.warnings)
        yield _section("Agreement", *warnings, _figure(drawn, caption), table)


def _confidence(report: VerifyReport) -> Iterator[str]:
    numbers = content.find_confidence(report)
    if numbers is None:
        return
    reliability = content.reliability_table(numbers)
    parts = [_table(content.calibration_table(numbers))]
    if reliability:
        caption = (
            "On the dashed line, tokens are accepted exactly as often as their confidence says."
        )
        drawn = _figure(plots.plot_reliability(numbers), caption)
        parts = [drawn, _table(reliability), *parts]
    yield _section("Confidence", *_remarks("Warning", numbers.warnings), *parts)


def _example(example: ExampleText) -> str:
    rounds = "".join(
        f"<ins>{_prose(entry.accepted)}</ins><b>{_prose(entry.bonus)}</b>"
        for entry in example.rounds
    )
    return (
        f"<p>The beginning of the response to prompt {_text(example.id)}. <span class=note>"
        "Underlined: draft tokens that the target accepted. Dotted: the target's own token at the "
        "end of each round.</span></p>\n"
        f'<div class="example">{_prose(example.first)}{rounds}</div>'
    )


def _marked(text: MarkedText) -> str:
    spans = "".join(f"<{_MARKS[x.kind]}>{_prose(x.text)}</{_MARKS[x.kind]}>" for x in text.spans)
    return (
        f"<p>Prompt {_text(text.id)}, accepted length {number(text.accepted_length)}.</p>\n"
        f'<div class="example">{spans}</div>'
    )


def _section(title: str, *parts: str) -> str:
    return "\n".join((f"<section>\n<h2>{_text(title)}</h2>", *filter(None, parts), "</section>"))


def _remarks(kind: str, texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"<p>{kind}: {_text(text)}</p>" for text in texts)


def _figure(drawn: str, caption: str) -> str:
    return f"<figure>\n{drawn}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(header)}</th>' for header in table.headers)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table>\n<caption>{_text(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(text: str) -> str:
    return f"<td>{_verdict(text) if text in _VERDICTS else _text(text)}</td>"


def _facts(facts: list[tuple[str, str]]) -> str:
    entries = "\n".join(f"<dt>{_text(label)}</dt><dd>{_text(text)}</dd>" for label, text in facts)
    return f"<dl>\n{entries}\n</dl>"


def _verdict(verdict: str) -> str:
    return f'<span class="verdict {verdict}">{verdict}</span>'


def _text(text: object) -> str:
    return escape(visible(text))


def _prose(text: str) -> str:
    """As ``_text``, but line breaks and tabs are kept."""
    return "".join(part if part in "\n\t" else _text(part) for part in text)


def _style() -> str:
    return resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
