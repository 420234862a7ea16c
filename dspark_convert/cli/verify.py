"""``dspark-verify``: does a draft still draft well against its target.

Only what users type is declared here; ``verify_commands`` does the work, imported when a command
runs. PyTorch is imported by the commands that decode, so that help and explanations need nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_convert import __version__
from dspark_convert.cli.diagnose import diagnose
from dspark_convert.cli.program import run
from dspark_convert.cli.verify_options import (
    AsJson,
    Device,
    Draft,
    DraftSampling,
    DraftSamplingOption,
    Dtype,
    Engine,
    EngineOption,
    Html,
    JUnit,
    Markdown,
    MaxNewTokens,
    NumSpeculativeTokens,
    Prompts,
    Quiet,
    Seed,
    StopTokenIds,
    Target,
    TargetWeights,
    Temperature,
    TextOriginOption,
    TopK,
    TopP,
    TraceFile,
    TrustRemoteCode,
)

app = typer.Typer(
    name="dspark-verify",
    help="Check a DSpark draft against its target model; the exit code is the verdict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"dspark-verify {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command("check")
def check(
    draft: Draft,
    target: Target = None,
    trace: TraceFile = None,
    target_weights: TargetWeights = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR", help="The draft before conversion: outputs must be equal."
        ),
    ] = None,
    prompts: Prompts = None,
    max_new_tokens: MaxNewTokens = None,
    stop_token_ids: StopTokenIds = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    draft_sampling: DraftSampling = DraftSamplingOption.sample,
    num_speculative_tokens: NumSpeculativeTokens = None,
    confidence_threshold: Annotated[
        float | None, typer.Option(help="End a proposal before a token of less confidence.")
    ] = None,
    min_accepted_length: Annotated[
        float | None, typer.Option(help="Committed tokens per round, the bonus token included.")
    ] = None,
    min_acceptance: Annotated[
        str | None,
        typer.Option(metavar="X,Y,...", help="Acceptance at each position, given those before."),
    ] = None,
    worst: Annotated[
        int,
        typer.Option(metavar="N", help="Show the N texts of lowest accepted length, marked up."),
    ] = 0,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts decoded together.")] = 8,
    engine: Engine = EngineOption.auto,
    device: Device = "auto",
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    gate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Thresholds, dspark.toml; options given here overrule them."
        ),
    ] = None,
    prompt_set: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --gate: run this prompt set of the file."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.")
    ] = None,
    junit: JUnit = None,
    markdown: Markdown = None,
    html: Html = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every check of a draft.

    Exit code 0: all passed; 1: one failed; 2: wrong usage; 3: an input was refused; 4:
    inconclusive.
    """
    from dspark_convert.cli import verify_commands
    from dspark_convert.cli.report_commands import Outputs

    verify_commands.check(
        verify_commands.RawOptions(
            draft=draft,
            target=target,
            trace=trace,
            target_weights=target_weights,
            source=source,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            draft_sampling=draft_sampling.value,
            num_speculative_tokens=num_speculative_tokens,
            confidence_threshold=confidence_threshold,
            min_accepted_length=min_accepted_length,
            min_acceptance=min_acceptance,
            worst=worst,
            seed=seed,
            batch_size=batch_size,
            engine=engine.value,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        ),
        gate=gate,
        prompt_set=prompt_set,
        outputs=Outputs(report=report, junit=junit, markdown=markdown, html=html),
        as_json=as_json,
        quiet=quiet,
    )


app.command("diagnose")(diagnose)


@app.command("record")
def record(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder of the target model.")],
    draft: Annotated[
        Path, typer.Option("--for", metavar="DRAFT", help="The draft that the trace will judge.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The trace, a safetensors file.")],
    layers: Annotated[
        str | None,
        typer.Option(metavar="all|ID,ID", help="Default: the draft's. -1 is the embedding."),
    ] = None,
    neighbours: Annotated[
        bool, typer.Option("--neighbours", help="Also the layers one below and one above.")
    ] = False,
    prompts: Prompts = None,
    given: Annotated[
        bool, typer.Option("--given", help="Read responses of the prompts file; write none.")
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option(help="Where rounds stop being started; a few more tokens are kept.")
    ] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    stop_token_ids: StopTokenIds = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts run together.")] = 8,
    device: Device = "auto",
    dtype: Dtype = "auto",
    feature_dtype: Annotated[
        str, typer.Option(help="Of hidden states: auto (as the target runs), bf16 or fp32.")
    ] = "auto",
    top: Annotated[int, typer.Option(help="Largest log p kept of every position.")] = 256,
    max_size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Refuse a larger trace: 500MB, 2GiB, ...")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing trace.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the header to stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a target once and keep what judging a draft needs, so that it is not needed again."""
    from dspark_convert.cli import trace_commands

    trace_commands.record(
        trace_commands.RawRecord(
            target=target,
            draft=draft,
            out=out,
            prompts=prompts,
            given=given,
            layers=layers,
            neighbours=neighbours,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            feature_dtype=feature_dtype,
            top=top,
            max_size=max_size,
            overwrite=overwrite,
            trust_remote_code=trust_remote_code,
        ),
        as_json=as_json,
        quiet=quiet,
    )


@app.command("import-vllm")
def import_vllm(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Files of vLLM's hidden-state extraction.")
    ],
    text_origin: Annotated[
        TextOriginOption,
        typer.Option(help="greedy: the target's own text at temperature 0; given: any other."),
    ],
    target: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the target model.")],
    layers: Annotated[
        str,
        typer.Option(
            metavar="ID,ID",
            help="As vLLM was given them (eagle_aux_hidden_state_layer_ids): 1 is the output of "
            "decoder layer 0.",
        ),
    ],
    draft: Annotated[
        Path, typer.Option("--for", metavar="DRAFT", help="The draft that the trace will judge.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The trace, a safetensors file.")],
    prompt_lengths: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSON lines {"id": file stem, "prompt_length": N}.'),
    ] = None,
    prompt_length: Annotated[
        int | None, typer.Option(help="Tokens of the prompt, the same in every file.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Default: as many as every text is long enough for.")
    ] = None,
    stop_token_ids: StopTokenIds = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Refuse a larger trace: 500MB, 2GiB, ...")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing trace.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the header to stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a trace of a target that ran in vLLM; without log p it serves temperature 0."""
    from dspark_convert.cli import trace_commands

    trace_commands.import_vllm(
        trace_commands.RawImport(
            folder=folder,
            target=target,
            draft=draft,
            out=out,
            text_origin=text_origin.value,
            layers=layers,
            prompt_length=prompt_length,
            prompt_lengths=prompt_lengths,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            max_size=max_size,
            overwrite=overwrite,
        ),
        as_json=as_json,
        quiet=quiet,
    )


@app.command("compare")
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Report of what is released.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Report of what may replace it.")],
    max_drop: Annotated[
        float | None, typer.Option(min=0, help="Allowed loss of accepted length.")
    ] = None,
    max_drop_standard_errors: Annotated[
        float | None,
        typer.Option(min=0, help="The same in standard errors; 2 if no limit is given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON to stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Say what changed between two reports.

    Exit code 0: no loss; 1: a check fails that did not, or acceptance fell too far; 4: not
    measured alike, or no longer decided.
    """
    from dspark_convert.cli import report_commands

    report_commands.compare(
        base,
        new,
        max_drop=max_drop,
        max_drop_standard_errors=max_drop_standard_errors,
        as_json=as_json,
        quiet=quiet,
    )


@app.command("render")
def render(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="What check --report wrote.")],
    junit: JUnit = None,
    markdown: Markdown = None,
    html: Html = None,
    diagnosis: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What diagnose --json printed, for the page."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make JUnit XML, Markdown or a page of a report."""
    from dspark_convert.cli import report_commands

    outputs = report_commands.Outputs(junit=junit, markdown=markdown, html=html)
    report_commands.render(report, outputs, diagnosis=diagnosis, quiet=quiet)


@app.command("explain")
def explain_check(
    check_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A check; all of them are listed without it."),
    ] = None,
) -> None:
    """Say what a check looks at, when it fails, and what to do then."""
    from dspark_convert.cli import verify_commands

    verify_commands.explain(check_id)


def main() -> None:
    """Entry point of the ``dspark-verify`` command."""
    run(app)


if __name__ == "__main__":
    main()
