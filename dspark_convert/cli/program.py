"""How both programs start and end; nothing heavy is imported, so help appears immediately."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

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

    The exit code is then 3, with one line to stderr if that still works.
    """
    code: object = 0
    try:
        try:
            app()
        except SystemExit as exit_:
            code = exit_.code
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        with suppress(OSError):
            sys.stderr.write(f"the output cannot be written: {error.strerror}\n")
        code = REFUSED
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)  # notes that nobody can read change nothing
    sys.exit(code)  # type: ignore[arg-type]


def _discard(stream: TextIO) -> None:
    """Discard what is still buffered, which would fail again when Python shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
