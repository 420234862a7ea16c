"""``dspark-convert``: inspect, check and convert drafts; publish the schemas."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from dspark_convert import __version__
from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import CHECK_FAILED, refusals
from dspark_convert.cli.render import check_view, inspection_view, plan_view, summary_view
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import CheckpointError, Finding, UsageError
from dspark_convert.formats.overrides import Overrides, parse_settings
from dspark_convert.schemas.draft import Layout
from dspark_convert.schemas.published import PUBLISHED, drifted, schema_file, schema_text

app = typer.Typer(
    name="dspark-convert",
    help="Convert DSpark drafts between the formats they are published in, bit-exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LayoutOption(str, enum.Enum):
    """``--layout`` as users write it."""

    anchor_first = "anchor-first"
    bonus_anchor = "bonus-anchor"


class TableOption(str, enum.Enum):
    """``--d2t`` as users write it."""

    offsets = "offsets"
    absolute = "absolute"


Source = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="Folder with config.json and safetensors files.")
]
LayoutChoice = Annotated[
    LayoutOption | None,
    typer.Option("--layout", help="Overrule what the source says about its block layout."),
]
TableChoice = Annotated[
    TableOption | None,
    typer.Option("--d2t", help="Read the vocabulary table as this, whatever it looks like."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrule a config key, for instance mask_token_id=151669. Repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"dspark-convert {__version__}")
        raise typer.Exit


@app.command("to-dense")
def to_dense(
    source: Source,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder to create.")],
    target: Annotated[
        Path | None,
        typer.Option(
            "--target",
            metavar="DIR",
            help="Folder of the target model: fills an absent embedding or head, checks the pair.",
        ),
    ] = None,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, from headers only; write nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an empty folder or an earlier result.")
    ] = False,
    verify_bytes: Annotated[
        bool, typer.Option("--verify-bytes", help="Compare every byte that was copied.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Convert a draft to the dense form.

    Weights are copied as bytes; the output appears complete or not at all.
    """
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        overrides = _overrides(layout, d2t, settings)
        conversion = plan_to_dense(source, target=target, overrides=overrides)
        sink.findings(conversion.plan.findings)
        if dry_run:
            sink.data(conversion.plan.model_dump(mode="json"), plan_view(conversion.plan))
            return
        total = sum(conversion.plan.output_bytes.values())
        with sink.progress("copying", total) as advance:
            manifest = run_conversion(
                conversion,
                output,
                overwrite=overwrite,
                verify_bytes=verify_bytes,
                on_bytes=advance,
            )
        summary = summary_view(conversion.plan, str(output))
        sink.data(manifest.model_dump(mode="json"), summary)


@app.command("inspect")
def inspect(
    source: Source,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Describe a draft: dialect, layout, vocabulary, heads, sizes, and who can load it."""
    sink = Sink(as_json=as_json)
    with refusals(sink):
        inspection = inspect_draft(source, overrides=_overrides(layout, d2t, settings))
        sink.findings(inspection.findings)
        sink.data(inspection.model_dump(mode="json"), inspection_view(inspection))
        if inspection.draft is None:
            raise typer.Exit(CheckpointError.exit_code)


@app.command("check")
def check(
    source: Source,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every static check and report all findings at once.

    Exit code 0: no errors; 1: errors; 3: not even the config can be read.
    """
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        report = check_draft(source, overrides=_overrides(layout, d2t, settings))
        sink.findings(report.findings)
        sink.data(report.model_dump(mode="json"), check_view(report))
        if report.verdict == "fail":
            raise typer.Exit(CHECK_FAILED)


@app.command("schema")
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this schema.", show_default=False)
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write all schemas to a folder.")
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--check", metavar="DIR", help="Exit 1 if a folder's schemas are not ours."),
    ] = None,
) -> None:
    """Print the JSON Schema of a document, or write or check all of them."""
    sink = Sink()
    with refusals(sink):
        if write is not None:
            _write_schemas(write, sink)
        elif verify is not None:
            _check_schemas(verify, sink)
        elif name is None:
            typer.echo("\n".join(sorted(PUBLISHED)))
        elif name in PUBLISHED:
            typer.echo(schema_text(name), nl=False)
        else:
            raise _unknown_schema(name)


def main() -> None:
    """Entry point of the ``dspark-convert`` command."""
    app()


def _overrides(
    layout: LayoutOption | None, d2t: TableOption | None, settings: list[str] | None
) -> Overrides:
    return Overrides(
        fields=parse_settings(settings or []),
        layout=Layout[layout.name.upper()] if layout else None,
        d2t=d2t.value if d2t else None,
    )


def _write_schemas(folder: Path, sink: Sink) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PUBLISHED:
        schema_file(folder, name).write_text(schema_text(name), encoding="utf-8")
    sink.note(f"{len(PUBLISHED)} schemas written to {folder}")


def _check_schemas(folder: Path, sink: Sink) -> None:
    names = drifted(folder)
    for name in names:
        sink.note(f"{name} differs from the models; run: dspark-convert schema --write {folder}")
    if names:
        raise typer.Exit(CHECK_FAILED)


def _unknown_schema(name: str) -> UsageError:
    return UsageError(
        Finding(
            code="unknown-schema",
            message="no document has this name",
            found=name,
            expected=", ".join(sorted(PUBLISHED)),
        )
    )


if __name__ == "__main__":
    main()
