"""What two drafts compute from the same random contexts, and how far apart the results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.target import TargetWeights
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD, expected_tensors
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import read_weight
from dspark_convert.runtime.propose import propose_block

CONTEXT_LENGTHS = (1, 7, 32, 96)
OUTPUTS = ("backbone_hidden", "base_logits", "biased_logits", "target_ids", "confidence_logits")


def compare_outputs(
    original: DraftModel,
    converted: DraftModel,
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
        ours = _outputs(original, features.to(original.device), anchor)
        theirs = _outputs(converted, features.to(converted.device), anchor)
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
    proposal = propose_block(draft, features, anchor)
    outputs = {name: getattr(proposal, name) for name in OUTPUTS}
    return {name: value for name, value in outputs.items() if value is not None}


@dataclass
class SharedTensors:
    """Embedding and head of two drafts, where one of them lacks it.

    Each is the target's; without a target the other draft's, else a seeded random one.
    """

    stand_ins: dict[str, Tensor] = field(default_factory=dict)
    """Those that stand in for a target's, by canonical name."""
    loaded: dict[StoredTensor, Tensor] = field(default_factory=dict)
    """Those that were read from a file."""
    invented: tuple[str, ...] = ()


def read_shared(
    sources: Sequence[DraftSource], target: TargetWeights | None, seed: int
) -> SharedTensors:
    """What neither draft may read for itself, so that both have the same; it is read once."""
    generator = torch.Generator().manual_seed(seed)
    expected = expected_tensors(sources[0].config)
    shared = SharedTensors()
    for name in (EMBEDDING, LM_HEAD):
        stored = [source.tensors[name] for source in sources if name in source.tensors]
        if len(stored) == len(sources):
            continue
        if target is not None:
            stored = [target.supply(name)]
        for place in stored:
            if place not in shared.loaded:
                shared.loaded[place] = read_weight(place, torch.device("cpu"))
        if target is not None:
            continue
        if stored:
            shared.stand_ins[name] = shared.loaded[stored[0]]
        else:
            shared.stand_ins[name] = 0.02 * torch.randn(expected[name].shape, generator=generator)
            shared.invented += (name,)
    return shared
