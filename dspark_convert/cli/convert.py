"""``dspark-convert``: inspect, check and convert drafts; publish the schemas.

Only what users type is declared here. The commands themselves are in ``convert_commands``, imported
when one runs, so that help and completion start at once.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from dspark_convert import __version__
from dspark_convert.cli.program import run

app = typer.Typer(
    name="dspark-convert",
    help="Convert DSpark drafts between the formats they are published in, bit-exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LayoutOption(str, enum.Enum):
    """``--layout`` as users write it."""

    anchor_first = "anchor-first"
    bonus_anchor = "bonus-anchor"


class EngineOption(str, enum.Enum):
    """``--for`` as users write it."""

    reference = "reference"
    vllm = "vllm"
    sglang = "sglang"
    deepspec = "deepspec"
    llama_cpp = "llama.cpp"


class TableOption(str, enum.Enum):
    """``--d2t`` as users write it."""

    offsets = "offsets"
    absolute = "absolute"


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Folder with config.json and safetensors files, or a repository of the Hub: "
        "OWNER/NAME, hf://OWNER/NAME@REVISION.",
    ),
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
Output = Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder to create.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an empty folder or an earlier result.")
]
VerifyBytes = Annotated[
    bool, typer.Option("--verify-bytes", help="Compare every byte that was copied.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


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
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None: ...


@app.command("to-dense")
def to_dense(
    source: Source,
    output: Output,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="REPO_OR_DIR",
            help="The target model: fills an absent embedding or head, checks the pair.",
        ),
    ] = None,
    written_for: Annotated[
        EngineOption,
        typer.Option(
            "--for",
            help="Write the spelling that this engine reads; refuse what it cannot run.",
        ),
    ] = EngineOption.reference,
    expand_vocab: Annotated[
        bool,
        typer.Option(
            "--expand-vocab",
            help="Make a reduced vocabulary full, with the same proposals, for engines "
            "without a vocabulary table.",
        ),
    ] = False,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    verify_bytes: VerifyBytes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Convert a draft to the dense form.

    Weights are copied as bytes; the output appears complete or not at all.
    """
    from dspark_convert.cli import convert_commands

    convert_commands.to_dense(
        source,
        output,
        target=target,
        written_for=written_for.value,
        expand_vocab=expand_vocab,
        overrides=(_value(layout), _value(d2t), settings or []),
        dry_run=dry_run,
        overwrite=overwrite,
        verify_bytes=verify_bytes,
        as_json=as_json,
        quiet=quiet,
    )


@app.command("to-speculators")
def to_speculators(
    source: Source,
    output: Output,
    verifier: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR",
            help="The target model, which the result names; a folder or hf://OWNER/NAME is "
            "compared with the draft, OWNER/NAME only recorded. Default: what an earlier "
            "conversion recorded.",
        ),
    ] = None,
    keep_verifier_weights: Annotated[
        bool,
        typer.Option(
            "--keep-verifier-weights",
            help="Store embedding and head, which speculators reads from the verifier.",
        ),
    ] = False,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    verify_bytes: VerifyBytes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Convert a draft to the speculators form.

    After a conversion to dense its manifest restores what dense cannot say.
    """
    from dspark_convert.cli import convert_commands

    convert_commands.to_speculators(
        source,
        output,
        verifier=verifier,
        keep_verifier_weights=keep_verifier_weights,
        overrides=(_value(layout), _value(d2t), settings or []),
        dry_run=dry_run,
        overwrite=overwrite,
        verify_bytes=verify_bytes,
        as_json=as_json,
        quiet=quiet,
    )


@app.command("inspect")
def inspect(
    source: Source,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Describe a draft: dialect, layout, vocabulary, heads, sizes, and who can load it."""
    from dspark_convert.cli import convert_commands

    overrides = (_value(layout), _value(d2t), settings or [])
    convert_commands.inspect(source, overrides=overrides, as_json=as_json)


@app.command("engines")
def engines(
    source: Source,
    layout: LayoutChoice = None,
    d2t: TableChoice = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say what each serving engine will do with a draft, and the line that starts it."""
    from dspark_convert.cli import convert_commands

    overrides = (_value(layout), _value(d2t), settings or [])
    convert_commands.engines(source, overrides=overrides, as_json=as_json)


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
    from dspark_convert.cli import convert_commands

    overrides = (_value(layout), _value(d2t), settings or [])
    convert_commands.check(source, overrides=overrides, as_json=as_json, quiet=quiet)


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The result of a conversion.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Where to publish it.")],
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public; default: private.")
    ] = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Propose the files in a pull request.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Commit to a repository that exists already.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="A report of dspark-verify about this draft, for the model card.",
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Publish a conversion on the Hub, with a model card, in one commit.

    Its files must be what its manifest says, and pass every static check.
    """
    from dspark_convert.cli import hub_commands

    hub_commands.push(
        folder,
        repository,
        public=public,
        create_pr=create_pr,
        yes=yes,
        report=report,
        as_json=as_json,
        quiet=quiet,
    )


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
    from dspark_convert.cli import convert_commands

    convert_commands.schema(name, write=write, verify=verify)


def main() -> None:
    """Entry point of the ``dspark-convert`` command."""
    run(app)


def _value(option: enum.Enum | None) -> str | None:
    return None if option is None else str(option.value)


if __name__ == "__main__":
    main()
