"""Original against converted draft: bit-equal outputs on random contexts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.errors import CheckpointError
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, read_draft
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD, expected_tensors
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import load_draft, read_weight
from dspark_convert.schemas.draft import DraftConfig, Layout
from dspark_convert.schemas.plan import ConversionManifest
from dspark_convert.schemas.report import CheckResult, ParityNumbers

CONTEXT_LENGTHS = (1, 7, 32, 96)
EXPANDED_TOLERANCE = 1e-5
"""Of outputs in fp32, absolute above 1 relative: what one more column of the Markov head may change
in the last bits of a sum, when the vocabulary was expanded."""

OUTPUTS = ("backbone_hidden", "base_logits", "biased_logits", "target_ids", "confidence_logits")


def check_parity(
    original: Path,
    converted: Path,
    *,
    target: Path | None,
    device: torch.device,
    seed: int,
) -> CheckResult:
    """The ``parity`` check.

    The original is read with the overrides that the manifest of the conversion records. Absent
    embeddings and heads come from ``target``; without it, from the other draft, or one seeded
    random tensor serves both. Where the conversion expanded the vocabulary, outputs are compared
    in fp32 at the tokens that both have, to ``EXPANDED_TOLERANCE``.

    Raises:
        DSparkError: the original cannot be read.
    """
    sources = (
        read_draft(original, overrides=recorded_overrides(converted)),
        read_draft(converted),
    )
    stand_ins, invented = ({}, ()) if target is not None else _stand_ins(sources, seed)
    expanded = _is_expansion(sources[0].config, sources[1].config)
    drafts = [
        load_draft(
            source.folder,
            device=device,
            dtype=torch.float32 if expanded else None,
            target=target,
            overrides=source.overrides,
            stand_ins=stand_ins,
        )
        for source in sources
    ]
    tolerance = EXPANDED_TOLERANCE if expanded else 0.0
    different, largest = _compare(drafts[0], drafts[1], device, seed, tolerance)
    compared = OUTPUTS if drafts[0].confidence_head is not None else OUTPUTS[:-1]
    numbers = ParityNumbers(
        contexts=len(CONTEXT_LENGTHS),
        compared=compared,
        different=different,
        max_abs_difference=largest,
        stand_ins=invented,
    )
    if different:
        size = "in shape" if largest is None else f"by up to {largest:.3g}"
        reason = f"{', '.join(different)} differ {size}"
        return CheckResult(id="parity", verdict="fail", reason=reason, numbers=numbers)
    how = f"equal to {tolerance:g} at the shared tokens" if expanded else "bit-equal"
    reason = f"{len(compared)} outputs {how} on {len(CONTEXT_LENGTHS)} random contexts"
    return CheckResult(id="parity", verdict="pass", reason=reason, numbers=numbers)


def recorded_overrides(converted: Path) -> Overrides:
    """The overrides of the conversion that made a folder; none without a manifest of ours."""
    try:
        manifest = ConversionManifest.model_validate(read_json(converted / MANIFEST_FILE))
    except (CheckpointError, ValidationError):
        return NO_OVERRIDES
    fields = dict(manifest.overrides)
    layout, d2t = fields.pop("layout", None), fields.pop("d2t", None)
    return Overrides(fields=fields, layout=Layout(layout) if layout else None, d2t=d2t)


def _stand_ins(
    sources: tuple[DraftSource, DraftSource], seed: int
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """What either draft lacks: the other's tensor, else a seeded random one (named second)."""
    generator = torch.Generator().manual_seed(seed)
    expected = expected_tensors(sources[0].config)
    stand_ins, invented = {}, []
    for name in (EMBEDDING, LM_HEAD):
        stored = [source.tensors[name] for source in sources if name in source.tensors]
        if len(stored) == 1:
            stand_ins[name] = read_weight(stored[0], torch.device("cpu"))
        elif not stored:
            stand_ins[name] = 0.02 * torch.randn(expected[name].shape, generator=generator)
            invented.append(name)
    return stand_ins, tuple(invented)


def _is_expansion(original: DraftConfig, converted: DraftConfig) -> bool:
    """Whether a reduced vocabulary became the full one of the same target."""
    full = converted.draft_vocab_size == original.vocab_size == converted.vocab_size
    return original.reduced_vocabulary and full


def _compare(
    original: DraftModel,
    converted: DraftModel,
    device: torch.device,
    seed: int,
    tolerance: float,
) -> tuple[tuple[str, ...], float | None]:
    """Outputs that differ on any context, and the largest difference; None: shapes differ."""
    if original.config.block_size != converted.config.block_size:
        return ("block_size",), None
    generator = torch.Generator().manual_seed(seed)
    different, largest, same_shapes = dict[str, None](), 0.0, True
    for length in CONTEXT_LENGTHS:
        features = torch.randn(length, original.config.feature_size, generator=generator)
        anchor = int(torch.randint(original.config.vocab_size, (), generator=generator))
        ours = _outputs(original, features.to(device), anchor)
        theirs = _outputs(converted, features.to(device), anchor)
        for name, one in ours.items():
            other = theirs[name]
            if tolerance and name in ("base_logits", "biased_logits"):
                other = other[:, original.vocabulary.target_ids]
            if one.shape != other.shape:
                different[name], same_shapes = None, False
            elif not _same(one, other, tolerance):
                different[name] = None
                gap = (one.float() - other.float()).nan_to_num().abs().max()
                largest = max(largest, float(gap))
    return tuple(different), largest if same_shapes else None


def _same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if not tolerance or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance)


def _outputs(draft: DraftModel, features: Tensor, anchor: int) -> Mapping[str, Tensor]:
    proposal = draft.propose_block(features, anchor)
    outputs = {name: getattr(proposal, name) for name in OUTPUTS}
    return {name: value for name, value in outputs.items() if value is not None}
