"""How both programs start and end; nothing heavy is imported, so help appears immediately."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

import typer
from typer.core import TyperCommand

from dspark_convert.cli.options import name_engines

REFUSED = 3


def new_program(name: str, purpose: str) -> typer.Typer:
    """A program that has no commands yet."""
    return typer.Typer(
        name=name,
        help=purpose,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class EngineHelp(TyperCommand):
    """A command whose help names the engines; only showing it reads their table."""

    def format_help(self, *arguments: Any) -> None:
        """Write the help of this command."""
        for parameter in self.params:
            parameter.metavar = parameter.metavar and name_engines(parameter.metavar)
        super().format_help(*arguments)


def run(app: typer.Typer) -> None:
    """Run a program; failing to write its own output is not a verdict on a draft.

    If stdout is closed, full or no longer read, the exit code is 3 instead, with one line to
    stderr if that still works. What cannot be written to stderr is lost, and changes nothing.
    """
    _open_streams()
    code: object = 0
    try:
        try:
            app()
        except SystemExit as exit_:
            code = exit_.code
            if isinstance(exit_.__context__, BrokenPipeError):  # Typer ends with 1 then
                raise exit_.__context__ from None
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail again when Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"error {_describe(error)}\n")
        code = REFUSED
    sys.stderr.flush()
    sys.exit(code)  # type: ignore[arg-type]


def _describe(error: OSError) -> str:
    if error.filename is None:  # streams have no name
        return f"stdout-not-writable: the output cannot be written: {error.strerror}"
    from dspark_convert.reports.text import visible

    return f"file-unusable: {error.strerror}: {visible(error.filename)}"


class _Notes(TextIOWrapper):
    """stderr that loses what it cannot write."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _open_streams() -> None:
    """Put something behind each standard stream.

    Python has no object for a stream that was closed by the caller, and its number would go to the
    next file that is opened. Such a stdout stays one that cannot be written to.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = TextIOWrapper(BufferedWriter(FileIO(1, "w", closefd=False)), "utf-8")
    if sys.stderr is None or type(sys.stderr) is TextIOWrapper:
        raw: Any = FileIO(2, "w", closefd=False)  # unbuffered: what fails is not tried again
        encoding = sys.stderr.encoding if sys.stderr else "utf-8"
        sys.stderr = _Notes(raw, encoding, "backslashreplace", write_through=True)
