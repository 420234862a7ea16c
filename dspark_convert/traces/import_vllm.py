"""Make a trace from the files of vLLM's hidden-state extraction.

There is one safetensors file per request (``example_hidden_states_connector.py`` in vLLM 0.33.0):
``hidden_states`` [T, L, H] and ``token_ids`` int64 [T] of prompt and response together. Neither the
length of the prompt nor any log p is in the file. vLLM counts layers from the embedding: its id i
is the output of decoder layer i - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import safe_open
from torch import Tensor

from dspark_convert import __version__
from dspark_convert.errors import Finding, UsageError
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime.dtypes import FLOAT_DTYPES
from dspark_convert.runtime.records import Progress, no_progress
from dspark_convert.runtime.sampling import (
    option_out_of_range,
    require_in_range,
    require_new_tokens,
    require_token_ids,
)
from dspark_convert.schemas.trace import TraceHeader, TraceSampling, TraceSequenceEntry
from dspark_convert.traces.file import trace_error
from dspark_convert.traces.plan import (
    Pair,
    choose_layers,
    choose_stop_token_ids,
    identify_target,
    read_pair,
    require_size,
)
from dspark_convert.traces.target_head import TargetHead, load_target_head
from dspark_convert.traces.trace import TraceSequence
from dspark_convert.traces.vllm_files import (
    HIDDEN_STATES,
    TOKEN_IDS,
    Extract,
    ExtractSpec,
    read_extracts,
    read_prompt_lengths,
    text_too_short,
)
from dspark_convert.traces.writer import staged_trace, trace_nbytes

MIN_AGREEMENT = 0.9
"""If a smaller share of its tokens are the target's first choice, a text is not greedy.

Batching and kernels change few choices (ties); sampling at temperature 1 changes far more.
"""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """All knobs of ``dspark-verify import-vllm``.

    ``layers`` are the ids that vLLM was given (``eagle_aux_hidden_state_layer_ids``). The length of
    the prompts comes from ``prompt_lengths``, a file of JSON lines ``{"id": file name without its
    suffix, "prompt_length": P}``, or is ``prompt_length`` for all. ``max_new_tokens`` None: the
    largest that every text is long enough for.

    Raises ``UsageError``: ``option-out-of-range``, ``prompt-length-missing``.
    """

    folder: Path
    target: Path
    draft: Path
    output: Path
    text_origin: Literal["greedy", "given"]
    layers: tuple[int, ...]
    prompt_length: int | None = None
    prompt_lengths: Path | None = None
    max_new_tokens: int | None = None
    stop_token_ids: frozenset[int] | None = None
    max_bytes: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require_in_range("prompt_length", self.prompt_length, 1)
        require_new_tokens("max_new_tokens", self.max_new_tokens)
        require_token_ids("stop_token_ids", self.stop_token_ids)
        if not self.layers:
            raise option_out_of_range("layers", "at least one id", 0)
        if (self.prompt_length is None) == (self.prompt_lengths is None):
            raise UsageError(
                Finding(
                    code="prompt-length-missing",
                    message="vLLM's files do not say where the prompt ends and the response starts",
                    expected="either --prompt-lengths FILE or --prompt-length N",
                )
            )


def import_vllm(
    options: ImportOptions,
    *,
    on_size: Callable[[int], None] = lambda nbytes: None,
    on_progress: Progress = no_progress,
) -> tuple[TraceHeader, tuple[Finding, ...]]:
    """Make the trace; returns its header and notes about it.

    Raises:
        UsageError: options that make no sense.
        CheckpointError, DialectError, DraftError: an input cannot be read.
        TraceError: ``import-empty``, ``import-still-writing``, ``import-file-invalid``,
            ``import-prompt-length-unknown``, ``import-text-too-short``,
            ``import-argmax-missing``, ``import-text-not-greedy``, ``import-dtypes-mixed``,
            ``trace-too-large``, ``trace-not-finite``, ``target-head-unsupported``.
        OutputError: see ``staged_trace``.
    """
    pair = read_pair(options.draft, options.target)
    dense_ids = tuple(sorted({layer_id - 1 for layer_id in options.layers}))
    layer_ids = choose_layers(pair, dense_ids, neighbours=False)
    stop = choose_stop_token_ids(options.stop_token_ids, pair.target)
    extracts = _read_extracts(options, pair, len(layer_ids), stop)
    plan = _plan_header(options, pair, layer_ids, extracts, stop)
    notes = _validate_origin(plan)
    nbytes = trace_nbytes(plan, pair.borrowed)
    on_size(nbytes)
    require_size(nbytes, options.max_bytes)
    with staged_trace(
        options.output,
        plan,
        pair.borrowed,
        overwrite=options.overwrite,
        protected=(options.folder, options.target, options.draft),
    ) as writer:
        agreed = 0
        for sequence in _read_sequences(pair, plan, extracts):
            agreed += _count_agreed(sequence)
            writer.add(sequence)
            on_progress("importing", len(writer), len(extracts))
        if plan.has_argmax and plan.text_origin == "target":
            _require_greedy(agreed, plan)
    return writer.header, notes


def _read_extracts(
    options: ImportOptions, pair: Pair, num_layers: int, stop: frozenset[int]
) -> list[Extract]:
    spec = ExtractSpec(
        num_layers=num_layers,
        hidden_size=int(pair.target.config["hidden_size"]),
        vocab_size=pair.vocab_size,
        stop_token_ids=stop,
        prompt_length_of=_prompt_length_of(options),
    )
    return read_extracts(options.folder, spec)


def _prompt_length_of(options: ImportOptions) -> Callable[[str], int | None]:
    if options.prompt_lengths is None:
        return lambda name: options.prompt_length
    return read_prompt_lengths(options.prompt_lengths).get


def _validate_origin(plan: TraceHeader) -> tuple[Finding, ...]:
    """Check what can be known of the target's choices, which follow only from its last layer."""
    if plan.has_argmax:
        return ()
    hint = "extract the last layer too: its id for vLLM is the number of layers of the target"
    if plan.text_origin == "given":
        raise trace_error(
            "import-argmax-missing",
            "of a given text only agreement with the target's choices may be reported, and the "
            "files do not hold what they follow from",
            hint=hint,
        )
    return (
        Finding(
            code="import-greedy-unchecked",
            message="that the texts are greedy texts of the target is taken on trust",
            severity="note",
            hint=hint,
        ),
    )


def _choose_limit(options: ImportOptions, extracts: Sequence[Extract], extra: int) -> int:
    """The limit G: every greedy text that no stop token ends must go on for ``extra`` past it."""
    if options.text_origin == "given":
        return options.max_new_tokens or max(len(extract.response) for extract in extracts)
    endless = [extract for extract in extracts if not extract.stopped]
    if not endless:
        return options.max_new_tokens or max(len(extract.response) for extract in extracts)
    shortest = min(endless, key=lambda extract: len(extract.response))
    longest_limit = len(shortest.response) - extra
    limit = options.max_new_tokens or longest_limit
    if limit < 1 or limit > longest_limit:
        wanted = f"a stop token, or {max(limit, 1) + extra} tokens after the prompt"
        raise text_too_short(shortest.path.name, wanted, len(shortest.response))
    return limit


def _plan_header(
    options: ImportOptions,
    pair: Pair,
    layer_ids: tuple[int, ...],
    extracts: Sequence[Extract],
    stop: frozenset[int],
) -> TraceHeader:
    dtype = extracts[0].dtype
    limit = _choose_limit(options, extracts, pair.extra_tokens)
    return TraceHeader(
        tool_version=__version__,
        recorded_by="vllm",
        target=identify_target(pair.target, dtype),
        text_origin="target" if options.text_origin == "greedy" else "given",
        sampling=TraceSampling(temperature=0.0, top_k=None, top_p=None),
        max_new_tokens=limit,
        extra_tokens=pair.extra_tokens,
        stop_token_ids=tuple(sorted(stop)),
        seed=None,
        layer_ids=layer_ids,
        feature_dtype=dtype,
        has_log_probs=False,
        has_argmax=layer_ids[-1] == pair.depth - 1,
        top_log_probs=0,
        top_temperature=None,
        has_embedding=EMBEDDING in pair.borrowed,
        has_lm_head=LM_HEAD in pair.borrowed,
        sequences=tuple(_entry(extract, limit + pair.extra_tokens) for extract in extracts),
    )


def _entry(extract: Extract, longest: int) -> TraceSequenceEntry:
    return TraceSequenceEntry(
        id=extract.id,
        num_tokens=extract.prompt_length + min(len(extract.response), longest),
        first_generated=extract.prompt_length,
    )


def _read_sequences(
    pair: Pair, plan: TraceHeader, extracts: Sequence[Extract]
) -> Iterator[TraceSequence]:
    head = None
    if plan.has_argmax:
        head = load_target_head(pair.target, FLOAT_DTYPES[plan.feature_dtype])
    for extract, entry in zip(extracts, plan.sequences, strict=True):
        yield _read_sequence(extract, entry, plan.layer_ids, head)


def _read_sequence(
    extract: Extract,
    entry: TraceSequenceEntry,
    layer_ids: tuple[int, ...],
    head: TargetHead | None,
) -> TraceSequence:
    with safe_open(extract.path, framework="pt") as stored:
        features: Tensor = stored.get_tensor(HIDDEN_STATES)[: entry.num_tokens]
        token_ids: Tensor = stored.get_tensor(TOKEN_IDS)[: entry.num_tokens]
    argmax_ids = top2_gap = None
    if head is not None:
        # A hidden state decides the token after it.
        argmax_ids, top2_gap = head.choose(features[entry.first_generated - 1 : -1, -1])
    return TraceSequence(
        id=entry.id,
        token_ids=token_ids,
        first_generated=entry.first_generated,
        layer_ids=layer_ids,
        features=features,
        argmax_ids=argmax_ids,
        top2_gap=top2_gap,
    )


def _count_agreed(sequence: TraceSequence) -> int:
    if sequence.argmax_ids is None:
        return 0
    generated = sequence.token_ids[sequence.first_generated :]
    return int((sequence.argmax_ids == generated).sum())


def _require_greedy(agreed: int, plan: TraceHeader) -> None:
    total = sum(entry.num_tokens - entry.first_generated for entry in plan.sequences)
    if agreed < MIN_AGREEMENT * total:
        raise trace_error(
            "import-text-not-greedy",
            "the texts are not greedy texts of the target",
            expected=f"at least {MIN_AGREEMENT:.0%} of the tokens are its first choice",
            found=f"{agreed} of {total} tokens",
            hint="generate at temperature 0; check --prompt-lengths and --target; or use "
            "--text-origin given",
        )
