"""The forms of a report as files, and what ``render`` and ``compare`` do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import Sink, literal
from dspark_convert.cli.exits import CHECK_FAILED, INCONCLUSIVE, refusals
from dspark_convert.cli.render import facts_grid, plain_table
from dspark_convert.cli.report import VERDICT_STYLE, rules_table
from dspark_convert.errors import Finding, OutputError, UsageError
from dspark_convert.reports.compare import DEFAULT_STANDARD_ERRORS, DropLimits, compare_reports
from dspark_convert.reports.content import tabulate_diagnosis
from dspark_convert.reports.junit import render_junit
from dspark_convert.reports.markdown import render_markdown
from dspark_convert.reports.read import read_diagnosis, read_report
from dspark_convert.reports.text import number
from dspark_convert.schemas.comparison import Comparison
from dspark_convert.schemas.diagnosis import Diagnosis
from dspark_convert.schemas.report import VerifyReport

EXIT_CODES = {"pass": 0, "fail": CHECK_FAILED, "inconclusive": INCONCLUSIVE}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The files that a report goes to."""

    report: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    html: Path | None = None

    def check(self, *inputs: str) -> None:
        """Find out what would fail after hours of work; nothing goes into a folder of ``inputs``.

        Raises ``OutputError`` (``report-not-written``), ``DependencyError`` (for the page).
        """
        read_only = [Path(os.path.realpath(folder)) for folder in inputs]
        for path in filter(None, (self.report, self.junit, self.markdown, self.html)):
            if not path.absolute().parent.is_dir() or path.is_dir():
                raise _not_written(path, "not a file in an existing folder")
            if any(folder in Path(os.path.realpath(path)).parents for folder in read_only):
                raise _not_written(path, "it would lie in a folder that is only read")
        if self.html:
            import dspark_convert.reports.html  # noqa: F401 - says what is missing

    def write(self, report: VerifyReport, diagnosis: Diagnosis | None = None) -> None:
        """Write every form that was asked for; raises ``OutputError`` (``report-not-written``)."""
        for path, text in self._texts(report, diagnosis):
            _replace_file(path, text)

    def _texts(
        self, report: VerifyReport, diagnosis: Diagnosis | None
    ) -> Iterator[tuple[Path, str]]:
        if self.report:
            document = report.model_dump(mode="json")
            yield self.report, json.dumps(document, indent=2, sort_keys=True) + "\n"
        if self.junit:
            yield self.junit, render_junit(report)
        if self.markdown:
            yield self.markdown, render_markdown(report)
        if self.html:
            from dspark_convert.reports.html import render_html

            table = tabulate_diagnosis(diagnosis) if diagnosis else None
            yield self.html, render_html(report, diagnosis=table)


def append_step_summary(report: VerifyReport) -> None:
    """Show the report on the page of a GitHub job, if this runs in one."""
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    try:
        with Path(name).open("a", encoding="utf-8") as summary:
            summary.write(render_markdown(report))
    except OSError as error:
        raise _not_written(Path(name), str(error.strerror)) from None


def render(report: Path, outputs: Outputs, *, diagnosis: Path | None, quiet: bool) -> None:
    """Give a report of earlier other forms; a diagnosis goes into the page."""
    sink = Sink(quiet=quiet)
    with refusals(sink):
        if outputs == Outputs():
            raise UsageError(
                Finding(
                    code="output-missing",
                    message="no form was asked for",
                    expected="--junit, --markdown or --html",
                )
            )
        outputs.check()
        outputs.write(read_report(report), read_diagnosis(diagnosis) if diagnosis else None)


def compare(
    base: Path,
    new: Path,
    *,
    max_drop: float | None,
    max_drop_standard_errors: float | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare two reports; the exit code is the verdict."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        if max_drop is None and max_drop_standard_errors is None:
            max_drop_standard_errors = DEFAULT_STANDARD_ERRORS
        limits = DropLimits(absolute=max_drop, standard_errors=max_drop_standard_errors)
        comparison = compare_reports(read_report(base), read_report(new), limits)
        sink.data(comparison.model_dump(mode="json"), _comparison_view(comparison))
        raise typer.Exit(EXIT_CODES[comparison.verdict])


def _comparison_view(comparison: Comparison) -> RenderableType:
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


def _replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all; through a link, and into a pipe or device as it is."""
    real = Path(os.path.realpath(path))
    temporary = real.with_name(f".{real.name}.tmp")
    try:
        if real.exists() and not real.is_file():
            real.write_text(text, encoding="utf-8")
            return
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(real)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _not_written(path, str(error.strerror)) from None


def _not_written(path: Path, reason: str) -> OutputError:
    return OutputError(
        Finding(
            code="report-not-written",
            message=f"the report cannot be written: {reason}",
            file=path.name,
            hint="choose a path in an existing, writable folder",
        )
    )
