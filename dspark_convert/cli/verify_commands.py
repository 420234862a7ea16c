"""Commands of ``dspark-verify`` that check a draft, and say what a check is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_convert.cli import options

if TYPE_CHECKING:  # every command imports what it needs when it runs
    from dspark_convert.reports.gate import Gate


def check(
    draft: options.Draft,
    target: options.Target = None,
    trace: options.TraceFile = None,
    target_weights: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR",
            help="With --trace: the target model, for tensors that the draft lacks.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR", help="The draft before conversion: outputs must be equal."
        ),
    ] = None,
    prompts: options.Prompts = None,
    max_new_tokens: options.MaxNewTokens = None,
    stop_token_ids: options.StopTokenIds = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    draft_sampling: options.DraftSampling = "sample",
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    confidence_threshold: Annotated[
        float | None,
        typer.Option(help="End a proposal before the first token of lower confidence."),
    ] = None,
    min_accepted_length: Annotated[
        float | None, typer.Option(help="Committed tokens per round, bonus token included.")
    ] = None,
    min_acceptance: Annotated[
        str | None,
        typer.Option(metavar="X,Y,...", help="Acceptance at each position, given the ones before."),
    ] = None,
    worst: Annotated[
        int,
        typer.Option(
            metavar="N", help="Show the N texts with the lowest accepted length, marked up."
        ),
    ] = 0,
    seed: options.Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts to decode together.")] = 8,
    decoder: options.Decoder = "auto",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    gate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Thresholds file, dspark.toml; options given here override it."
        ),
    ] = None,
    prompt_set: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --gate: use this prompt set of the file."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.")
    ] = None,
    junit: options.JUnit = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    as_json: options.ReportAsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run every check on a draft.

    Exit code 0: all passed; 1: one failed; 2: wrong usage; 3: an input was refused; 4:
    inconclusive.
    """
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import VERDICT_CODES, refusals
    from dspark_convert.cli.models import ModelFolders, quieten_transformers
    from dspark_convert.cli.report_files import ReportFiles, append_step_summary
    from dspark_convert.cli.views.report import report_view
    from dspark_convert.reports.gate import apply_gate, follow_gate

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink:
        files = ReportFiles(report=report, junit=junit, markdown=markdown, html=html)
        folders_and_files = (draft, target, target_weights, source, trace, prompts, gate)
        files.check(*folders_and_files)
        thresholds = _open_gate(gate, prompt_set)
        if thresholds is not None:
            files.check(*folders_and_files, thresholds.prompts, thresholds.trace)
        quieten_transformers()
        from dspark_convert.checks.options import VerifyOptions
        from dspark_convert.checks.run import verify
        from dspark_convert.runtime import DecodeOptions
        from dspark_convert.runtime.machine import Machine

        folders = ModelFolders(sink, trust_remote_code)
        asked = VerifyOptions(
            draft=folders.find(draft),
            target=folders.find_optional(target),
            trace=trace,
            target_weights=folders.find_optional(target_weights),
            source=folders.find_optional(source),
            prompts=prompts,
            decode=DecodeOptions(
                max_new_tokens=(
                    options.MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens
                ),
                temperature=temperature or 0.0,
                top_k=top_k,
                top_p=top_p,
                draft_sampling=draft_sampling,
                num_speculative_tokens=num_speculative_tokens,
                confidence_threshold=confidence_threshold,
            ),
            stop_token_ids=options.parse_stop_token_ids(stop_token_ids),
            stated=options.stated(
                max_new_tokens=max_new_tokens,
                stop_token_ids=stop_token_ids,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
            ),
            min_accepted_length=min_accepted_length,
            min_acceptance=options.parse_fractions(min_acceptance),
            worst=worst,
            seed=seed,
            batch_size=batch_size,
            decoder=decoder,
            machine=Machine(device=device, dtype=dtype, trust_remote_code=trust_remote_code),
        )
        with sink.steps() as on_progress:
            result = verify(
                follow_gate(asked, thresholds) if thresholds else asked, on_progress=on_progress
            )
        result = apply_gate(thresholds, result) if thresholds else result
        files.write(result)
        append_step_summary(result)
        sink.data(result.model_dump(mode="json"), report_view(result))
        if any(each.id == "acceptance" and each.verdict == "fail" for each in result.checks):
            texts = f"--trace {trace}" if trace else f"--target {target}"
            sink.note(f"to find out why, run: dspark-verify diagnose {draft} {texts}")
        raise typer.Exit(VERDICT_CODES[result.verdict])


def _open_gate(path: Path | None, prompt_set: str | None) -> Gate | None:
    from dspark_convert.reports.gate import open_gate

    if path is not None:
        return open_gate(path, prompt_set)
    if prompt_set is not None:
        raise options.usage_error(
            "gate-missing", "--prompt-set needs --gate", prompt_set, "--gate FILE"
        )
    return None


def explain(
    check_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A check id; without one, all checks are listed."),
    ] = None,
) -> None:
    """Say what a check looks at, when it fails, and what to do then."""
    from dspark_convert.checks import CHECKS, find_check
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals

    with refusals(Sink()):
        if check_id is None:
            for check in CHECKS.values():
                typer.echo(f"{check.id:18} {check.title}")
        else:
            typer.echo(find_check(check_id).explain(), nl=False)
