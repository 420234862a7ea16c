"""Record a trace: run a target once over some prompts, and keep what is needed to judge drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from dspark_convert import __version__
from dspark_convert.errors import Finding, UsageError
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime.decode import check_prompts
from dspark_convert.runtime.dtypes import FLOAT_DTYPES
from dspark_convert.runtime.load_target import load_target
from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.records import Progress, no_progress
from dspark_convert.runtime.sampling import (
    SamplingOptions,
    option_out_of_range,
    require_in_range,
    require_new_tokens,
    require_seed,
    require_token_ids,
)
from dspark_convert.runtime.target import Target
from dspark_convert.schemas.trace import (
    MAX_SEQUENCES,
    TraceHeader,
    TraceSampling,
    TraceSequenceEntry,
)
from dspark_convert.traces.generate import (
    TextInput,
    TextSettings,
    read_texts,
    sample_texts,
)
from dspark_convert.traces.plan import (
    Layers,
    Pair,
    choose_layers,
    choose_stop_token_ids,
    identify_target,
    read_pair,
    require_size,
    run_dtype,
)
from dspark_convert.traces.prompts import encode_given, encode_prompts, read_prompts
from dspark_convert.traces.tokenizer import load_tokenizer
from dspark_convert.traces.trace import TraceSequence
from dspark_convert.traces.writer import staged_trace, trace_nbytes


@dataclass(frozen=True, kw_only=True)
class TargetRunOptions:
    """How a target is run over prompts, and what is kept of it for a draft.

    ``feature_dtype`` None keeps hidden states in the dtype in which the target computes them.
    ``stop_token_ids`` None: the target's own. With ``given`` the prompts file holds responses,
    which the target only reads.

    Raises ``UsageError`` (``option-out-of-range``, ``given-needs-prompts``).
    """

    target: Path
    draft: Path
    prompts: Path | None = None
    given: bool = False
    layers: Layers = None
    neighbours: bool = False
    max_new_tokens: int = 128
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop_token_ids: frozenset[int] | None = None
    seed: int = 0
    batch_size: int = 8
    machine: Machine = field(default_factory=Machine)
    feature_dtype: Literal["float32", "bfloat16"] | None = None
    top_log_probs: int = 256

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require_new_tokens("max_new_tokens", self.max_new_tokens)
        require_in_range("batch_size", self.batch_size, 1)
        require_in_range("top_log_probs", self.top_log_probs, 0)
        require_seed("seed", self.seed)
        require_token_ids("stop_token_ids", self.stop_token_ids)
        if self.given and self.prompts is None:
            raise UsageError(
                Finding(
                    code="given-needs-prompts",
                    message="--given reads responses from a file, but --prompts is missing",
                    hint="give --prompts FILE whose lines hold a prompt and its response",
                )
            )


@dataclass(frozen=True, kw_only=True)
class RecordOptions(TargetRunOptions):
    """All knobs of ``dspark-verify record``: a run of the target, and the file it goes to."""

    output: Path
    max_bytes: int | None = None
    overwrite: bool = False


def record(
    options: RecordOptions,
    *,
    on_size: Callable[[int], None] = lambda nbytes: None,
    on_progress: Progress = no_progress,
) -> TraceHeader:
    """Record a trace for a draft and return its header.

    ``on_size`` is called, before the target is loaded, with the largest size the trace can reach,
    in bytes.

    Raises:
        UsageError: options that make no sense, prompts that the target cannot read.
        CheckpointError, DialectError, DraftError, PromptError: an input cannot be read.
        TraceError: ``trace-too-large``, ``trace-not-finite``, ``target-tensor-unsupported``.
        OutputError: see ``staged_trace``.
    """
    options.machine.check()
    pair = read_pair(options.draft, options.target)
    texts = _read_inputs(options)
    check_prompts([text.prompt_ids for text in texts], pair.vocab_size)
    if options.given:
        check_prompts([text.response_ids for text in texts], pair.vocab_size)
    plan = plan_header(options, pair, texts)
    nbytes = trace_nbytes(plan, pair.borrowed)
    on_size(nbytes)
    require_size(nbytes, options.max_bytes)
    with staged_trace(
        options.output,
        plan,
        pair.borrowed,
        overwrite=options.overwrite,
        protected=(options.target, options.draft),
    ) as writer:
        target = load_target(
            options.target,
            device=options.machine.torch_device(),
            dtype=FLOAT_DTYPES[run_dtype(options.machine, pair.target)],
            trust_remote_code=options.machine.trust_remote_code,
        )
        for sequence in run_texts(target, texts, plan, options):
            writer.add(sequence)
            on_progress("recording", len(writer), len(texts))
    return writer.header


def plan_header(options: TargetRunOptions, pair: Pair, texts: Sequence[TextInput]) -> TraceHeader:
    """The header, with every sequence at its greatest possible length."""
    sampling = options.sampling
    stop = choose_stop_token_ids(options.stop_token_ids, pair.target)
    largest = min(options.top_log_probs, pair.vocab_size)
    generated = options.max_new_tokens + pair.extra_tokens
    dtype = run_dtype(options.machine, pair.target)
    return TraceHeader(
        tool_version=__version__,
        recorded_by="dspark-verify",
        target=identify_target(pair.target, dtype),
        text_origin="given" if options.given else "target",
        sampling=TraceSampling(
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
        ),
        max_new_tokens=options.max_new_tokens,
        extra_tokens=pair.extra_tokens,
        stop_token_ids=tuple(sorted(stop)),
        seed=None if options.given or sampling.greedy else options.seed,
        layer_ids=choose_layers(pair, options.layers, neighbours=options.neighbours),
        feature_dtype=options.feature_dtype or dtype,
        has_log_probs=True,
        has_argmax=True,
        top_log_probs=largest,
        top_temperature=None if not largest else 1.0 if sampling.greedy else sampling.temperature,
        has_embedding=EMBEDDING in pair.borrowed,
        has_lm_head=LM_HEAD in pair.borrowed,
        sequences=tuple(_longest_entry(text, generated) for text in texts),
    )


def run_texts(
    target: Target, texts: Sequence[TextInput], plan: TraceHeader, options: TargetRunOptions
) -> Iterator[TraceSequence]:
    """The sequences that the plan announces, one after another."""
    settings = TextSettings(
        layer_ids=plan.layer_ids,
        max_generated=plan.max_new_tokens + plan.extra_tokens,
        sampling=options.sampling,
        stop_token_ids=frozenset(plan.stop_token_ids),
        top_log_probs=plan.top_log_probs,
        feature_dtype=FLOAT_DTYPES[plan.feature_dtype],
    )
    if plan.text_origin == "given":
        return read_texts(target, texts, settings)
    generator = torch.Generator().manual_seed(options.seed)
    return sample_texts(target, texts, settings, batch_size=options.batch_size, generator=generator)


def _read_inputs(options: TargetRunOptions) -> list[TextInput]:
    tokenizer = load_tokenizer(options.target, trust_remote_code=options.machine.trust_remote_code)
    if options.given:
        assert options.prompts is not None, "the options were checked"
        texts = encode_given(read_prompts(options.prompts), tokenizer)
    else:
        prompts = read_prompts(options.prompts)
        encoded = encode_prompts(prompts, tokenizer)
        texts = [
            TextInput(prompt.id, tuple(ids)) for prompt, ids in zip(prompts, encoded, strict=True)
        ]
    if len(texts) > MAX_SEQUENCES:
        raise option_out_of_range("prompts", f"at most {MAX_SEQUENCES} per trace", len(texts))
    return texts


def _longest_entry(text: TextInput, generated: int) -> TraceSequenceEntry:
    prompt = len(text.prompt_ids)
    length = min(len(text.response_ids), generated) if text.response_ids else generated
    return TraceSequenceEntry(id=text.id, num_tokens=prompt + length, first_generated=prompt)
