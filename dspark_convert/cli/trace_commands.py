"""What ``record`` and ``import-vllm`` do: build the options, make the trace, say what it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import RenderableType

from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import refusals
from dspark_convert.cli.render import facts_grid
from dspark_convert.cli.run_options import quieten_transformers
from dspark_convert.errors import Finding, UsageError
from dspark_convert.schemas.trace import TraceHeader

if TYPE_CHECKING:
    from dspark_convert.traces.import_vllm import ImportOptions
    from dspark_convert.traces.record import RecordOptions

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_FEATURE_DTYPES: dict[str, Literal["float32", "bfloat16"] | None] = {
    "auto": None,
    "bf16": "bfloat16",
    "fp32": "float32",
}


@dataclass(frozen=True, kw_only=True)
class RawRecord:
    """The options of ``record`` as typed."""

    target: Path
    draft: Path
    out: Path
    prompts: Path | None
    given: bool
    layers: str | None
    neighbours: bool
    max_new_tokens: int
    stop_token_ids: str | None
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    batch_size: int
    device: str
    dtype: str
    feature_dtype: str
    top: int
    max_size: str | None
    overwrite: bool
    trust_remote_code: bool


@dataclass(frozen=True, kw_only=True)
class RawImport:
    """The options of ``import-vllm`` as typed."""

    folder: Path
    target: Path
    draft: Path
    out: Path
    text_origin: Literal["greedy", "given"]
    layers: str
    prompt_length: int | None
    prompt_lengths: Path | None
    max_new_tokens: int | None
    stop_token_ids: str | None
    max_size: str | None
    overwrite: bool


def record(raw: RawRecord, *, as_json: bool, quiet: bool) -> None:
    """Run a target and record a trace."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        options = _record_options(raw)
        quieten_transformers()
        from dspark_convert.traces.record import record as record_trace

        with sink.steps() as on_progress:
            header = record_trace(
                options, on_size=lambda size: _say_size(sink, size), on_progress=on_progress
            )
        sink.data(header.model_dump(mode="json"), _trace_view(header, raw.out))


def import_vllm(raw: RawImport, *, as_json: bool, quiet: bool) -> None:
    """Make a trace of vLLM's files."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        options = _import_options(raw)
        quieten_transformers()
        from dspark_convert.traces.import_vllm import import_vllm as import_trace

        with sink.steps() as on_progress:
            header, notes = import_trace(
                options, on_size=lambda size: _say_size(sink, size), on_progress=on_progress
            )
        sink.findings(notes)
        sink.data(header.model_dump(mode="json"), _trace_view(header, raw.out))


def parse_size(text: str | None) -> int | None:
    """Bytes of ``500MB``, ``2GiB`` or a plain number; K, M, G and T are decimal, Ki, Mi... binary.

    Raises ``UsageError`` (``size-invalid``).
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _usage("size-invalid", "--max-size is a number of bytes", text, "500MB, 2GiB, ...")
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.upper()])


def parse_ids(text: str, option: str) -> tuple[int, ...]:
    """Comma-separated ids; ``UsageError`` (``ids-invalid``) for anything else."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise _usage("ids-invalid", f"{option} is a list of numbers", text, "1,2") from None


def _record_options(raw: RawRecord) -> RecordOptions:
    # Imported here: this is where PyTorch comes in, or is found missing.
    from dspark_convert.runtime import SamplingOptions
    from dspark_convert.runtime.machine import Machine
    from dspark_convert.traces.record import RecordOptions

    if raw.feature_dtype not in _FEATURE_DTYPES:
        known = ", ".join(_FEATURE_DTYPES)
        raise _usage("dtype-unknown", "--feature-dtype is not known", raw.feature_dtype, known)
    return RecordOptions(
        target=raw.target,
        draft=raw.draft,
        output=raw.out,
        prompts=raw.prompts,
        given=raw.given,
        layers="all" if raw.layers == "all" else _optional_ids(raw.layers, "--layers"),
        neighbours=raw.neighbours,
        max_new_tokens=raw.max_new_tokens,
        sampling=SamplingOptions(temperature=raw.temperature, top_k=raw.top_k, top_p=raw.top_p),
        stop_token_ids=_stop_token_ids(raw.stop_token_ids),
        seed=raw.seed,
        batch_size=raw.batch_size,
        machine=Machine(
            device=raw.device, dtype=raw.dtype, trust_remote_code=raw.trust_remote_code
        ),
        feature_dtype=_FEATURE_DTYPES[raw.feature_dtype],
        top_log_probs=raw.top,
        max_bytes=parse_size(raw.max_size),
        overwrite=raw.overwrite,
    )


def _import_options(raw: RawImport) -> ImportOptions:
    import dspark_convert.runtime  # noqa: F401 - finds PyTorch missing, and says so
    from dspark_convert.traces.import_vllm import ImportOptions

    return ImportOptions(
        folder=raw.folder,
        target=raw.target,
        draft=raw.draft,
        output=raw.out,
        text_origin=raw.text_origin,
        layers=parse_ids(raw.layers, "--layers"),
        prompt_length=raw.prompt_length,
        prompt_lengths=raw.prompt_lengths,
        max_new_tokens=raw.max_new_tokens,
        stop_token_ids=_stop_token_ids(raw.stop_token_ids),
        max_bytes=parse_size(raw.max_size),
        overwrite=raw.overwrite,
    )


def _optional_ids(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else parse_ids(text, option)


def _stop_token_ids(text: str | None) -> frozenset[int] | None:
    return None if text is None else frozenset(parse_ids(text, "--stop-token-ids"))


def _say_size(sink: Sink, nbytes: int) -> None:
    sink.note(f"the trace takes at most {nbytes / 1e6:,.1f} MB, twice that while it is made")


def _trace_view(header: TraceHeader, path: Path) -> RenderableType:
    generated = sum(entry.num_tokens - entry.first_generated for entry in header.sequences)
    sampling = header.sampling
    origin = "given" if header.text_origin == "given" else f"temperature {sampling.temperature:g}"
    return facts_grid(
        [
            ("trace", str(path)),
            ("target", f"{header.target.name} ({header.target.dtype})"),
            ("texts", f"{len(header.sequences)}, {generated} tokens after the prompts, {origin}"),
            ("layers", ", ".join(map(str, header.layer_ids))),
        ]
    )


def _usage(code: str, message: str, found: str, expected: str) -> UsageError:
    return UsageError(Finding(code=code, message=message, found=found, expected=expected))
