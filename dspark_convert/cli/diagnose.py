"""What users type after ``dspark-verify diagnose``."""

from __future__ import annotations

from typing import Annotated

import typer

from dspark_convert.cli import verify_options as options


def diagnose(
    draft: options.Draft,
    target: options.Target = None,
    trace: options.TraceFile = None,
    target_weights: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR",
            help="With --trace: the target model, for tensors that the draft lacks, and so that "
            "more can be tried.",
        ),
    ] = None,
    prompts: options.Prompts = None,
    max_new_tokens: options.MaxNewTokens = None,
    stop_token_ids: options.StopTokenIds = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    draft_sampling: options.DraftSampling = options.DraftSamplingOption.sample,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    seed: options.Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts run together.")] = 8,
    engine: options.Engine = options.EngineOption.auto,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find out why a draft is accepted badly: read it in other ways, on the same texts.

    Exit code 0: nothing better found; 1: a cause was found; 2: wrong usage; 3: an input was
    refused; 4: undecided.
    """
    from dspark_convert.cli import diagnose_commands
    from dspark_convert.cli.run_options import RawRun

    diagnose_commands.diagnose(
        RawRun(
            draft=draft,
            target=target,
            trace=trace,
            target_weights=target_weights,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            draft_sampling=draft_sampling.value,
            num_speculative_tokens=num_speculative_tokens,
            seed=seed,
            batch_size=batch_size,
            engine=engine.value,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        ),
        as_json=as_json,
        quiet=quiet,
    )
