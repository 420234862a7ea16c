"""The files to which a report is written, each whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.files import is_folder
from dspark_convert.checkpoint.staged_file import write_file
from dspark_convert.errors import Finding, OutputError
from dspark_convert.reports.content import tabulate_diagnosis
from dspark_convert.reports.junit import render_junit
from dspark_convert.reports.markdown import render_markdown
from dspark_convert.schemas.diagnosis import Diagnosis
from dspark_convert.schemas.report import VerifyReport


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """The files to which a report is written."""

    report: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    html: Path | None = None

    def check(self, *inputs: str | Path | None) -> None:
        """Find out now what would fail after hours, or would replace what it was made from.

        No file may be one of ``inputs``, go into one of them that is a folder, or be written twice.

        Raises ``OutputError`` (``report-not-written``), ``DependencyError`` (for the page).
        """
        read_only = {Path(os.path.realpath(each)) for each in inputs if each is not None}
        taken: set[Path] = set()
        for path in filter(None, (self.report, self.junit, self.markdown, self.html)):
            real = Path(os.path.realpath(path))
            if not is_folder(path.absolute().parent) or is_folder(path):
                raise _not_written(path, "not a file in an existing folder")
            if not read_only.isdisjoint(real.parents):
                raise _not_written(path, "it would lie in a folder that is an input")
            if real in read_only:
                raise _not_written(path, "it would replace an input")
            if real in taken and (real.is_file() or not real.exists()):
                raise _not_written(path, "two forms of the report would have this name")
            taken.add(real)
        if self.html:
            import dspark_convert.reports.html  # noqa: F401 - says what is missing

    def write(self, report: VerifyReport, diagnosis: Diagnosis | None = None) -> None:
        """Write every form that was asked for; raises ``OutputError`` (``report-not-written``)."""
        for path, text in self._texts(report, diagnosis):
            _write(path, text)

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
    """Show the report in the summary of a GitHub job, if this runs in one."""
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    try:
        with Path(name).open("a", encoding="utf-8") as summary:
            summary.write(render_markdown(report))
    except OSError as error:
        raise _not_written(Path(name), str(error.strerror)) from None


def _write(path: Path, text: str) -> None:
    try:
        # A name that is not UTF-8 may stand in a report; it is spelled as `visible` spells it.
        write_file(path, text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
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
