"""Traces: what a target model did on some texts, recorded so that drafts are judged without it.

A trace is a safetensors file. The text ``dspark_trace`` of its metadata is a ``TraceHeader``; each
sequence has tensors ``seq.NNNNN.NAME`` (see `sequence_tensors`), and the rows that a draft borrows
from its target are stored too, under their canonical names. Several files of one run are a set.

Shapes: T tokens of a text, P of its prompt, K largest probabilities, L layers, H target hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dspark_convert.checkpoint.files import is_folder
from dspark_convert.errors import Findings, TraceError
from dspark_convert.formats.identity import identify_weights
from dspark_convert.formats.target import TargetWeights, validate_pairing
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.trace import TraceSequenceEntry
from dspark_convert.traces.consistency import check_consistency
from dspark_convert.traces.file import (
    RECORD_AGAIN,
    TraceFile,
    not_finite,
    open_trace_file,
    sequence_prefix,
    sequence_tensors,
    trace_error,
)

__all__ = [
    "Trace",
    "TraceSequence",
    "open_trace",
    "require_draft",
    "require_layers",
    "require_target",
]


_NUMBERS = ("log_probs", "top_ids", "top_log_probs", "tail_mass", "argmax_ids", "top2_gap")


@dataclass(frozen=True)
class TraceSequence:
    """One text. Entry i of the tensors of length T - P is about position P + i.

    ``log_probs``, and the K largest where the text was sampled, are logarithms of p as rejection
    sampling uses it: after temperature, top-k and top-p. For a greedy text the K largest are those
    at temperature 1 without filters (``TraceHeader.top_temperature``).
    """

    id: str
    token_ids: Tensor
    """int64 [T]: the prompt and everything after it."""
    first_generated: int
    """P, the position of the first token after the prompt."""
    layer_ids: tuple[int, ...]
    features: Tensor
    """[T, L, H]: raw residual streams of ``layer_ids``."""
    log_probs: Tensor | None = None
    """fp32 [T - P]; -inf for a token that the settings rule out (given texts only)."""
    top_ids: Tensor | None = None
    """int32 [T - P, K], most likely first."""
    top_log_probs: Tensor | None = None
    """fp32 [T - P, K]; -inf if fewer than K tokens have a nonzero probability."""
    tail_mass: Tensor | None = None
    """fp32 [T - P]: the probability of all other tokens together."""
    argmax_ids: Tensor | None = None
    """int64 [T - P]."""
    top2_gap: Tensor | None = None
    """fp32 [T - P]: the gap between the two largest raw logits."""
    finite_layers: set[int] = field(default_factory=set, init=False, compare=False, repr=False)
    """Layers whose features were found to be finite."""

    @property
    def entry(self) -> TraceSequenceEntry:
        """What a header says about this text."""
        return TraceSequenceEntry(
            id=self.id, num_tokens=len(self.token_ids), first_generated=self.first_generated
        )

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The first P token ids."""
        return tuple(self.token_ids[: self.first_generated].tolist())

    @property
    def numbers(self) -> dict[str, Tensor | None]:
        """All that the target said of its tokens, by the name of the tensor."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def features_of(self, layer_ids: Sequence[int]) -> list[Tensor]:
        """Features [T, H] of each layer, in the order asked for; views, not copies.

        Raises ``TraceError``: ``trace-layers-missing``; ``trace-not-finite`` for a layer that holds
        NaN or infinity, which a draft must not be blamed for.
        """
        _require_recorded(self.layer_ids, layer_ids)
        views = {each: self.features[:, self.layer_ids.index(each)] for each in layer_ids}
        for layer_id, view in views.items():
            if layer_id not in self.finite_layers:
                if not all(bool(bound.isfinite()) for bound in torch.aminmax(view)):
                    raise not_finite(f"hidden states of layer {layer_id}", self.id, RECORD_AGAIN)
                self.finite_layers.add(layer_id)
        return [views[layer_id] for layer_id in layer_ids]


class Trace:
    """The sequences of one file or of a set, read one at a time and memory-mapped.

    Iterating again reads them again.
    """

    def __init__(self, files: Sequence[TraceFile]) -> None:
        self.files = tuple(files)
        first = files[0].header
        self.header = first.model_copy(
            update={
                "sequences": tuple(entry for file in files for entry in file.header.sequences),
                "has_embedding": any(file.header.has_embedding for file in files),
                "has_lm_head": any(file.header.has_lm_head for file in files),
            }
        )
        self._places = [
            (file, index) for file in files for index in range(len(file.header.sequences))
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[TraceSequence]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> TraceSequence:
        """Read one sequence; its tensors are views of the mapped file.

        Raises:
            TraceError: ``trace-token-unknown``, ``trace-text-incomplete``,
                ``trace-probability-invalid``, ``trace-inconsistent``.
            CheckpointError: ``file-changed``.
        """
        file, number = self._places[index]
        entry = file.header.sequences[number]
        names = sequence_tensors(file.header, entry)
        prefix = sequence_prefix(number)
        with file.mapped() as stored:
            tensors = {name: stored.get_tensor(prefix + name) for name in names}
        sequence = TraceSequence(
            id=entry.id,
            first_generated=entry.first_generated,
            layer_ids=file.header.layer_ids,
            **tensors,
        )
        _check_values(sequence, file, prefix)
        return sequence

    def embedding(self) -> Tensor | None:
        """The target's input embedding [rows, H] as its checkpoint stores it, if recorded."""
        return self._borrowed("has_embedding", EMBEDDING)

    def lm_head(self) -> Tensor | None:
        """The target's output head [rows, H] as its checkpoint stores it, if recorded."""
        return self._borrowed("has_lm_head", LM_HEAD)

    def stand_ins(self) -> dict[str, Tensor]:
        """What a draft may borrow, by canonical name: the ``stand_ins`` of ``load_draft``."""
        tensors = {EMBEDDING: self.embedding(), LM_HEAD: self.lm_head()}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def lent_to(self, draft: DraftConfig) -> dict[str, Tensor]:
        """Of ``stand_ins`` those of the shape that a draft wants; loading names what is missing."""
        rows = {EMBEDDING: draft.vocab_size, LM_HEAD: draft.draft_vocab_size}
        return {
            name: tensor
            for name, tensor in self.stand_ins().items()
            if tensor.shape == (rows[name], draft.hidden_size)
        }

    def _borrowed(self, flag: Literal["has_embedding", "has_lm_head"], name: str) -> Tensor | None:
        for file in self.files:
            if getattr(file.header, flag):
                with file.mapped() as stored:
                    tensor: Tensor = stored.get_tensor(name)
                return tensor
        return None


def open_trace(*paths: Path) -> Trace:
    """Open a trace: a file, several files, or folders of files. No tensor data is read.

    Raises:
        CheckpointError: a file is not a safetensors file, or is damaged or truncated.
        TraceError: ``trace-missing``, ``trace-foreign``, ``trace-header-invalid``,
            ``trace-version-unsupported``, ``trace-tensor-missing``, ``trace-tensor-unexpected``,
            ``trace-tensor-mismatch``, ``trace-set-mixed``.
    """
    files = [open_trace_file(file) for path in paths for file in _files_of(path)]
    if not files:
        raise trace_error(
            "trace-missing", "there is no trace here", found=", ".join(map(str, paths))
        )
    for file in files[1:]:
        _require_one_run(files[0], file)
    return Trace(files)


def require_layers(trace: Trace, layer_ids: Sequence[int]) -> None:
    """Raise ``TraceError`` (``trace-layers-missing``) unless all these layers were recorded."""
    _require_recorded(trace.header.layer_ids, layer_ids)


def require_target(trace: Trace, target: TargetWeights) -> None:
    """Raise ``TraceError`` (``trace-other-target``) unless the trace is of this target.

    Config and weights must be the same: a fine-tune has the config of its base. Traces of versions
    before 0.2 do not name the weights; of those the config is compared.
    """
    checkpoint, recorded = target.checkpoint, trace.header.target
    expected, found = (
        f"config {recorded.config_sha256[:12]}",
        f"config {checkpoint.config_sha256[:12]}",
    )
    if expected == found and recorded.weights is not None:
        expected = f"weights {recorded.weights.sha256[:12]}"
        found = f"weights {identify_weights(checkpoint).sha256[:12]}"
    if expected != found:
        raise trace_error(
            "trace-other-target",
            "the trace was recorded from another target model",
            expected=f"{recorded.name}, {expected}",
            found=found,
            hint="give the target of the trace, or record a trace of this one",
        )


def require_draft(trace: Trace, draft: DraftConfig) -> None:
    """Raise unless the trace has what this draft needs.

    Raises:
        TraceError: ``trace-layers-missing``; ``trace-too-short`` when too few tokens were kept past
            the limit for the draft's last round; the codes of ``validate_pairing`` when the draft
            was made for another target.
    """
    header = trace.header
    findings = Findings()
    sizes = header.target.model_dump(include={"hidden_size", "num_hidden_layers", "vocab_size"})
    validate_pairing(draft, sizes, header.target.vocab_size, findings)
    findings.raise_errors(TraceError)
    require_layers(trace, draft.target_layer_ids)
    if header.text_origin == "target" and header.extra_tokens <= draft.num_speculative_tokens:
        raise trace_error(
            "trace-too-short",
            "the texts end too early for the last round of this draft",
            expected=f"{draft.num_speculative_tokens + 1} tokens past the limit",
            found=f"{header.extra_tokens}",
            hint="record the trace again with --for this draft",
        )


def _files_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors")) if is_folder(path) else [path]


def _check_values(sequence: TraceSequence, file: TraceFile, prefix: str) -> None:
    """Ids index tables, so they must be in range; a sampled text must be complete."""
    header, where = file.header, file.path.name
    for name in ("token_ids", "argmax_ids", "top_ids"):
        ids: Tensor | None = getattr(sequence, name)
        if ids is None:
            continue
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= header.target.vocab_size:
            raise trace_error(
                "trace-token-unknown",
                "a token id lies outside the vocabulary of the target",
                file=where,
                tensor=prefix + name,
                expected=f"0 .. {header.target.vocab_size - 1}",
                found=f"{low} .. {high}",
                hint=RECORD_AGAIN,
            )
    length = len(sequence.token_ids) - sequence.first_generated
    whole = header.max_new_tokens + header.extra_tokens
    stopped = int(sequence.token_ids[-1]) in header.stop_token_ids
    if header.text_origin == "target" and length < whole and not stopped:
        raise trace_error(
            "trace-text-incomplete",
            "a text ends before its limit, without a stop token",
            file=where,
            tensor=f"{prefix}token_ids",
            expected=f"{whole} generated tokens",
            found=str(length),
            hint=RECORD_AGAIN,
        )
    emitted = sequence.token_ids[sequence.first_generated :]
    check_consistency(sequence.numbers, emitted, header, where, prefix)


def _require_one_run(first: TraceFile, other: TraceFile) -> None:
    """Files of a set may differ only in sequences, seed, and the tensors that drafts borrow."""
    differing = {"sequences", "seed", "has_embedding", "has_lm_head", "tool_version"}
    one, two = (file.header.model_dump(exclude=differing) for file in (first, other))
    for key, value in one.items():
        if two[key] != value:
            raise trace_error(
                "trace-set-mixed",
                "the files of a set must come from one target with the same settings",
                file=other.path.name,
                key=key,
                expected=f"{value} as in {first.path.name}",
                found=str(two[key]),
                hint="give files of one recording, or one file at a time",
            )


def _require_recorded(recorded: Sequence[int], wanted: Sequence[int]) -> None:
    if missing := sorted(set(wanted) - set(recorded)):
        raise trace_error(
            "trace-layers-missing",
            "the trace lacks hidden states of layers that the draft reads",
            expected=f"layers {sorted(set(wanted))}",
            found=f"layers {sorted(recorded)}; missing {missing}",
            hint="record again with --for this draft, or with --layers all",
        )
