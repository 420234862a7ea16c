"""What the commands of ``dspark-convert`` do: call the library, show, set the exit code."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer

from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import CHECK_FAILED, refusals
from dspark_convert.cli.render import (
    check_view,
    engines_view,
    inspection_view,
    plan_view,
    summary_view,
)
from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import Conversion, plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import REFERENCE
from dspark_convert.errors import CheckpointError, Finding, OutputError, UsageError
from dspark_convert.formats.overrides import Overrides, parse_overrides
from dspark_convert.hub.sources import (
    names_repository_to_read,
    opened_draft,
    opened_headers,
    opened_target,
)
from dspark_convert.schemas.catalog import PUBLISHED, drifted, schema_file, schema_text

RawOverrides = tuple[str | None, str | None, list[str]]
"""``--layout``, ``--d2t`` and every ``--set``, as typed."""


def to_dense(
    source: str,
    output: Path,
    *,
    target: str | None,
    written_for: str,
    expand_vocab: bool,
    overrides: RawOverrides,
    dry_run: bool,
    overwrite: bool,
    verify_bytes: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Convert a draft to dense, or show how it would be done."""
    sink = Sink(as_json=as_json, quiet=quiet)
    compared = target is not None and written_for != REFERENCE
    with refusals(sink), ExitStack() as stack:
        parsed = parse_overrides(*overrides)
        fetching = _Fetching(sink, stack, parsed, whole=not dry_run, compared=compared)
        model = fetching.target(target)
        conversion = plan_to_dense(
            fetching.draft(source),
            target=Path(model) if model else None,
            overrides=parsed,
            written_for=written_for,
            expand_vocabulary=expand_vocab,
        )
        if dry_run:
            _show_plan(conversion, sink)
        else:
            _carry_out(conversion, output, sink, overwrite=overwrite, verify_bytes=verify_bytes)


def to_speculators(
    source: str,
    output: Path,
    *,
    verifier: str | None,
    keep_verifier_weights: bool,
    overrides: RawOverrides,
    dry_run: bool,
    overwrite: bool,
    verify_bytes: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Convert a draft to speculators, or show how it would be done."""
    sink = Sink(as_json=as_json, quiet=quiet)
    local = verifier is not None and Path(verifier).is_dir()
    compared = local or names_repository_to_read(verifier)
    with refusals(sink), ExitStack() as stack:
        parsed = parse_overrides(*overrides)
        fetching = _Fetching(sink, stack, parsed, whole=not dry_run, compared=compared)
        conversion = plan_to_speculators(
            fetching.draft(source),
            verifier=fetching.target(verifier) if compared else verifier,
            keep_verifier_weights=keep_verifier_weights,
            overrides=parsed,
        )
        if dry_run:
            _show_plan(conversion, sink)
        else:
            _carry_out(conversion, output, sink, overwrite=overwrite, verify_bytes=verify_bytes)


@dataclass(frozen=True)
class _Fetching:
    """Opens what a conversion reads; from the Hub, no more than it will read."""

    sink: Sink
    stack: ExitStack
    overrides: Overrides
    whole: bool
    compared: bool

    def draft(self, text: str) -> Path:
        """The folder of the source."""
        opened = opened_draft(
            text,
            overrides=self.overrides,
            whole=self.whole,
            compared=self.compared,
            on_finding=self.sink.findings,
            progress=self.sink.shows_progress,
        )
        return self.stack.enter_context(opened)

    def target(self, text: str | None) -> str:
        """The folder of the target model; "" without one."""
        opened = opened_target(
            text,
            whole=self.whole or self.compared,
            on_finding=self.sink.findings,
            progress=self.sink.shows_progress,
        )
        return self.stack.enter_context(opened)


def _show_plan(conversion: Conversion, sink: Sink) -> None:
    sink.findings(conversion.plan.findings)
    sink.data(conversion.plan.model_dump(mode="json"), plan_view(conversion.plan))


def _carry_out(
    conversion: Conversion, output: Path, sink: Sink, *, overwrite: bool, verify_bytes: bool
) -> None:
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


def inspect(source: str, *, overrides: RawOverrides, as_json: bool) -> None:
    """Describe a draft."""
    sink = Sink(as_json=as_json)
    with refusals(sink), opened_headers(source, sink.findings) as folder:
        inspection = inspect_draft(folder, overrides=parse_overrides(*overrides))
        sink.findings(inspection.findings)
        sink.data(inspection.model_dump(mode="json"), inspection_view(inspection))
        if inspection.draft is None and inspection.bundled is None:
            raise typer.Exit(CheckpointError.exit_code)


def engines(source: str, *, overrides: RawOverrides, as_json: bool) -> None:
    """What every engine does with a draft."""
    sink = Sink(as_json=as_json)
    with refusals(sink), opened_headers(source, sink.findings) as folder:
        report = report_engines(folder, overrides=parse_overrides(*overrides))
        sink.findings(report.findings)
        sink.data(report.model_dump(mode="json"), *engines_view(report))


def check(source: str, *, overrides: RawOverrides, as_json: bool, quiet: bool) -> None:
    """Report every finding of the static checks."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink), opened_headers(source, sink.findings) as folder:
        report = check_draft(folder, overrides=parse_overrides(*overrides))
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
