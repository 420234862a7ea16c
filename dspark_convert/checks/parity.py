"""Original against converted draft: bit-equal outputs on random contexts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_convert.checks.base import SOUND_DRAFT, SOURCE, Check
from dspark_convert.conversion.manifest import read_manifest
from dspark_convert.formats.identity import identify_weights
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, read_draft
from dspark_convert.formats.target import TargetWeights
from dspark_convert.schemas.draft import DraftConfig, Layout
from dspark_convert.schemas.numbers import ParityNumbers
from dspark_convert.schemas.report import CheckResult

if TYPE_CHECKING:
    from dspark_convert.checks.context import CheckContext
    from dspark_convert.runtime import DraftModel

EXPANDED_TOLERANCE = 1e-5
"""For outputs in fp32, absolute, and relative above 1: what one more column of the Markov head may
change in the last bits of a sum if the vocabulary was expanded."""


def check_parity(
    original: DraftSource,
    converted: DraftSource,
    load: Callable[..., DraftModel],
    *,
    target: TargetWeights | None,
    seed: int,
) -> CheckResult:
    """The ``parity`` check.

    ``load`` is ``load_source`` with the device and ``target`` given. Missing embeddings and heads
    come from ``target``; without it, from the other draft, or one seeded random tensor serves both.
    If the conversion expanded the vocabulary, outputs are compared in fp32 at the tokens that both
    have, to ``EXPANDED_TOLERANCE``.
    """
    import torch

    from dspark_convert.checks.outputs import CONTEXT_LENGTHS, OUTPUTS, compare_outputs, read_shared

    expanded = _is_expansion(original.config, converted.config)
    shared = read_shared((original, converted), target, seed)
    drafts = [
        load(
            source,
            dtype=torch.float32 if expanded else None,
            stand_ins=shared.stand_ins,
            loaded=shared.loaded,
        )
        for source in (original, converted)
    ]
    tolerance = EXPANDED_TOLERANCE if expanded else 0.0
    different, largest = compare_outputs(drafts[0], drafts[1], seed, tolerance)
    compared = OUTPUTS if drafts[0].confidence_head is not None else OUTPUTS[:-1]
    numbers = ParityNumbers(
        contexts=len(CONTEXT_LENGTHS),
        compared=compared,
        different=different,
        max_abs_difference=largest,
        stand_ins=shared.invented,
    )
    if different:
        size = "in shape" if largest is None else f"by up to {largest:.3g}"
        reason = f"{', '.join(different)} differ {size}"
        return CheckResult(id="parity", verdict="fail", reason=reason, numbers=numbers)
    how = f"equal to {tolerance:g} at the shared tokens" if expanded else "bit-equal"
    reason = f"{len(compared)} outputs {how} on {len(CONTEXT_LENGTHS)} random contexts"
    return CheckResult(id="parity", verdict="pass", reason=reason, numbers=numbers)


def read_original(folder: Path, converted: Path) -> DraftSource:
    """The original, read with the overrides that the manifest of the conversion records.

    Raises:
        CheckpointError, DialectError, DraftError: it cannot be read.
    """
    return read_draft(folder, overrides=recorded_overrides(converted))


def recorded_overrides(converted: Path) -> Overrides:
    """The overrides of the conversion that made a folder; none without a manifest of ours."""
    manifest = read_manifest(converted)
    if manifest is None:
        return NO_OVERRIDES
    fields = dict(manifest.overrides)
    layout, d2t = fields.pop("layout", None), fields.pop("d2t", None)
    return Overrides(fields=fields, layout=Layout(layout) if layout else None, d2t=d2t)


def _check(context: CheckContext) -> CheckResult:
    options = context.options
    assert options.source is not None, "a source was given"
    original = read_original(options.source, options.draft)
    if _is_same_draft(original, context):
        return CheckResult(
            id="parity",
            verdict="inconclusive",
            reason="--source is the draft itself: its config and weights are those of the draft, "
            "so no conversion was compared",
            numbers=None,
        )
    return check_parity(
        original, context.source, context.load, target=context.target_weights, seed=options.seed
    )


def _is_same_draft(original: DraftSource, context: CheckContext) -> bool:
    """Whether the original has the config and the weights of the draft, wherever it lies.

    Weights are read only if the configs are equal, and the folders are not one and the same.
    """
    one, two = original.checkpoint, context.source.checkpoint
    if one.folder.resolve() == two.folder.resolve():
        return True
    if one.config_sha256 != two.config_sha256:
        return False
    return identify_weights(one) == context.draft_weights


def _is_expansion(original: DraftConfig, converted: DraftConfig) -> bool:
    """Whether a reduced vocabulary became the full one of the same target."""
    full = converted.draft_vocab_size == original.vocab_size == converted.vocab_size
    return original.reduced_vocabulary and full


PARITY = Check(
    id="parity",
    title="Does the converted draft compute what the original computes?",
    looks_at="Both drafts propose blocks from the same random contexts; logits and confidence "
    "are compared bit by bit. Tensors that neither stores come from the target, or one seeded "
    "random tensor stands in for both. Needs --source.",
    fails_when="Any output differs in any bit. Inconclusive if --source has the config and the "
    "weights of the draft: a draft compared with itself shows nothing.",
    what_to_do="Convert again; if the outputs still differ, the conversion is wrong: report it.",
    needs=(SOUND_DRAFT, SOURCE),
    run=_check,
)
