"""How well the confidence head is calibrated, from the rounds of a decode run or a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dspark_convert.checks.acceptance import known_tokens, to_count
from dspark_convert.checks.base import CONFIDENCE_HEAD, DRAFTING, OWN_TEXTS, Check
from dspark_convert.replay.intervals import (
    CALIBRATION_BINS,
    Floats,
    calibration_bin,
    expected_calibration_error,
    rank,
)
from dspark_convert.replay.repetition import PromptGroups
from dspark_convert.schemas.numbers import ConfidenceAtPosition, ConfidenceNumbers, ReliabilityBin
from dspark_convert.schemas.report import CheckResult, Verdict

if TYPE_CHECKING:
    from dspark_convert.runtime import DecodeResult

MIN_TOKENS = 100
_NOISE = 2.0
"""Standard errors by which the AUC may lie below 0.5 by chance."""


def check_confidence(
    results: Sequence[DecodeResult], num_tokens: int, groups: PromptGroups
) -> CheckResult:
    """The ``confidence`` check on a finished run of a draft with a confidence head."""
    texts, positions, scores, outcomes = [], [], [], []
    for text, result in enumerate(results):
        for round_ in result.rounds:
            for index in range(known_tokens(round_)):
                assert round_.confidence is not None, "the draft has a confidence head"
                texts.append(text)
                positions.append(index + 1)
                scores.append(round_.confidence[index])
                outcomes.append(index < round_.accepted)
    return decide_confidence(
        np.array(positions, dtype=int),
        np.array(scores, dtype=float),
        np.array(outcomes, dtype=float),
        np.ones(len(scores)),
        num_tokens,
        texts=np.array(texts, dtype=int),
        groups=groups,
    )


def decide_confidence(
    positions: npt.NDArray[np.int64],
    scores: Floats,
    accepted: Floats,
    weights: Floats,
    num_tokens: int,
    *,
    texts: npt.NDArray[np.int64],
    groups: PromptGroups,
) -> CheckResult:
    """The ``confidence`` check on drafted tokens, one entry per token.

    What chance may do is reckoned as if all texts of a prompt together were one.

    Args:
        positions: k of each token, 1..N.
        scores: the head's probability.
        accepted: whether the token was accepted, or the probability of that.
        weights: how many such tokens are expected; 1 for a decoded one.
        num_tokens: N.
        texts: which text each token belongs to.
        groups: which texts have the same prompt.
    """
    ranking = rank(scores, accepted, weights)
    once = weights / groups.sizes[texts]
    chance = rank(scores, accepted, once)
    error = chance.standard_error if chance else None
    numbers = ConfidenceNumbers(
        tokens=to_count(weights.sum()),
        accepted=to_count((weights * accepted).sum()),
        expected_calibration_error=expected_calibration_error(scores, accepted, weights),
        auc=ranking.auc if ranking else None,
        auc_standard_error=error,
        by_position=tuple(
            _at(position, *(x[positions == position] for x in (scores, accepted, weights)))
            for position in range(1, num_tokens + 1)
        ),
        reliability=_reliability(scores, accepted, weights),
        warnings=groups.warnings,
    )
    # Thirds of a token that are added up may lack a little of the whole.
    enough = round(float(once.sum()), 6) if groups.warnings else float(numbers.tokens)
    verdict, reason = _decide(numbers, enough)
    return CheckResult(id="confidence", verdict=verdict, reason=reason, numbers=numbers)


def _at(position: int, scores: Floats, accepted: Floats, weights: Floats) -> ConfidenceAtPosition:
    return ConfidenceAtPosition(position=position, **_means(scores, accepted, weights))


def _reliability(scores: Floats, accepted: Floats, weights: Floats) -> tuple[ReliabilityBin, ...]:
    bins = calibration_bin(scores)
    return tuple(
        ReliabilityBin(
            low=index / CALIBRATION_BINS,
            high=(index + 1) / CALIBRATION_BINS,
            **_means(*(x[bins == index] for x in (scores, accepted, weights))),
        )
        for index in range(CALIBRATION_BINS)
    )


def _means(scores: Floats, accepted: Floats, weights: Floats) -> dict[str, Any]:
    """The fields that positions and bins share."""
    tokens = weights.sum()
    return {
        "tokens": to_count(tokens),
        "mean_confidence": float((scores * weights).sum() / tokens) if tokens else None,
        "acceptance": float((accepted * weights).sum() / tokens) if tokens else None,
    }


def _decide(numbers: ConfidenceNumbers, tokens: float) -> tuple[Verdict, str]:
    """``tokens`` are those that are left if all texts of a prompt count as one."""
    auc, error = numbers.auc, numbers.auc_standard_error
    if auc is None or error is None:
        return "inconclusive", f"all of {numbers.tokens:g} tokens had the same outcome"
    if tokens < MIN_TOKENS:
        counted = ", repetitions left out" if numbers.warnings else ""
        return "inconclusive", f"only {tokens:.0f} tokens{counted}; {MIN_TOKENS} are needed"
    said = (
        f"AUC {auc:.3f}, calibration error {numbers.expected_calibration_error:.3f} "
        f"over {numbers.tokens:.0f} tokens"
    )
    if auc + _NOISE * error < 0.5:
        return "fail", f"{said}: rejected tokens look safer than accepted ones"
    return "pass", said


CONFIDENCE = Check(
    id="confidence",
    title="Can the confidence head be trusted?",
    looks_at="The head's probability for each drafted token whose outcome is known, against what "
    "happened: expected calibration error over 10 bins, and the area under the ROC curve (0.5: no "
    "better than chance).",
    fails_when="Rejected tokens rank above accepted ones beyond noise. Skipped without a "
    "confidence head.",
    what_to_do="Do not serve with a confidence threshold; check that the head was converted "
    "with its Markov input (confidence_head_with_markov).",
    needs=(*DRAFTING, OWN_TEXTS, CONFIDENCE_HEAD),
    run=lambda context: context.run.check_confidence(),
)
