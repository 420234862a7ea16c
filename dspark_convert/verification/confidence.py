"""How far the confidence head can be believed, from the rounds of a decode run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark_convert.runtime.records import DecodeResult
from dspark_convert.schemas.report import (
    CheckResult,
    ConfidenceAtPosition,
    ConfidenceNumbers,
    Verdict,
)
from dspark_convert.verification.acceptance import known_tokens
from dspark_convert.verification.statistics import Ranking, expected_calibration_error, rank

MIN_TOKENS = 100
_NOISE = 2.0
"""Standard errors that the AUC may lie below 0.5 by chance."""


def check_confidence(results: Sequence[DecodeResult], num_tokens: int) -> CheckResult:
    """The ``confidence`` check of a finished run with a confidence head."""
    positions, scores, outcomes = [], [], []
    for result in results:
        for round_ in result.rounds:
            for index in range(known_tokens(round_)):
                assert round_.confidence is not None, "the draft has a confidence head"
                positions.append(index + 1)
                scores.append(round_.confidence[index])
                outcomes.append(index < round_.accepted)
    where, score = np.array(positions, dtype=int), np.array(scores, dtype=float)
    accepted = np.array(outcomes, dtype=bool)
    ranking = rank(score, accepted)
    numbers = ConfidenceNumbers(
        tokens=len(score),
        accepted=int(accepted.sum()),
        expected_calibration_error=expected_calibration_error(score, accepted),
        auc=ranking.auc if ranking else None,
        auc_standard_error=ranking.standard_error if ranking else None,
        by_position=tuple(
            _at(position, score[where == position], accepted[where == position])
            for position in range(1, num_tokens + 1)
        ),
    )
    verdict, reason = _judge(numbers, ranking)
    return CheckResult(id="confidence", verdict=verdict, reason=reason, numbers=numbers)


def _at(
    position: int,
    score: np.ndarray[tuple[int], np.dtype[np.float64]],
    accepted: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> ConfidenceAtPosition:
    return ConfidenceAtPosition(
        position=position,
        tokens=len(score),
        mean_confidence=float(score.mean()) if len(score) else None,
        acceptance=float(accepted.mean()) if len(score) else None,
    )


def _judge(numbers: ConfidenceNumbers, ranking: Ranking | None) -> tuple[Verdict, str]:
    if ranking is None:
        return "inconclusive", f"all of {numbers.tokens} tokens had the same fate"
    if numbers.tokens < MIN_TOKENS:
        return "inconclusive", f"only {numbers.tokens} tokens; {MIN_TOKENS} are needed"
    said = (
        f"AUC {ranking.auc:.3f}, calibration error {numbers.expected_calibration_error:.3f} "
        f"over {numbers.tokens} tokens"
    )
    if ranking.auc + _NOISE * ranking.standard_error < 0.5:
        return "fail", f"{said}: rejected tokens look safer than accepted ones"
    return "pass", said
