"""What the scores of readings decide: which is better than the declared one beyond chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dspark_convert.schemas.diagnosis import DecisionRule, HypothesisResult
from dspark_convert.schemas.report import Interval
from dspark_convert.verification.acceptance import USELESS_BELOW
from dspark_convert.verification.expectation import Floats
from dspark_convert.verification.hypotheses import Hypothesis, Reading
from dspark_convert.verification.paired import Resampler, Scores

ERROR = 0.01
"""Of naming a wrong reading in one diagnosis; shared by all comparisons (Bonferroni)."""
MIN_OVERLAP_GAIN = 0.005
MIN_ACCEPTED_TOKENS_GAIN = 0.03
"""Gains below these are not worth a new checkpoint, however certain they are."""
MIN_TEXTS = 8
"""The bootstrap cannot be trusted with fewer."""

Status = Literal["cause", "hint", "rejected"]
"""Of a reading that was compared, best first."""


@dataclass(frozen=True)
class Trial:
    """One reading of a hypothesis, to be replayed."""

    hypothesis: Hypothesis
    reading: Reading


def decision_rule(comparisons: int) -> DecisionRule:
    """The rule for this many readings x statistics, 0 where nothing is replayed."""
    return DecisionRule(
        comparisons=comparisons,
        error=ERROR,
        level=1 - ERROR / max(comparisons, 1),
        min_overlap_gain=MIN_OVERLAP_GAIN,
        min_accepted_tokens_gain=MIN_ACCEPTED_TOKENS_GAIN,
        min_texts=MIN_TEXTS,
    )


@dataclass(frozen=True)
class _Difference:
    """One statistic of a reading less that of the declared one, per anchor."""

    mean: float
    interval95: Interval | None
    decision: Interval | None
    least: float

    @property
    def gains(self) -> bool:
        return self._above(self.decision)

    @property
    def hints(self) -> bool:
        return self._above(self.interval95)

    @property
    def may_gain(self) -> bool:
        """Whether a gain that counts is not ruled out; without an interval none can be shown."""
        return self.decision is not None and self.decision[1] >= self.least

    @property
    def loses(self) -> bool:
        return self.decision is not None and self.decision[1] < 0

    def _above(self, interval: Interval | None) -> bool:
        return interval is not None and interval[0] > 0 and self.mean >= self.least


class Judge:
    """Compares readings with the declared one, on the same anchors."""

    def __init__(self, declared: Scores, rule: DecisionRule, seed: int) -> None:
        self.base, self.rule = declared, rule
        self.resampler = Resampler(len(declared.anchors), seed)
        self.enough = len(declared.anchors) >= rule.min_texts

    def declared(self, trial: Trial) -> HypothesisResult:
        """The result of the declared reading itself."""
        return HypothesisResult.model_validate(
            {
                "id": trial.hypothesis.id,
                "status": "declared",
                "reason": trial.hypothesis.looks_like,
                **self._levels(self.base),
            }
        )

    def compare(self, trial: Trial, own: Scores) -> HypothesisResult:
        """The result of another reading, by the rule."""
        both = self._differences(own)
        loses = any(part.loses for part in both)
        gains = any(part.gains for part in both) and not loses
        hints = any(part.hints for part in both) and not loses
        found = gains and self.enough and not drafts_badly(own.accepted_length)
        status: Status = "cause" if found else "hint" if hints else "rejected"
        return self._result(trial, own, status, both)

    def rule_out(self, trial: Trial, own: Scores) -> HypothesisResult | None:
        """The result of a reading that gains nothing that counts; None where it may."""
        both = self._differences(own)
        if any(part.may_gain for part in both):
            return None
        return self._result(trial, own, "rejected", both)

    def _result(
        self, trial: Trial, own: Scores, status: Status, both: tuple[_Difference, _Difference]
    ) -> HypothesisResult:
        overlap, tokens = both
        return HypothesisResult.model_validate(
            {
                "id": trial.hypothesis.id,
                "status": status,
                "reason": trial.hypothesis.looks_like,
                **self._levels(own),
                "difference": None if np.isnan(overlap.mean) else overlap.mean,
                "difference_interval95": overlap.interval95,
                "difference_decision_interval": overlap.decision,
                "accepted_tokens_difference": tokens.mean,
                "accepted_tokens_interval95": tokens.interval95,
                "accepted_tokens_decision_interval": tokens.decision,
                "fix": trial.reading.fix,
            }
        )

    def _differences(self, own: Scores) -> tuple[_Difference, _Difference]:
        """Of overlap and of accepted tokens."""
        base = self.base
        return (
            self._difference(own.overlap - base.overlap, MIN_OVERLAP_GAIN),
            self._difference(own.accepted_tokens - base.accepted_tokens, MIN_ACCEPTED_TOKENS_GAIN),
        )

    def _difference(self, sums: Floats, least: float) -> _Difference:
        anchors = self.base.anchors
        return _Difference(
            mean=float(sums.sum() / max(anchors.sum(), 1.0)),
            interval95=self.resampler.interval(sums, anchors, 0.95),
            decision=self.resampler.interval(sums, anchors, self.rule.level),
            least=least,
        )

    def _levels(self, own: Scores) -> dict[str, object]:
        anchors = max(float(own.anchors.sum()), 1.0)
        known = not np.isnan(own.overlap).any()
        return {
            "anchors": int(own.anchors.sum()),
            "accepted_length": own.accepted_length,
            "interval95": self.resampler.interval(own.committed, own.rounds, 0.95),
            "overlap": float(own.overlap.sum()) / anchors if known else None,
            "overlap_at_most": float(own.overlap_at_most.sum()) / anchors if known else None,
            "accepted_tokens": float(own.accepted_tokens.sum()) / anchors,
        }


def drafts_badly(accepted_length: float | None) -> bool:
    """Whether a draft is of no use; a reading under which it stays so explains nothing."""
    return accepted_length is None or accepted_length < USELESS_BELOW


def best_of_each(results: Sequence[HypothesisResult]) -> list[HypothesisResult]:
    """Of several readings under one id the best; then all by status and gain."""
    best: dict[str, HypothesisResult] = {}
    for result in sorted(results, key=_rank):
        best.setdefault(result.id, result)
    return list(best.values())


def _rank(result: HypothesisResult) -> tuple[int, float]:
    return get_args(Status).index(result.status), -_gain(result)


def _gain(result: HypothesisResult) -> float:
    """Both differences in units of their least gain that counts."""
    overlap, tokens = result.difference or 0.0, result.accepted_tokens_difference or 0.0
    return overlap / MIN_OVERLAP_GAIN + tokens / MIN_ACCEPTED_TOKENS_GAIN
