"""The command of ``dspark-convert`` that writes to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_convert.cli import options


def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The result of a conversion.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Where to publish it.")],
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public; the default is private.")
    ] = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Propose the files in a pull request.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Commit to a repository that already exists.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="A report of dspark-verify about this draft, for the model card.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Publish a conversion on the Hub, with a model card, in one commit.

    Its files must match its manifest and pass every static check.
    """
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.cli.views.push import push_view
    from dspark_convert.hub.location import repository_name
    from dspark_convert.hub.push import push_conversion
    from dspark_convert.reports.read import read_report

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink:
        result = push_conversion(
            folder,
            repository_name(repository),
            public=public,
            create_pr=create_pr,
            yes=yes,
            report=None if report is None else read_report(report),
            progress=sink.shows_progress,
            on_finding=sink.findings,
        )
        sink.data(result.model_dump(mode="json"), push_view(result))
