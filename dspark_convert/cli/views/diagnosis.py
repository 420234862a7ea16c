"""A diagnosis as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import literal
from dspark_convert.cli.views.tables import facts_grid, plain_table
from dspark_convert.reports.content import describe_decoder, gain, sample_size
from dspark_convert.reports.text import number
from dspark_convert.schemas.diagnosis import Diagnosis, HypothesisResult

_STYLES = {"healthy": "bold green", "cause-found": "bold red", "undecided": "bold yellow"}


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
        facts.append(("decoder", describe_decoder(diagnosis)))
    facts += [("settled early", text) for text in _settled_early(tried, diagnosis)]
    facts += [
        ("warning", ": ".join(filter(None, (finding.message, finding.found))))
        for finding in diagnosis.findings
        if finding.severity == "warning"
    ]
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
    """Readings that were not replayed on all anchors, by the number on which they were judged."""
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
