"""Load a draft: validate it, build it without memory, then read each weight straight into place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import DraftError, Findings
from dspark_convert.formats.decoders import DEFAULT_DECODER
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, read_draft_with_notes
from dspark_convert.formats.target import TargetWeights, find_target_weights
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.dtypes import FLOAT_DTYPES

_BORROWED = (EMBEDDING, LM_HEAD)
_CONFIDENCE_BIAS = "confidence_head.proj.bias"
_COMPARED_ROWS = 8192


def load_draft(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    target: Path | str | None = None,
    overrides: Overrides = NO_OVERRIDES,
    stand_ins: Mapping[str, Tensor] | None = None,
) -> DraftModel:
    """Load a draft of any dialect that conversion reads.

    Args:
        path: the folder of the draft.
        device: where the weights are read to.
        dtype: of the weights; None takes that of the config.
        target: the folder of the target model. An embedding or head that the draft does not store
            is read from it; one that the draft stores is kept, and a difference is noted in
            ``findings`` of the result.
        overrides: what the user knows better than the files.
        stand_ins: embedding and head, by canonical name, used where neither draft nor target
            stores them (two drafts can then be compared without their target).

    Raises:
        CheckpointError, DialectError, DraftError: everything that conversion refuses, and
            ``tensor-borrowed-missing``, ``weights-not-finite``, ``target-tensor-shape``,
            ``rope-type-unsupported``,
            ``rope-parameters-invalid``, ``activation-unsupported``.
    """
    source, findings = read_draft_with_notes(Path(path), overrides=overrides)
    weights = None if target is None else find_target_weights(Path(target))
    draft = load_source(source, device=device, dtype=dtype, target=weights, stand_ins=stand_ins)
    draft.findings = (*findings, *draft.findings)
    return draft


def load_source(
    source: DraftSource,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    target: TargetWeights | None = None,
    stand_ins: Mapping[str, Tensor] | None = None,
    loaded: Mapping[StoredTensor, Tensor] | None = None,
) -> DraftModel:
    """Load a draft that has already been read, as ``load_draft`` does.

    Args:
        source: the draft, found valid.
        device: see ``load_draft``, as for ``dtype`` and ``stand_ins``.
        dtype: of the weights.
        target: the target model, already open.
        stand_ins: embedding and head for a draft without them.
        loaded: tensors that the caller has already read, which are not read again.

    Raises:
        CheckpointError, DraftError: see ``load_draft``; what reading refuses is refused before.
            ``decoder-not-runnable``: the draft's body has no layers here.
    """
    findings = Findings()
    _require_runnable(source, findings)
    draft = _build(source)
    shapes = {name: tuple(tensor.shape) for name, tensor in draft.state_dict().items()}
    stand_ins = stand_ins or {}
    stored = _locate(shapes, source, target, stand_ins, findings)
    findings.raise_errors(DraftError)
    dtype, device = dtype or FLOAT_DTYPES[source.config.dtype], torch.device(device)
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        weights[name] = torch.zeros(shape, dtype=dtype, device=device)
        tensor = _find_tensor(name, stored, loaded or {}, stand_ins, device)
        if tensor is not None:
            weights[name].copy_(tensor)
        if not weights[name].isfinite().all():
            _report_not_finite(name, stored, findings)
        if tensor is not None and target is not None and _could_borrow(name, source):
            theirs = target.supply(name)
            if not _equal(tensor, theirs, loaded or {}):
                _report_difference(source.tensors[name], theirs, name, findings)
    findings.raise_errors(DraftError)
    draft.load_state_dict(weights, assign=True)
    draft.to(device)
    draft.findings = tuple(findings)
    return draft


def _require_runnable(source: DraftSource, findings: Findings) -> None:
    """Only one body has layers here; another with the same tensor names would be run as that."""
    if source.config.decoder != DEFAULT_DECODER.name:
        findings.error(
            "decoder-not-runnable",
            "the reference decoder has no layers for this kind of draft",
            file=CONFIG_FILE,
            key="model_type",
            expected=DEFAULT_DECODER.name,
            found=source.config.decoder,
            hint="convert it without verification, and measure it in an engine that serves it",
        )
    findings.raise_errors(DraftError)


def _build(source: DraftSource) -> DraftModel:
    table = None if source.d2t is None else torch.tensor(source.d2t)
    with torch.device("meta"):
        return DraftModel(source.config, table).requires_grad_(False).eval()


def _locate(
    shapes: Mapping[str, tuple[int, ...]],
    source: DraftSource,
    target: TargetWeights | None,
    stand_ins: Mapping[str, Tensor],
    findings: Findings,
) -> dict[str, StoredTensor]:
    """Where each weight is read from. Reading has validated what the draft itself stores."""
    stored = {name: source.tensors[name] for name in shapes if name in source.tensors}
    for name in shapes.keys() - stored.keys():
        if name == _CONFIDENCE_BIAS:
            findings.note("confidence-bias-absent", "no bias is stored; 0 is used", tensor=name)
            continue
        assert name in _BORROWED, f"reading accepted a draft without {name}"
        if target is None and name in stand_ins:
            assert tuple(stand_ins[name].shape) == shapes[name], f"stand-in for {name}"
        elif target is None:
            _report_missing(name, findings)
        elif target.supply(name).shape != shapes[name]:
            _report_misfit(target.supply(name), name, shapes[name], findings)
        else:
            stored[name] = target.supply(name)
    return stored


def _find_tensor(
    name: str,
    stored: Mapping[str, StoredTensor],
    loaded: Mapping[StoredTensor, Tensor],
    stand_ins: Mapping[str, Tensor],
    device: torch.device,
) -> Tensor | None:
    """The tensor as stored, read now unless it was read before; None: zeros."""
    place = stored.get(name)
    if place is None:
        return stand_ins.get(name)
    return loaded[place] if place in loaded else read_weight(place, device)


def _report_not_finite(name: str, stored: Mapping[str, StoredTensor], findings: Findings) -> None:
    findings.error(
        "weights-not-finite",
        "a tensor holds NaN or infinity, or values beyond the dtype that it is loaded in",
        file=stored[name].file if name in stored else None,
        tensor=name,
        hint="training or saving this draft went wrong; publish an earlier checkpoint",
    )


def read_weight(stored: StoredTensor, device: torch.device) -> Tensor:
    """One stored tensor, in its own dtype, read straight to ``device``."""
    with safe_open(stored.path, framework="pt", device=str(device)) as file:
        tensor: Tensor = file.get_tensor(stored.name)
    return tensor


def _could_borrow(name: str, source: DraftSource) -> bool:
    """Whether a draft stores a tensor that others take from the target."""
    own_rows = name == LM_HEAD and source.config.reduced_vocabulary
    return name in _BORROWED and name in source.tensors and not own_rows


def _equal(tensor: Tensor, other: StoredTensor, loaded: Mapping[StoredTensor, Tensor]) -> bool:
    """Whether a stored tensor has the same values, whatever its dtype; it is read in pieces."""
    if tensor.shape != other.shape:
        return False
    if other in loaded:
        return _same_values(tensor, loaded[other])
    with safe_open(other.path, framework="pt", device=str(tensor.device)) as file:
        return _same_values(tensor, file.get_slice(other.name))


def _same_values(one: Tensor, other: Any) -> bool:
    pieces = (slice(start, start + _COMPARED_ROWS) for start in range(0, len(one), _COMPARED_ROWS))
    return all(torch.equal(one[at].float(), other[at].to(one.device).float()) for at in pieces)


def _report_difference(
    own: StoredTensor, theirs: StoredTensor, name: str, findings: Findings
) -> None:
    findings.note(
        "own-tensor-differs",
        "the draft stores its own, and the target's differs; the draft's is used",
        file=own.file,
        tensor=name,
        expected=f"{theirs.name} of {theirs.file} in the target",
        hint="engines disagree about such a draft: vLLM keeps its tensor, SGLang takes "
        "the target's",
    )


def _report_missing(name: str, findings: Findings) -> None:
    findings.error(
        "tensor-borrowed-missing",
        "the draft does not store this tensor; it is the target's, and no target was given",
        tensor=name,
        hint="give the folder of the target model (--target, or --target-weights with a trace)",
    )


def _report_misfit(
    theirs: StoredTensor, name: str, shape: tuple[int, ...], findings: Findings
) -> None:
    findings.error(
        "target-tensor-shape",
        "the draft takes this tensor from its target, and the target's has another shape",
        file=theirs.file,
        tensor=name,
        expected=str(list(shape)),
        found=f"{theirs.name} {list(theirs.shape)}",
        hint="give the target that the draft was trained for",
    )
