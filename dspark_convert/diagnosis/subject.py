"""What a diagnosis works on: a draft, texts of its target, and whatever else is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dspark_convert.checkpoint.names import display_name
from dspark_convert.diagnosis.hypotheses import TargetFacts
from dspark_convert.errors import DraftError, Finding, Findings, PromptError, TraceError
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, examine, read_draft_with_notes
from dspark_convert.formats.target import TargetWeights, find_target_weights, validate_pairing
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD, STORED_TABLE
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import load_draft, read_weight
from dspark_convert.runtime.load_target import load_target
from dspark_convert.runtime.machine import Machine
from dspark_convert.schemas.diagnosis import HypothesisResult, StaticId
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.generate import TextInput, require_known
from dspark_convert.traces.plan import DTYPES, Pair, run_dtype
from dspark_convert.traces.prompts import encode_prompts, read_prompts
from dspark_convert.traces.record import TargetRunOptions, plan_header, run_texts
from dspark_convert.traces.target_head import load_target_head
from dspark_convert.traces.tokenizer import load_tokenizer
from dspark_convert.traces.trace import Trace, TraceSequence, require_draft, require_target

Progress = Callable[[str, int, int], None]

_UNDECIDED_TABLE = {"d2t-ambiguous", "d2t-all-zero"}
"""Reading refuses these, but a diagnosis can look into them: the table is usable as offsets."""
_ANOTHER_TARGET = {
    "target-hidden-size-mismatch",
    "target-depth-mismatch",
    "target-vocabulary-mismatch",
}
_MARKOV_OUTPUT = "markov_head.markov_w2.weight"
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ReplayInput:
    """What can be replayed.

    ``texts`` are those of the header. They can be iterated more than once: a trace reads its files
    again each time.
    """

    draft: DraftModel
    around: TargetFacts
    texts: Trace | Sequence[TraceSequence]


@dataclass(frozen=True)
class DiagnosisInput:
    """A draft under suspicion."""

    name: str
    target: str
    findings: tuple[Finding, ...]
    static: tuple[HypothesisResult, ...]
    """Causes that were found without running anything."""
    subject: ReplayInput | None
    """None if there is a static cause, which makes all readings meaningless."""


def suspect_of_trace(
    folder: Path,
    trace: Trace,
    *,
    target: Path | None = None,
    machine: Machine | None = None,
) -> DiagnosisInput:
    """A draft and a recorded trace; ``target`` is a folder to read single tensors from.

    Code of that folder runs only if ``machine`` allows it: to find the norm and the tokenizer.

    Raises:
        CheckpointError, DialectError, DraftError: the draft cannot be read (see ``load_draft``).
        TraceError: the trace does not serve the draft (see ``require_draft``), or is of another
            target than the folder.
    """
    machine = machine or Machine()
    device, dtype = machine.torch_device(), machine.torch_dtype()
    weights = None if target is None else find_target_weights(target)
    if weights is not None:
        require_target(trace, weights)
    file = _read(folder)
    recorded, header = trace.header.target, trace.header
    sizes = recorded.model_dump(include={"hidden_size", "num_hidden_layers", "vocab_size"})
    static = _static(file, sizes, recorded.vocab_size)
    subject = None
    if not static:
        require_draft(trace, file.source.config)
        stand_ins = trace.stand_ins()
        draft = load_draft(
            folder,
            device=device,
            dtype=dtype,
            target=target,
            overrides=file.overrides,
            stand_ins=_fitting(stand_ins, file.source),
        )
        around = _surroundings(header, weights, stand_ins, machine.trust_remote_code)
        subject = ReplayInput(draft, around, trace)
    return DiagnosisInput(
        display_name(folder), recorded.name, tuple(file.findings), static, subject
    )


def suspect_of_target(options: TargetRunOptions, *, on_progress: Progress) -> DiagnosisInput:
    """A draft and a target, which is run over the prompts, neighbouring layers included.

    The texts stay in memory.

    Raises:
        CheckpointError, DialectError, DraftError, PromptError, UsageError: see ``record``.
    """
    device, dtype = options.machine.torch_device(), options.machine.torch_dtype()
    weights = find_target_weights(options.target)
    file = _read(options.draft)
    static = _static(file, weights.config, weights.vocab_size)
    subject = None
    if not static:
        draft = load_draft(
            options.draft,
            device=device,
            dtype=dtype,
            target=options.target,
            overrides=file.overrides,
        )
        inputs = _read_inputs(options)
        require_known([text.prompt_ids for text in inputs], weights.lm_head.shape[0])
        # What a draft borrows is read from the folder, so the texts need not carry it.
        pair = Pair(file.source, weights, {})
        header = plan_header(replace(options, layers=None, neighbours=True), pair, inputs)
        texts = _run(options, header, weights, inputs, on_progress)
        # Texts may have ended before the limit that the header was planned with.
        header = header.model_copy(update={"sequences": tuple(text.entry for text in texts)})
        around = _surroundings(header, weights, {}, options.machine.trust_remote_code)
        subject = ReplayInput(draft, around, texts)
    name, target = display_name(options.draft), display_name(options.target)
    return DiagnosisInput(name, target, tuple(file.findings), static, subject)


@dataclass(frozen=True)
class _File:
    source: DraftSource
    findings: Findings
    overrides: Overrides


def _read(folder: Path) -> _File:
    """Read a draft; a table that may hold offsets is read as offsets, as every engine would."""
    errors = {finding.code for finding in examine(folder).findings.of("error")}
    overrides = Overrides(d2t="offsets") if errors and errors <= _UNDECIDED_TABLE else NO_OVERRIDES
    source, findings = read_draft_with_notes(folder, overrides=overrides)
    return _File(source, findings, overrides)


def _static(
    file: _File, target_config: Mapping[str, object], target_rows: int
) -> tuple[HypothesisResult, ...]:
    """Causes found without a run; raises the errors that only the draft's config explains."""
    source, found, pairing = file.source, [], Findings()
    validate_pairing(source.config, target_config, target_rows, pairing)
    mismatch = [finding for finding in pairing if finding.code in _ANOTHER_TARGET]
    if mismatch:
        fix = "give the target that the draft was trained for"
        found.append(_cause("other-target", "; ".join(map(str, mismatch)), fix))
    else:
        pairing.raise_errors(DraftError)
    if source.d2t is not None and len(source.d2t) > 1 and not source.d2t.any():
        reason = f"every entry of {STORED_TABLE} is 0: the first draft ids are the first target ids"
        found.append(_cause("d2t-zero", reason, "save the draft again with its vocabulary table"))
    for name in (LM_HEAD, _MARKOV_OUTPUT):
        stored = source.tensors.get(name)
        if stored is not None and torch.equal(*torch.aminmax(read_weight(stored, _CPU))):
            reason, fix = f"{name} holds one value everywhere", "save the draft with a trained head"
            found.append(_cause("untrained-head", reason, fix))
    return tuple(found)


def _cause(cause_id: StaticId, reason: str, fix: str) -> HypothesisResult:
    return HypothesisResult(id=cause_id, status="cause", reason=reason, fix=fix)


def _surroundings(
    header: TraceHeader, weights: TargetWeights | None, recorded: Mapping[str, Tensor], trust: bool
) -> TargetFacts:
    if weights is None:
        return TargetFacts(header, tensors=recorded)
    return TargetFacts(
        header,
        config=weights.config,
        tensors={name: read_weight(weights.supply(name), _CPU) for name in (EMBEDDING, LM_HEAD)},
        norm=_final_norm(weights, trust),
        special_token_ids=_special_token_ids(weights, trust),
    )


def _final_norm(weights: TargetWeights, trust: bool) -> nn.Module | None:
    try:
        return load_target_head(weights, torch.float32, trust_remote_code=trust).norm
    except TraceError:
        return None


def _special_token_ids(weights: TargetWeights, trust: bool) -> tuple[int, ...]:
    """Tokens that do not occur in text, and the first row past the tokenizer."""
    try:
        tokenizer = load_tokenizer(weights.checkpoint.folder, trust_remote_code=trust)
    except PromptError:
        tokenizer = None
    if tokenizer is None:
        return ()
    named = (tokenizer.mask_token_id, tokenizer.pad_token_id, len(tokenizer))
    ids = (*named, *tokenizer.all_special_ids, *tokenizer.get_added_vocab().values())
    return tuple(token_id for token_id in ids if token_id is not None)


def _fitting(stand_ins: Mapping[str, Tensor], source: DraftSource) -> dict[str, Tensor]:
    """Recorded rows of the shape that the draft wants; loading says what is missing."""
    config = source.config
    rows = {EMBEDDING: config.vocab_size, LM_HEAD: config.draft_vocab_size}
    return {
        name: tensor
        for name, tensor in stand_ins.items()
        if tensor.shape == (rows[name], config.hidden_size)
    }


def _read_inputs(options: TargetRunOptions) -> list[TextInput]:
    tokenizer = load_tokenizer(options.target, trust_remote_code=options.machine.trust_remote_code)
    prompts = read_prompts(options.prompts)
    encoded = encode_prompts(prompts, tokenizer)
    return [TextInput(prompt.id, tuple(ids)) for prompt, ids in zip(prompts, encoded, strict=True)]


def _run(
    options: TargetRunOptions,
    header: TraceHeader,
    weights: TargetWeights,
    inputs: list[TextInput],
    on_progress: Progress,
) -> list[TraceSequence]:
    target = load_target(
        options.target,
        device=options.machine.torch_device(),
        dtype=DTYPES[run_dtype(options.machine, weights)],
        trust_remote_code=options.machine.trust_remote_code,
    )
    texts: list[TraceSequence] = []
    for text in run_texts(target, inputs, header, options):
        texts.append(text)
        on_progress("recording", len(texts), len(inputs))
    return texts
