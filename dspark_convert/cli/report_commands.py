"""Commands of ``dspark-verify`` on reports that were written earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_convert.cli import options
from dspark_convert.errors import Finding, UsageError


def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Report of the current release.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Report of its possible replacement.")],
    max_drop: Annotated[
        float | None, typer.Option(min=0, help="Allowed loss of accepted length.")
    ] = None,
    max_drop_standard_errors: Annotated[
        float | None,
        typer.Option(min=0, help="The same, in standard errors; 2 if no limit is given."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON to stdout.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what changed between two reports.

    Exit code 0: no loss; 1: a check fails that did not before, or acceptance fell too far; 4: not
    comparable, or no longer decided.
    """
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import VERDICT_CODES, refusals
    from dspark_convert.cli.views.comparison import comparison_view
    from dspark_convert.reports.compare import DEFAULT_STANDARD_ERRORS, DropLimits, compare_reports
    from dspark_convert.reports.read import read_report

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink:
        if max_drop is None and max_drop_standard_errors is None:
            max_drop_standard_errors = DEFAULT_STANDARD_ERRORS
        limits = DropLimits(absolute=max_drop, standard_errors=max_drop_standard_errors)
        comparison = compare_reports(read_report(base), read_report(new), limits)
        sink.data(comparison.model_dump(mode="json"), comparison_view(comparison))
        raise typer.Exit(VERDICT_CODES[comparison.verdict])


def render(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT", help="The JSON file that check --report wrote.")
    ],
    junit: options.JUnit = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    diagnosis: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The output of diagnose --json, for the page."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Turn a report into JUnit XML, Markdown or a page."""
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.cli.report_files import ReportFiles
    from dspark_convert.reports.read import read_diagnosis, read_report

    with refusals(Sink(quiet=quiet)):
        files = ReportFiles(junit=junit, markdown=markdown, html=html)
        if files == ReportFiles():
            raise UsageError(
                Finding(
                    code="output-missing",
                    message="no form was asked for",
                    expected="--junit, --markdown or --html",
                )
            )
        files.check(report, diagnosis)
        files.write(read_report(report), read_diagnosis(diagnosis) if diagnosis else None)
