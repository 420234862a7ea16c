"""What a trace for a draft must hold, known before anything is run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dspark_convert.checkpoint.dtypes import FLOAT_NAMES, FLOATS, float_name
from dspark_convert.checkpoint.files import MAX_DOCUMENT_BYTES, read_limited
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.checkpoint.names import display_name, repository_of
from dspark_convert.errors import DraftError, Finding, Findings, TraceError, UsageError
from dspark_convert.formats.identity import identify_weights
from dspark_convert.formats.read import DraftSource, read_draft
from dspark_convert.formats.target import TargetWeights, find_target_weights, validate_pairing
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD, expected_tensors
from dspark_convert.runtime.dtypes import float_name_of
from dspark_convert.runtime.machine import Machine
from dspark_convert.schemas.base import FloatName
from dspark_convert.schemas.draft import MAX_LAYERS
from dspark_convert.schemas.trace import TraceTarget
from dspark_convert.traces.file import trace_error

Layers = tuple[int, ...] | Literal["all"] | None
"""Layer ids, all of them, or those of the draft."""


@dataclass(frozen=True)
class Pair:
    """A draft and its target, both seen through their headers only."""

    draft: DraftSource
    target: TargetWeights
    borrowed: Mapping[str, StoredTensor]
    """Tensors of the target that the draft lacks, by canonical name."""

    @property
    def depth(self) -> int:
        """Decoder layers of the target."""
        return int(self.target.config["num_hidden_layers"])

    @property
    def vocab_size(self) -> int:
        """Rows of the target's output head."""
        return self.target.lm_head.shape[0]

    @property
    def extra_tokens(self) -> int:
        """N + 1: what a text needs past the limit, so that its last round is whole."""
        return self.draft.config.num_speculative_tokens + 1


def read_pair(draft: Path, target: Path) -> Pair:
    """Read the headers of a draft and a target, and check that they fit.

    Raises:
        CheckpointError, DialectError, DraftError: an input cannot be read, they do not fit (see
            ``validate_pairing``), or ``target-tensor-shape``.
        TraceError: ``target-tensor-unsupported``.
    """
    source, weights = read_draft(draft), find_target_weights(target)
    findings = Findings()
    validate_pairing(source.config, weights.config, weights.vocab_size, findings)
    findings.raise_errors(DraftError)
    return Pair(source, weights, _find_borrowed(source, weights))


def choose_layers(pair: Pair, layers: Layers, *, neighbours: bool) -> tuple[int, ...]:
    """The layer ids to record, ascending; with ``neighbours`` those one below and above too.

    Raises ``UsageError``: ``layers-unknown``, ``layers-lack-draft``.
    """
    wanted, every = pair.draft.config.target_layer_ids, range(-1, min(pair.depth, MAX_LAYERS))
    chosen = set(every if layers == "all" else layers or wanted)
    if beyond := sorted(chosen - set(every)):
        raise _usage("layers-unknown", "the target does not have these layers", every, beyond)
    if absent := sorted(set(wanted) - chosen):
        raise _usage("layers-lack-draft", "the draft needs more layers", sorted(wanted), absent)
    if neighbours:
        chosen |= {layer_id + step for layer_id in chosen for step in (-1, 1)} & set(every)
    return tuple(sorted(chosen))


def identify_target(weights: TargetWeights, dtype: str) -> TraceTarget:
    """Which model the target is, going by its files."""
    folder = weights.checkpoint.folder
    _, revision = repository_of(folder)
    return TraceTarget(
        name=display_name(folder),
        config_sha256=weights.checkpoint.config_sha256,
        weights=identify_weights(weights.checkpoint),
        revision=revision,
        tokenizer_sha256=_tokenizer_sha256(folder),
        hidden_size=weights.config["hidden_size"],
        vocab_size=weights.lm_head.shape[0],
        num_hidden_layers=weights.config["num_hidden_layers"],
        dtype=dtype,
    )


def stored_dtype(weights: TargetWeights) -> FloatName:
    """The dtype in which transformers loads the target if none is given."""
    config = weights.config
    named = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    return next(
        (name for name in FLOAT_NAMES if name == named),
        float_name(weights.embed_tokens.dtype) or "float32",
    )


def run_dtype(machine: Machine, weights: TargetWeights) -> FloatName:
    """The dtype that the target runs in.

    Raises ``UsageError`` (``dtype-unknown``).
    """
    asked = machine.torch_dtype()
    return stored_dtype(weights) if asked is None else float_name_of(asked)


def choose_stop_token_ids(asked: frozenset[int] | None, weights: TargetWeights) -> frozenset[int]:
    """The ids that end a text: those asked for, else the target's own; possibly none.

    Its own are the end-of-sequence ids of the generation config. Without one they are those of the
    config, or of the text model in it, where transformers finds them too.
    """
    if asked is not None:
        return asked
    path = weights.checkpoint.folder / "generation_config.json"
    configs: Sequence[Any] = (weights.checkpoint.config, weights.config)
    documents = [read_json(path)] if path.exists() else configs
    named = [each.get("eos_token_id") for each in documents if isinstance(each, Mapping)]
    ids = next((each for each in named if each is not None), None)
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(token_id for token_id in listed if type(token_id) is int and token_id >= 0)


def require_size(nbytes: int, limit: int | None) -> None:
    """Raise ``TraceError`` (``trace-too-large``) for a trace above the limit."""
    if limit is not None and nbytes > limit:
        raise trace_error(
            "trace-too-large",
            "the trace could become larger than --max-size",
            expected=f"at most {limit} bytes",
            found=f"up to {nbytes} bytes",
            hint="record fewer prompts, tokens or layers, or bf16 features, or raise --max-size",
        )


def _find_borrowed(source: DraftSource, weights: TargetWeights) -> dict[str, StoredTensor]:
    borrowed = {}
    for name in (EMBEDDING, LM_HEAD):
        if name in source.tensors:
            continue
        theirs = borrowed[name] = weights.supply(name)
        shape = expected_tensors(source.config)[name].shape
        if theirs.dtype not in FLOATS:
            raise _unfit(TraceError, "target-tensor-unsupported", theirs, sorted(FLOATS))
        if theirs.shape != shape:
            raise _unfit(DraftError, "target-tensor-shape", theirs, list(shape))
    return borrowed


def _unfit(
    error_type: type[DraftError | TraceError], code: str, theirs: StoredTensor, wanted: object
) -> DraftError | TraceError:
    return error_type(
        Finding(
            code=code,
            message="the draft takes this tensor from its target, and cannot use the target's",
            file=theirs.file,
            tensor=theirs.name,
            expected=str(wanted),
            found=f"{theirs.dtype} {list(theirs.shape)}",
            hint="give the target that the draft was trained for, in a float dtype",
        )
    )


def _tokenizer_sha256(folder: Path) -> str | None:
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    return hashlib.sha256(read_limited(path, limit=MAX_DOCUMENT_BYTES)).hexdigest()


def _usage(code: str, message: str, wanted: Sequence[int], found: Sequence[int]) -> UsageError:
    expected = f"{wanted[0]} .. {wanted[-1]}" if isinstance(wanted, range) else str(wanted)
    return UsageError(
        Finding(
            code=code,
            message=message,
            key="--layers",
            expected=expected,
            found=str(list(found)),
            hint="-1 is the embedding output, k the output of decoder layer k",
        )
    )
