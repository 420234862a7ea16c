"""The command of ``dspark-verify`` that finds out why a draft drafts badly."""

from __future__ import annotations

from typing import Annotated

import typer

from dspark_convert.cli import options


def diagnose(
    draft: options.Draft,
    target: options.Target = None,
    trace: options.TraceFile = None,
    target_weights: Annotated[
        str | None,
        typer.Option(
            metavar="REPO_OR_DIR",
            help="With --trace: the target model, for tensors that the draft lacks and so that "
            "more readings can be tried.",
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
    seed: options.Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts to run together.")] = 8,
    decoder: options.Decoder = "auto",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.ReportAsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find out why a draft is accepted badly: read it in other ways on the same texts.

    Exit code 0: nothing better found; 1: a cause was found; 2: wrong usage; 3: an input was
    refused; 4: undecided.
    """
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import DIAGNOSIS_CODES, refusals
    from dspark_convert.cli.models import ModelFolders, quieten_transformers
    from dspark_convert.cli.views.diagnosis import diagnosis_view

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink:
        quieten_transformers()
        from dspark_convert.diagnosis.options import DiagnoseOptions, require_texts
        from dspark_convert.diagnosis.run import run_diagnosis
        from dspark_convert.runtime import DecodeOptions
        from dspark_convert.runtime.machine import Machine

        require_texts(target, trace)  # before anything is downloaded
        folders = ModelFolders(sink, trust_remote_code)
        asked = DiagnoseOptions(
            draft=folders.find(draft),
            target=folders.find_optional(target),
            trace=trace,
            target_weights=folders.find_optional(target_weights),
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
            ),
            stop_token_ids=options.parse_stop_token_ids(stop_token_ids),
            stated=options.stated(
                max_new_tokens=max_new_tokens,
                stop_token_ids=stop_token_ids,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
            ),
            seed=seed,
            batch_size=batch_size,
            decoder=decoder,
            machine=Machine(device=device, dtype=dtype, trust_remote_code=trust_remote_code),
        )
        with sink.steps() as on_progress:
            result = run_diagnosis(asked, on_progress=on_progress)
        sink.data(result.model_dump(mode="json"), diagnosis_view(result))
        raise typer.Exit(DIAGNOSIS_CODES[result.verdict])
