"""What the commands of ``dspark-convert`` do: call the library, show, set the exit code."""

from __future__ import annotations

from pathlib import Path

import typer

from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import CHECK_FAILED, refusals
from dspark_convert.cli.render import check_view, inspection_view, plan_view, summary_view
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import CheckpointError, Finding, OutputError, UsageError
from dspark_convert.formats.overrides import parse_overrides
from dspark_convert.schemas.published import PUBLISHED, drifted, schema_file, schema_text

RawOverrides = tuple[str | None, str | None, list[str]]
"""``--layout``, ``--d2t`` and every ``--set``, as typed."""


def to_dense(
    source: Path,
    output: Path,
    *,
    target: Path | None,
    overrides: RawOverrides,
    dry_run: bool,
    overwrite: bool,
    verify_bytes: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Convert a draft, or show how it would be done."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        conversion = plan_to_dense(source, target=target, overrides=parse_overrides(*overrides))
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


def inspect(source: Path, *, overrides: RawOverrides, as_json: bool) -> None:
    """Describe a draft."""
    sink = Sink(as_json=as_json)
    with refusals(sink):
        inspection = inspect_draft(source, overrides=parse_overrides(*overrides))
        sink.findings(inspection.findings)
        sink.data(inspection.model_dump(mode="json"), inspection_view(inspection))
        if inspection.draft is None:
            raise typer.Exit(CheckpointError.exit_code)


def check(source: Path, *, overrides: RawOverrides, as_json: bool, quiet: bool) -> None:
    """Report every finding of the static checks."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        report = check_draft(source, overrides=parse_overrides(*overrides))
        sink.findings(report.findings)
        sink.data(report.model_dump(mode="json"), check_view(report))
        if report.verdict == "fail":
            raise typer.Exit(CHECK_FAILED)


def schema(name: str | None, *, write: Path | None, verify: Path | None) -> None:
    """Print one schema or the list of them, or write or check a folder of all."""
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


def _write_schemas(folder: Path, sink: Sink) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            schema_file(folder, name).write_text(schema_text(name), encoding="utf-8")
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
