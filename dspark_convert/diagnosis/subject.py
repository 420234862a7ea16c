"""What a diagnosis works on: a draft, texts of its target, and whatever else is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dspark_convert.checkpoint.folder import StoredTensor, open_checkpoint
from dspark_convert.checkpoint.names import display_name
from dspark_convert.diagnosis.readings import TargetFacts
from dspark_convert.errors import DraftError, Finding, Findings, PromptError, TraceError
from dspark_convert.formats.overrides import Overrides
from dspark_convert.formats.read import DraftSource, read_checkpoint
from dspark_convert.formats.target import TargetWeights, find_target_weights, validate_pairing
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD, STORED_TABLE
from dspark_convert.runtime.decode import check_prompts
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.dtypes import FLOAT_DTYPES
from dspark_convert.runtime.load import load_source, read_weight
from dspark_convert.runtime.load_target import load_target
from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.records import Progress
from dspark_convert.schemas.diagnosis import HypothesisResult, StaticId
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.generate import TextInput
from dspark_convert.traces.plan import Pair, run_dtype
from dspark_convert.traces.prompts import encode_prompts, read_prompts
from dspark_convert.traces.record import TargetRunOptions, plan_header, run_texts
from dspark_convert.traces.target_head import load_final_norm
from dspark_convert.traces.tokenizer import load_tokenizer
from dspark_convert.traces.trace import Trace, TraceSequence, require_draft, require_target

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
    facts: TargetFacts
    texts: Trace | Sequence[TraceSequence]


@dataclass(frozen=True)
class DiagnosisInput:
    """A draft to diagnose, and what of it can be replayed."""

    name: str
    target: str
    findings: tuple[Finding, ...]
    static: tuple[HypothesisResult, ...]
    """Causes that were found without running anything."""
    replay_input: ReplayInput | None
    """None if there is a static cause, which makes all readings meaningless."""


def diagnosis_input_of_trace(
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
    source, findings = _read(folder)
    outputs = _load_outputs(source)
    recorded, header = trace.header.target, trace.header
    sizes = recorded.model_dump(include={"hidden_size", "num_hidden_layers", "vocab_size"})
    static = _find_static(source, outputs, sizes, recorded.vocab_size)
    replay_input = None
    if not static:
        require_draft(trace, source.config)
        tensors = trace.stand_ins() if weights is None else _load_borrowable(weights)
        draft = load_source(
            source,
            device=device,
            dtype=dtype,
            target=weights,
            stand_ins=trace.lent_to(source.config),
            loaded=_by_place(source, outputs, weights, tensors),
        )
        facts = TargetFacts(header, tensors=tensors)
        if weights is not None:
            tokenizer = _try_tokenizer(weights, machine)
            facts = _gather_facts(header, weights, tensors, tokenizer, machine)
        replay_input = ReplayInput(draft, facts, trace)
    return DiagnosisInput(
        display_name(folder), recorded.name, tuple(findings), static, replay_input
    )


def diagnosis_input_of_target(
    options: TargetRunOptions, *, on_progress: Progress
) -> DiagnosisInput:
    """A draft and a target, which is run over the prompts, neighbouring layers included.

    The texts stay in memory.

    Raises:
        CheckpointError, DialectError, DraftError, PromptError, UsageError: see ``record``.
    """
    device, dtype = options.machine.torch_device(), options.machine.torch_dtype()
    weights = find_target_weights(options.target)
    source, findings = _read(options.draft)
    outputs = _load_outputs(source)
    static = _find_static(source, outputs, weights.config, weights.vocab_size)
    replay_input = None
    if not static:
        tensors = _load_borrowable(weights)
        draft = load_source(
            source,
            device=device,
            dtype=dtype,
            target=weights,
            loaded=_by_place(source, outputs, weights, tensors),
        )
        trust = options.machine.trust_remote_code
        tokenizer = load_tokenizer(options.target, trust_remote_code=trust)
        inputs = _read_inputs(options, tokenizer)
        check_prompts([text.prompt_ids for text in inputs], weights.lm_head.shape[0])
        # What a draft borrows is read from the folder, so the texts need not carry it.
        pair = Pair(source, weights, {})
        header = plan_header(replace(options, layers=None, neighbours=True), pair, inputs)
        texts = _run(options, header, weights, inputs, on_progress)
        # Texts may have ended before the limit that the header was planned with.
        header = header.model_copy(update={"sequences": tuple(text.entry for text in texts)})
        facts = _gather_facts(header, weights, tensors, tokenizer, options.machine)
        replay_input = ReplayInput(draft, facts, texts)
    name, target = display_name(options.draft), display_name(options.target)
    return DiagnosisInput(name, target, tuple(findings), static, replay_input)


def _read(folder: Path) -> tuple[DraftSource, Findings]:
    """Read a draft; a table that may hold offsets is read as offsets, as every engine would."""
    checkpoint = open_checkpoint(folder)
    try:
        return read_checkpoint(checkpoint)
    except DraftError as error:
        if not {finding.code for finding in error.findings} <= _UNDECIDED_TABLE:
            raise
    return read_checkpoint(checkpoint, overrides=Overrides(d2t="offsets"))


def _load_outputs(source: DraftSource) -> dict[str, Tensor]:
    """The tensors that keep their initial values if training does not reach them."""
    return {
        name: read_weight(source.tensors[name], _CPU)
        for name in (LM_HEAD, _MARKOV_OUTPUT)
        if name in source.tensors
    }


def _load_borrowable(weights: TargetWeights) -> dict[str, Tensor]:
    """The target's embedding and output head; one tensor if they are tied."""
    places = {name: weights.supply(name) for name in (EMBEDDING, LM_HEAD)}
    tensors = {place: read_weight(place, _CPU) for place in set(places.values())}
    return {name: tensors[place] for name, place in places.items()}


def _by_place(
    source: DraftSource,
    outputs: Mapping[str, Tensor],
    weights: TargetWeights | None,
    borrowable: Mapping[str, Tensor],
) -> dict[StoredTensor, Tensor]:
    """What was read of draft and target, for ``load_source``."""
    loaded = {source.tensors[name]: tensor for name, tensor in outputs.items()}
    if weights is not None:
        loaded |= {weights.supply(name): tensor for name, tensor in borrowable.items()}
    return loaded


def _find_static(
    source: DraftSource,
    outputs: Mapping[str, Tensor],
    target_config: Mapping[str, object],
    target_rows: int,
) -> tuple[HypothesisResult, ...]:
    """Causes found without a run; raises the errors that only the draft's config explains."""
    found, pairing = [], Findings()
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
    for name, tensor in outputs.items():
        if torch.equal(*torch.aminmax(tensor)):
            reason, fix = f"{name} holds one value everywhere", "save the draft with a trained head"
            found.append(_cause("untrained-head", reason, fix))
    return tuple(found)


def _cause(cause_id: StaticId, reason: str, fix: str) -> HypothesisResult:
    return HypothesisResult(id=cause_id, status="cause", reason=reason, fix=fix)


def _gather_facts(
    header: TraceHeader,
    weights: TargetWeights,
    tensors: Mapping[str, Tensor],
    tokenizer: Any | None,
    machine: Machine,
) -> TargetFacts:
    return TargetFacts(
        header,
        config=weights.config,
        tensors=tensors,
        norm=_final_norm(weights, machine),
        special_token_ids=() if tokenizer is None else _special_token_ids(tokenizer),
    )


def _final_norm(weights: TargetWeights, machine: Machine) -> nn.Module | None:
    try:
        return load_final_norm(weights, torch.float32, trust_remote_code=machine.trust_remote_code)
    except TraceError:
        return None


def _try_tokenizer(weights: TargetWeights, machine: Machine) -> Any | None:
    """A folder that only supplies tensors may have a tokenizer that cannot be read."""
    folder = weights.checkpoint.folder
    try:
        return load_tokenizer(folder, trust_remote_code=machine.trust_remote_code)
    except PromptError:
        return None


def _special_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """Tokens that do not occur in text, and the first row past the tokenizer."""
    named = (tokenizer.mask_token_id, tokenizer.pad_token_id, len(tokenizer))
    ids = (*named, *tokenizer.all_special_ids, *tokenizer.get_added_vocab().values())
    return tuple(token_id for token_id in ids if token_id is not None)


def _read_inputs(options: TargetRunOptions, tokenizer: Any | None) -> list[TextInput]:
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
        dtype=FLOAT_DTYPES[run_dtype(options.machine, weights)],
        trust_remote_code=options.machine.trust_remote_code,
    )
    texts: list[TraceSequence] = []
    for text in run_texts(target, inputs, header, options):
        texts.append(text)
        on_progress("recording", len(texts), len(inputs))
    return texts
