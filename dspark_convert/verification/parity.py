"""Original against converted draft: bit-equal outputs on random contexts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.conversion.history import MANIFEST_FILE
from dspark_convert.errors import CheckpointError
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, read_draft
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD, expected_tensors
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import load_draft, read_weight
from dspark_convert.schemas.draft import Layout
from dspark_convert.schemas.plan import ConversionManifest
from dspark_convert.schemas.report import CheckResult, ParityNumbers

CONTEXT_LENGTHS = (1, 7, 32, 96)
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
    random tensor serves both.

    Raises:
        DSparkError: the original cannot be read.
    """
    sources = (
        read_draft(original, overrides=recorded_overrides(converted)),
        read_draft(converted),
    )
    stand_ins, invented = ({}, ()) if target is not None else _stand_ins(sources, seed)
    drafts = [
        load_draft(
            source.folder,
            device=device,
            target=target,
            overrides=source.overrides,
            stand_ins=stand_ins,
        )
        for source in sources
    ]
    different, largest = _compare(drafts[0], drafts[1], device, seed)
    compared = OUTPUTS if drafts[0].confidence_head is not None else OUTPUTS[:-1]
    numbers = ParityNumbers(
        contexts=len(CONTEXT_LENGTHS),
        compared=compared,
        different=different,
        max_abs_difference=largest,
        stand_ins=invented,
    )
    if different:
        reason = f"{', '.join(different)} differ by up to {largest:.3g}"
        return CheckResult(id="parity", verdict="fail", reason=reason, numbers=numbers)
    reason = f"{len(compared)} outputs bit-equal on {len(CONTEXT_LENGTHS)} random contexts"
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


def _compare(
    original: DraftModel, converted: DraftModel, device: torch.device, seed: int
) -> tuple[tuple[str, ...], float]:
    """Outputs that differ on any context, and the largest difference."""
    if original.config.block_size != converted.config.block_size:
        return ("block_size",), float("inf")
    generator = torch.Generator().manual_seed(seed)
    different, largest = dict[str, None](), 0.0
    for length in CONTEXT_LENGTHS:
        features = torch.randn(length, original.config.feature_size, generator=generator)
        anchor = int(torch.randint(original.config.vocab_size, (), generator=generator))
        pairs = zip(
            _outputs(original, features.to(device), anchor).items(),
            _outputs(converted, features.to(device), anchor).values(),
            strict=True,
        )
        for (name, one), other in pairs:
            if one.shape != other.shape:
                different[name], largest = None, float("inf")
            elif not torch.equal(one, other):
                different[name] = None
                largest = max(
                    largest, float((one.float() - other.float()).nan_to_num().abs().max())
                )
    return tuple(different), largest


def _outputs(draft: DraftModel, features: Tensor, anchor: int) -> Mapping[str, Tensor]:
    proposal = draft.propose_block(features, anchor)
    outputs = {name: getattr(proposal, name) for name in OUTPUTS}
    return {name: value for name, value in outputs.items() if value is not None}
