"""The files of vLLM's hidden-state extraction, checked.

There is one safetensors file per request: ``hidden_states`` [T, L, H] and ``token_ids`` int64 [T]
of prompt and response together; T tokens, L layers, H target hidden.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from dspark_convert.checkpoint.dtypes import float_name
from dspark_convert.checkpoint.files import open_regular, read_limited
from dspark_convert.checkpoint.header import read_header
from dspark_convert.checkpoint.jsonfile import parse_json
from dspark_convert.errors import TraceError
from dspark_convert.runtime.sampling import option_out_of_range
from dspark_convert.schemas.base import FloatName
from dspark_convert.schemas.trace import MAX_SEQUENCES
from dspark_convert.traces.file import trace_error
from dspark_convert.traces.generate import cut_response

HIDDEN_STATES, TOKEN_IDS = "hidden_states", "token_ids"

_MAX_LENGTHS_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class ExtractSpec:
    """What the files must hold."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    stop_token_ids: frozenset[int]
    prompt_length_of: Callable[[str], int | None]
    """By file name without its suffix; None if not known."""


@dataclass(frozen=True)
class Extract:
    """One file: checked, its prompt length known, its response cut at a stop token."""

    path: Path
    dtype: FloatName
    prompt_length: int
    response: tuple[int, ...]
    stopped: bool

    @property
    def id(self) -> str:
        """The file name without its suffix: the id of the request."""
        return self.path.stem


def read_extracts(folder: Path, spec: ExtractSpec) -> list[Extract]:
    """Check every file of a folder; only token ids are read.

    Raises:
        CheckpointError: a file is not a safetensors file, or is damaged or truncated.
        UsageError: ``option-out-of-range`` for more files than a trace holds.
        TraceError: ``import-empty``, ``import-still-writing``, ``import-file-invalid``,
            ``import-dtypes-mixed``, ``import-prompt-length-unknown``, ``import-text-too-short``.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise trace_error(
            "import-empty",
            "the folder holds no safetensors file",
            found=str(folder),
            hint="give the shared_storage_path of vLLM's hidden-state connector",
        )
    if len(paths) > MAX_SEQUENCES:
        raise option_out_of_range("files", f"at most {MAX_SEQUENCES} per trace", len(paths))
    extracts = [_read_extract(path, spec) for path in paths]
    if len(dtypes := {extract.dtype for extract in extracts}) > 1:
        raise trace_error(
            "import-dtypes-mixed",
            "the files come from runs in different dtypes",
            found=", ".join(sorted(dtypes)),
            hint="import the files of one run",
        )
    return extracts


def read_prompt_lengths(path: Path) -> dict[str, int]:
    """Prompt lengths by id, from JSON lines ``{"id": ..., "prompt_length": ...}``.

    Raises:
        CheckpointError: ``bad-json``, and those of ``read_limited``.
        TraceError: ``import-prompt-length-unknown``.
    """
    lengths = {}
    text = read_limited(path, limit=_MAX_LENGTHS_BYTES)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        entry = parse_json(line, file=f"{path.name}, line {number}")
        length = entry.get("prompt_length") if isinstance(entry, dict) else None
        if type(length) is not int or length < 1 or "id" not in entry:
            raise trace_error(
                "import-prompt-length-unknown",
                f"line {number} gives no prompt length",
                file=path.name,
                expected='{"id": "file name without .safetensors", "prompt_length": 1 or above}',
                found=line[:80].decode("utf-8", "replace"),
            )
        lengths[str(entry["id"])] = length
    return lengths


def text_too_short(file: str, wanted: str, found: int) -> TraceError:
    """The refusal of a text that ends too early."""
    return trace_error(
        "import-text-too-short",
        "the text ends too early",
        file=file,
        expected=wanted,
        found=f"{found} tokens",
        hint="generate more tokens, leave the file out, or lower --max-new-tokens",
    )


def _read_extract(path: Path, spec: ExtractSpec) -> Extract:
    _require_written(path)
    dtype, total = _check_tensors(path, spec)
    prompt = spec.prompt_length_of(path.stem)
    if prompt is None:
        raise trace_error(
            "import-prompt-length-unknown",
            "nothing says where the response starts in this file",
            file=path.name,
            hint=f'add {{"id": "{path.stem}", "prompt_length": N}} to --prompt-lengths',
        )
    if prompt >= total:
        raise text_too_short(path.name, f"more than the {prompt} tokens of the prompt", total)
    with safe_open(path, framework="pt") as stored:
        ids: Tensor = stored.get_tensor(TOKEN_IDS)
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= spec.vocab_size:
        raise _invalid(path.name, TOKEN_IDS, f"ids 0 .. {spec.vocab_size - 1}", f"{low} .. {high}")
    response = cut_response(ids[prompt:].tolist(), spec.stop_token_ids)
    return Extract(path, dtype, prompt, response, response[-1] in spec.stop_token_ids)


def _require_written(path: Path) -> None:
    """vLLM holds a lock on ``NAME.lock`` while it writes; an abandoned lock file means nothing."""
    lock = path.with_name(f"{path.name}.lock")
    if not os.path.lexists(lock):
        return
    with open_regular(lock) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise trace_error(
                "import-still-writing",
                "vLLM is still writing this file",
                file=path.name,
                hint="wait for the run to end, then import again",
            ) from None


def _check_tensors(path: Path, spec: ExtractSpec) -> tuple[FloatName, int]:
    """The dtype of the features, and T."""
    entries = {entry.name: entry for entry in read_header(path).entries}
    if entries.keys() != {HIDDEN_STATES, TOKEN_IDS}:
        found = ", ".join(sorted(entries)[:5]) or "none"
        raise _invalid(path.name, None, f"the tensors {HIDDEN_STATES} and {TOKEN_IDS}", found)
    states, ids = entries[HIDDEN_STATES], entries[TOKEN_IDS]
    total = states.shape[0] if states.shape else 0
    dtype = float_name(states.dtype)
    if dtype is None or states.shape != (total, spec.num_layers, spec.hidden_size):
        expected = f"a float dtype [T, {spec.num_layers} layers, {spec.hidden_size}]"
        raise _invalid(path.name, HIDDEN_STATES, expected, f"{states.dtype} {list(states.shape)}")
    if (ids.dtype, ids.shape) != ("I64", (total,)) or not total:
        raise _invalid(path.name, TOKEN_IDS, f"I64 [{total}]", f"{ids.dtype} {list(ids.shape)}")
    return dtype, total


def _invalid(file: str, tensor: str | None, expected: str, found: str) -> TraceError:
    return trace_error(
        "import-file-invalid",
        "this is not a file of vLLM's hidden-state extraction for this target and these layers",
        file=file,
        tensor=tensor,
        expected=expected,
        found=found,
        hint="check --target, and that --layers are the ids that vLLM was given",
    )
