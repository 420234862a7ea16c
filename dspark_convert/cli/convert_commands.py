"""Commands of ``dspark-convert``: convert a draft, describe it, check it, print schemas."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_convert.cli import options
from dspark_convert.errors import Finding, OutputError

if TYPE_CHECKING:  # every command imports what it needs when it runs
    from dspark_convert.cli.console import Sink
    from dspark_convert.conversion.plan import Conversion
    from dspark_convert.formats.overrides import Overrides


def to_dense(
    source: options.Source,
    output: options.Output,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="REPO_OR_DIR",
            help="The target model: fills in a missing embedding or head, and checks the pair.",
        ),
    ] = None,
    written_for: options.WrittenFor = "reference",
    expand_vocab: Annotated[
        bool,
        typer.Option(
            "--expand-vocab",
            help="Make a reduced vocabulary full, with the same proposals, for engines "
            "without a vocabulary table.",
        ),
    ] = False,
    layout: options.Layout = None,
    d2t: options.TableMeaning = None,
    settings: options.Settings = None,
    dry_run: options.DryRun = False,
    overwrite: options.Overwrite = False,
    verify_bytes: options.VerifyBytes = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert a draft to the dense form.

    Weights are copied as bytes; the output appears complete or not at all.
    """
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.conversion.plan import plan_to_dense
    from dspark_convert.engines import find_engine
    from dspark_convert.formats.overrides import parse_overrides

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink, ExitStack() as stack:
        engine = find_engine(written_for)
        overrides = parse_overrides(layout, d2t, settings or [])
        inputs = _Inputs(
            sink, stack, overrides, whole=not dry_run, compared=bool(target and engine)
        )
        model = inputs.open_target(target)
        conversion = plan_to_dense(
            inputs.open_draft(source),
            target=Path(model) if model else None,
            overrides=overrides,
            written_for=written_for,
            expand_vocabulary=expand_vocab,
        )
        if dry_run:
            _show(conversion, sink)
        else:
            _carry_out(conversion, output, sink, overwrite=overwrite, verify_bytes=verify_bytes)


def to_speculators(
    source: options.Source,
    output: options.Output,
    verifier: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR",
            help="The target model that the result names. A folder or hf://OWNER/NAME is compared "
            "with the draft; OWNER/NAME is only recorded. Default: what an earlier conversion "
            "recorded.",
        ),
    ] = None,
    keep_verifier_weights: Annotated[
        bool,
        typer.Option(
            "--keep-verifier-weights",
            help="Store the embedding and head that speculators reads from the verifier.",
        ),
    ] = False,
    layout: options.Layout = None,
    d2t: options.TableMeaning = None,
    settings: options.Settings = None,
    dry_run: options.DryRun = False,
    overwrite: options.Overwrite = False,
    verify_bytes: options.VerifyBytes = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert a draft to the speculators form.

    After a conversion to dense, its manifest restores what dense cannot express.
    """
    from dspark_convert.checkpoint.files import is_folder
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.conversion.plan import plan_to_speculators
    from dspark_convert.formats.overrides import parse_overrides
    from dspark_convert.hub.sources import names_repository_to_read

    local = verifier is not None and is_folder(Path(verifier))
    compared = local or names_repository_to_read(verifier)
    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink, ExitStack() as stack:
        overrides = parse_overrides(layout, d2t, settings or [])
        inputs = _Inputs(sink, stack, overrides, whole=not dry_run, compared=compared)
        conversion = plan_to_speculators(
            inputs.open_draft(source),
            verifier=inputs.open_target(verifier) if compared else verifier,
            keep_verifier_weights=keep_verifier_weights,
            overrides=overrides,
        )
        if dry_run:
            _show(conversion, sink)
        else:
            _carry_out(conversion, output, sink, overwrite=overwrite, verify_bytes=verify_bytes)


@dataclass(frozen=True)
class _Inputs:
    """Opens what a conversion reads; from the Hub, it fetches no more than that."""

    sink: Sink
    stack: ExitStack
    overrides: Overrides
    whole: bool
    compared: bool

    def open_draft(self, text: str) -> Path:
        """The folder of the source."""
        from dspark_convert.hub.sources import opened_draft

        opened = opened_draft(
            text,
            overrides=self.overrides,
            whole=self.whole,
            compared=self.compared,
            on_finding=self.sink.findings,
            progress=self.sink.shows_progress,
        )
        return self.stack.enter_context(opened)

    def open_target(self, text: str | None) -> str:
        """The folder of the target model; "" without one."""
        from dspark_convert.hub.sources import opened_target

        opened = opened_target(
            text,
            whole=self.whole or self.compared,
            on_finding=self.sink.findings,
            progress=self.sink.shows_progress,
        )
        return self.stack.enter_context(opened)


def _show(conversion: Conversion, sink: Sink) -> None:
    from dspark_convert.cli.views.plan import plan_view

    sink.findings(conversion.plan.findings)
    sink.data(conversion.plan.model_dump(mode="json"), plan_view(conversion.plan))


def _carry_out(
    conversion: Conversion, output: Path, sink: Sink, *, overwrite: bool, verify_bytes: bool
) -> None:
    from dspark_convert.cli.views.plan import summary_view
    from dspark_convert.conversion.run import run_conversion

    sink.findings(conversion.plan.findings)
    total = sum(conversion.plan.output_bytes.values())
    with sink.progress("copying", total) as advance:
        manifest = run_conversion(
            conversion,
            output,
            overwrite=overwrite,
            verify_bytes=verify_bytes,
            on_bytes=advance,
        )
    sink.data(manifest.model_dump(mode="json"), summary_view(conversion.plan, str(output)))


def inspect(
    source: options.Source,
    layout: options.Layout = None,
    d2t: options.TableMeaning = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a draft: dialect, layout, vocabulary, heads, sizes, and who can load it."""
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.cli.views.plan import inspection_view
    from dspark_convert.conversion.inspection import inspect_draft
    from dspark_convert.errors import CheckpointError
    from dspark_convert.formats.overrides import parse_overrides
    from dspark_convert.hub.sources import opened_headers

    with (
        refusals(Sink(as_json=as_json)) as sink,
        opened_headers(source, sink.findings) as folder,
    ):
        overrides = parse_overrides(layout, d2t, settings or [])
        inspection = inspect_draft(folder, overrides=overrides)
        sink.findings(inspection.findings)
        sink.data(inspection.model_dump(mode="json"), inspection_view(inspection))
        if inspection.draft is None and inspection.bundled is None:
            raise typer.Exit(CheckpointError.exit_code)


def engines(
    source: options.Source,
    layout: options.Layout = None,
    d2t: options.TableMeaning = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what each serving engine will do with a draft, and how to start it."""
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.cli.views.plan import engines_view
    from dspark_convert.conversion.engine_report import report_engines
    from dspark_convert.formats.overrides import parse_overrides
    from dspark_convert.hub.sources import opened_headers

    with (
        refusals(Sink(as_json=as_json)) as sink,
        opened_headers(source, sink.findings) as folder,
    ):
        report = report_engines(folder, overrides=parse_overrides(layout, d2t, settings or []))
        sink.findings(report.findings)
        sink.data(report.model_dump(mode="json"), *engines_view(report))


def check(
    source: options.Source,
    layout: options.Layout = None,
    d2t: options.TableMeaning = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run every static check and report all findings at once.

    Exit code 0: no errors; 1: errors; 3: not even the config can be read.
    """
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import CHECK_FAILED, refusals
    from dspark_convert.cli.views.plan import check_view
    from dspark_convert.conversion.inspection import check_draft
    from dspark_convert.formats.overrides import parse_overrides
    from dspark_convert.hub.sources import opened_headers

    with (
        refusals(Sink(as_json=as_json, quiet=quiet)) as sink,
        opened_headers(source, sink.findings) as folder,
    ):
        report = check_draft(folder, overrides=parse_overrides(layout, d2t, settings or []))
        sink.findings(report.findings)
        sink.data(report.model_dump(mode="json"), check_view(report))
        if report.verdict == "fail":
            raise typer.Exit(CHECK_FAILED)


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this schema.", show_default=False)
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write all schemas to a folder.")
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="DIR", help="Exit with 1 if a folder's schemas differ from ours."
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a document, or write or check all of them."""
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.schemas.catalog import PUBLISHED, schema_text

    with refusals(Sink()) as sink:
        known = sorted(PUBLISHED)
        if write is not None:
            _write_schemas(write, sink)
        elif verify is not None:
            _check_schemas(verify, sink)
        elif name is None:
            typer.echo("\n".join(known))
        elif name in PUBLISHED:
            typer.echo(schema_text(name), nl=False)
        else:
            raise options.usage_error(
                "unknown-schema", "no document has this name", name, ", ".join(known)
            )


def _write_schemas(folder: Path, sink: Sink) -> None:
    from dspark_convert.checkpoint.staged_file import write_file
    from dspark_convert.schemas.catalog import PUBLISHED, schema_file, schema_text

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            write_file(schema_file(folder, name), schema_text(name).encode())
    except OSError as error:
        finding = Finding(
            code="output-not-writable",
            message=f"the schemas cannot be written: {error.strerror}",
            found=str(folder),
            hint="choose a folder that you may write to",
        )
        raise OutputError(finding) from error
    sink.note(f"{len(PUBLISHED)} schemas written to {folder}")


def _check_schemas(folder: Path, sink: Sink) -> None:
    from dspark_convert.cli.exits import CHECK_FAILED
    from dspark_convert.schemas.catalog import drifted

    names = drifted(folder)
    for name in names:
        sink.note(f"{name} differs from the models; run: dspark-convert schema --write {folder}")
    if names:
        raise typer.Exit(CHECK_FAILED)
