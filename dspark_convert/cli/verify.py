"""``dspark-verify``: whether a draft still drafts well against its target.

Commands import what they call when they run; PyTorch is imported by those that run a model, so that
help and explanations need nothing.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dspark_convert import __version__
from dspark_convert.cli import report_commands, trace_commands, verify_commands
from dspark_convert.cli.diagnose import diagnose
from dspark_convert.cli.program import new_program, run

app = new_program(
    "dspark-verify",
    "Check a DSpark draft against its target model; the exit code is the verdict.",
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"dspark-verify {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


app.command("check")(verify_commands.check)
app.command("diagnose")(diagnose)
app.command("record")(trace_commands.record)
app.command("import-vllm")(trace_commands.import_vllm)
app.command("compare")(report_commands.compare)
app.command("render")(report_commands.render)
app.command("explain")(verify_commands.explain)


def main() -> None:
    """Entry point of the ``dspark-verify`` command."""
    run(app)


if __name__ == "__main__":
    main()
