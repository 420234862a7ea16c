"""The only output sink: data to stdout, notes and progress to stderr, nothing interpreted.

Names and texts come from files that nobody vouches for. They are shown as data: no markup, no emoji
codes, and control characters are escaped, so a tensor name cannot repaint the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from dspark_convert.errors import Finding
from dspark_convert.reports.text import visible as visible

if TYPE_CHECKING:
    from dspark_convert.runtime.records import Progress as OnProgress

_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def literal(text: object, style: str = "") -> Text:
    """``text`` as it is, in one style; it wraps rather than losing characters."""
    return Text(visible(text), style=style, overflow="fold")


class Sink:
    """Where a command sends its output.

    Args:
        as_json: print one JSON document to stdout instead of tables.
        quiet: only errors go to stderr, and no table goes to stdout.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        if isinstance(sys.stdout, TextIOWrapper):
            # A name in another script that cannot be encoded must not end the program.
            sys.stdout.reconfigure(errors="backslashreplace")
        self._out = Console(markup=False, emoji=False, highlight=False)
        self._err = Console(stderr=True, markup=False, emoji=False, highlight=False)

    def data(self, document: Any, *tables: RenderableType) -> None:
        """The result: ``document`` with ``--json``, otherwise the tables; text that must not wrap,
        because it will be copied, may exceed the width of the terminal."""
        if self.as_json:
            text = json.dumps(document, indent=2, ensure_ascii=True)
            self._out.print(text, soft_wrap=True)
        elif not self.quiet:
            for table in tables:
                to_copy = isinstance(table, Text) and table.no_wrap is True
                self._out.print(table, soft_wrap=to_copy)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Errors, warnings and notes, in words, to stderr."""
        for finding in findings:
            if finding.severity == "error" or not self.quiet:
                with suppress(OSError):  # a note that nobody can read must not stop the work
                    self._err.print(_finding_text(finding))

    def note(self, text: str) -> None:
        """One line to stderr."""
        if not self.quiet:
            with suppress(OSError):
                self._err.print(literal(text), soft_wrap=True)

    @property
    def shows_progress(self) -> bool:
        """Whether progress bars make sense: only on a terminal, and not when quiet."""
        return not self.quiet and self._err.is_terminal

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over ``total`` bytes on a terminal, else nothing; yields its advancer."""
        if not self.shows_progress:
            yield lambda count: None
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._err, transient=True) as bar:
            task = bar.add_task(visible(what), total=total)
            yield lambda count: bar.advance(task, count)

    @contextmanager
    def steps(self) -> Iterator[OnProgress]:
        """A bar over counted steps on a terminal; yields a function of (what, done, total)."""
        if not self.shows_progress:
            yield lambda what, done, total: None
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
        )
        with Progress(*columns, console=self._err, transient=True) as bar:
            task = bar.add_task("loading", total=None)
            yield lambda what, done, total: bar.update(
                task, description=visible(what), completed=done, total=total
            )


def _finding_text(finding: Finding) -> RenderableType:
    head = Text(f"{finding.severity} ", style=_SEVERITY_STYLE[finding.severity])
    head.append(finding.code, style="bold")
    head.append_text(literal(f": {finding.message}"))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    rows = (
        ("where", finding.where),
        ("expected", finding.expected),
        ("found", finding.found),
        ("fix", finding.hint),
    )
    for label, value in rows:
        if value:
            grid.add_row(f"{label}:", literal(value))
    whole = Table.grid()
    whole.add_column(overflow="fold")
    whole.add_row(head)
    if grid.row_count:
        whole.add_row(Padding(grid, (0, 0, 0, 2)))
    return whole
