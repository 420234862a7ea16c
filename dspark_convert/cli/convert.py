"""``dspark-convert``: inspect, check, convert and publish drafts; print the schemas.

Commands import what they call when they run, so that help and completion start immediately.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dspark_convert import __version__
from dspark_convert.cli import convert_commands, hub_commands
from dspark_convert.cli.program import EngineHelp, new_program, run

app = new_program(
    "dspark-convert", "Convert DSpark drafts between the formats they are published in, bit-exact."
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dspark-convert {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None: ...


app.command("to-dense", cls=EngineHelp)(convert_commands.to_dense)
app.command("to-speculators")(convert_commands.to_speculators)
app.command("inspect")(convert_commands.inspect)
app.command("engines")(convert_commands.engines)
app.command("check")(convert_commands.check)
app.command("push")(hub_commands.push)
app.command("schema")(convert_commands.schema)


def main() -> None:
    """Entry point of the ``dspark-convert`` command."""
    run(app)


if __name__ == "__main__":
    main()
