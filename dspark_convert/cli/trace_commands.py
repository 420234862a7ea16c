"""Commands of ``dspark-verify`` that make traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dspark_convert.cli import options

if TYPE_CHECKING:
    from dspark_convert.cli.console import Sink

_FEATURE_DTYPES: dict[str, Literal["float32", "bfloat16"] | None] = {
    "auto": None,
    "bf16": "bfloat16",
    "fp32": "float32",
}


def record(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder of the target model.")],
    draft: options.JudgedDraft,
    out: options.TraceOutput,
    layers: Annotated[
        str | None,
        typer.Option(metavar="all|ID,ID", help="Default: the draft's. -1 is the embedding."),
    ] = None,
    neighbours: Annotated[
        bool, typer.Option("--neighbours", help="Also record the layers one below and one above.")
    ] = False,
    prompts: options.Prompts = None,
    given: Annotated[
        bool, typer.Option("--given", help="Read responses from the prompts file; generate none.")
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option(help="No round starts after this many tokens; a few more are kept.")
    ] = options.MAX_NEW_TOKENS,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    stop_token_ids: options.StopTokenIds = None,
    seed: options.Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Prompts to run together.")] = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    feature_dtype: Annotated[
        str, typer.Option(help="Dtype of hidden states: auto (as the target runs), bf16 or fp32.")
    ] = "auto",
    top: Annotated[
        int, typer.Option(help="How many of the largest log p to keep per position.")
    ] = 256,
    max_size: options.MaxSize = None,
    overwrite: options.OverwriteTrace = False,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.HeaderAsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a target once and keep what is needed to judge drafts without it."""
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.cli.models import quieten_transformers
    from dspark_convert.cli.views.trace import trace_view

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink:
        quieten_transformers()
        from dspark_convert.runtime import SamplingOptions
        from dspark_convert.runtime.machine import Machine
        from dspark_convert.traces.record import RecordOptions
        from dspark_convert.traces.record import record as record_trace

        if feature_dtype not in _FEATURE_DTYPES:
            message, known = "--feature-dtype is not known", ", ".join(_FEATURE_DTYPES)
            raise options.usage_error("dtype-unknown", message, feature_dtype, known)
        asked = RecordOptions(
            target=target,
            draft=draft,
            output=out,
            prompts=prompts,
            given=given,
            layers=_parse_layers(layers),
            neighbours=neighbours,
            max_new_tokens=max_new_tokens,
            sampling=SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p),
            stop_token_ids=options.parse_stop_token_ids(stop_token_ids, code="ids-invalid"),
            seed=seed,
            batch_size=batch_size,
            machine=Machine(device=device, dtype=dtype, trust_remote_code=trust_remote_code),
            feature_dtype=_FEATURE_DTYPES[feature_dtype],
            top_log_probs=top,
            max_bytes=options.parse_size(max_size),
            overwrite=overwrite,
        )
        with sink.steps() as on_progress:
            header = record_trace(
                asked, on_size=lambda size: _say_size(sink, size), on_progress=on_progress
            )
        sink.data(header.model_dump(mode="json"), trace_view(header, out))


def import_vllm(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Files of vLLM's hidden-state extraction.")
    ],
    text_origin: Annotated[
        Literal["greedy", "given"],
        typer.Option(help="greedy: the target's own text at temperature 0; given: any other."),
    ],
    target: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the target model.")],
    layers: Annotated[
        str,
        typer.Option(
            metavar="ID,ID",
            help="The ids given to vLLM (eagle_aux_hidden_state_layer_ids): 1 is the output of "
            "decoder layer 0.",
        ),
    ],
    draft: options.JudgedDraft,
    out: options.TraceOutput,
    prompt_lengths: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSON lines {"id": file stem, "prompt_length": N}.'),
    ] = None,
    prompt_length: Annotated[
        int | None,
        typer.Option(help="Length of the prompt in tokens, if it is the same in every file."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Default: as many as all texts are long enough for.")
    ] = None,
    stop_token_ids: options.StopTokenIds = None,
    max_size: options.MaxSize = None,
    overwrite: options.OverwriteTrace = False,
    as_json: options.HeaderAsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a trace of a target that ran in vLLM; without log p, it serves only temperature 0."""
    from dspark_convert.cli.console import Sink
    from dspark_convert.cli.exits import refusals
    from dspark_convert.cli.models import quieten_transformers
    from dspark_convert.cli.views.trace import trace_view

    with refusals(Sink(as_json=as_json, quiet=quiet)) as sink:
        quieten_transformers()
        from dspark_convert.traces.import_vllm import ImportOptions
        from dspark_convert.traces.import_vllm import import_vllm as import_trace

        asked = ImportOptions(
            folder=folder,
            target=target,
            draft=draft,
            output=out,
            text_origin=text_origin,
            layers=options.parse_ids(layers, "--layers"),
            prompt_length=prompt_length,
            prompt_lengths=prompt_lengths,
            max_new_tokens=max_new_tokens,
            stop_token_ids=options.parse_stop_token_ids(stop_token_ids, code="ids-invalid"),
            max_bytes=options.parse_size(max_size),
            overwrite=overwrite,
        )
        with sink.steps() as on_progress:
            header, notes = import_trace(
                asked, on_size=lambda size: _say_size(sink, size), on_progress=on_progress
            )
        sink.findings(notes)
        sink.data(header.model_dump(mode="json"), trace_view(header, out))


def _parse_layers(text: str | None) -> tuple[int, ...] | Literal["all"] | None:
    if text == "all":
        return "all"
    return None if text is None else options.parse_ids(text, "--layers")


def _say_size(sink: Sink, nbytes: int) -> None:
    sink.note(f"the trace takes at most {nbytes / 1e6:,.1f} MB, and twice that while it is made")
