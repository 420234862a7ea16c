"""What the scores of readings decide: which is better than the declared one beyond chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from dspark_convert.checks.acceptance import USELESS_BELOW
from dspark_convert.diagnosis.readings import Hypothesis, Reading
from dspark_convert.diagnosis.scores import Scores
from dspark_convert.replay.expectation import Floats
from dspark_convert.replay.intervals import Resampler
from dspark_convert.schemas.diagnosis import DecisionRule, HypothesisResult
from dspark_convert.schemas.numbers import Interval

ERROR = 0.01
"""Probability of naming a wrong reading, shared by all comparisons (Bonferroni)."""
MIN_OVERLAP_GAIN = 0.005
MIN_ACCEPTED_TOKENS_GAIN = 0.03
"""Gains below these are not worth a new checkpoint, however certain they are."""
MIN_TEXTS = 8
"""The bootstrap cannot be trusted with fewer texts."""

Status = Literal["cause", "hint", "rejected"]
"""Of a reading after its comparison, best first."""


@dataclass(frozen=True)
class Trial:
    """One reading of a hypothesis, to be replayed."""

    hypothesis: Hypothesis
    reading: Reading


def decision_rule(comparisons: int) -> DecisionRule:
    """The rule for this many readings x statistics; 0 if nothing is replayed."""
    return DecisionRule(
        comparisons=comparisons,
        error=ERROR,
        level=1 - ERROR / max(comparisons, 1),
        min_overlap_gain=MIN_OVERLAP_GAIN,
        min_accepted_tokens_gain=MIN_ACCEPTED_TOKENS_GAIN,
        min_texts=MIN_TEXTS,
    )


@dataclass(frozen=True)
class Difference:
    """The difference in one statistic between two readings, per anchor.

    ``decision`` is the interval at the level of the rule. ``likely`` is the one at the level of a
    single comparison: at most one reading is right, and that one must not be lost.
    """

    mean: float
    interval95: Interval | None
    likely: Interval | None
    decision: Interval | None
    least: float
    """The least gain that counts."""
    differing: int
    """Texts that differ at all."""

    @property
    def gains(self) -> bool:
        """Beyond chance, whatever else was compared."""
        return self._above(self.decision)

    @property
    def hints(self) -> bool:
        """Beyond chance, if this were the only comparison."""
        return self._above(self.interval95)

    @property
    def may_gain(self) -> bool:
        """Whether a gain that counts is possible; a few texts that differ rule nothing out."""
        if 0 < self.differing < MIN_TEXTS:
            return True
        return self.likely is not None and self.likely[1] >= self.least

    @property
    def loses(self) -> bool:
        """Beyond chance, whatever else was compared."""
        return self.decision is not None and self.decision[1] < 0

    def _above(self, interval: Interval | None) -> bool:
        return interval is not None and interval[0] > 0 and self.mean >= self.least


@dataclass(frozen=True)
class Comparison:
    """One reading compared with another, on the same anchors."""

    overlap: Difference
    accepted_tokens: Difference

    @property
    def gains(self) -> bool:
        """By one statistic, without losing by the other."""
        return any(each.gains for each in self._both) and not self._loses

    @property
    def hints(self) -> bool:
        """As ``gains``, but for the 95 % interval."""
        return any(each.hints for each in self._both) and not self._loses

    @property
    def may_gain(self) -> bool:
        """Whether a gain that counts is possible."""
        return any(each.may_gain for each in self._both)

    @property
    def likely_worse(self) -> bool:
        """By one statistic, however little, and not likely better by the other."""
        return _lies_below(each.likely for each in self._both)

    @property
    def worse(self) -> bool:
        """As ``likely_worse``, but whatever else was compared."""
        return _lies_below(each.decision for each in self._both)

    @property
    def _both(self) -> tuple[Difference, Difference]:
        return self.overlap, self.accepted_tokens

    @property
    def _loses(self) -> bool:
        return any(each.loses for each in self._both)


def _lies_below(intervals: Iterable[Interval | None]) -> bool:
    known = [each for each in intervals if each is not None]
    return any(high < 0 for _, high in known) and not any(low > 0 for low, _ in known)


class Judge:
    """Compares readings with the declared one, on the same anchors."""

    def __init__(self, declared: Scores, rule: DecisionRule, seed: int) -> None:
        self.base, self.rule = declared, rule
        self.prompts = len(declared.anchors)
        # A text without an anchor says nothing, and must not be counted.
        self._used = declared.anchors > 0
        self.texts = int(self._used.sum())
        self.resampler = Resampler(self.texts, seed)

    def declared(self, trial: Trial) -> HypothesisResult:
        """The result of the declared reading itself."""
        return self._describe(trial, self.base, "declared")

    def compare(self, own: Scores, base: Scores | None = None) -> Comparison:
        """Compare a reading with the declared one, or with another."""
        base = self.base if base is None else base
        return Comparison(
            self._difference(own.overlap - base.overlap, MIN_OVERLAP_GAIN),
            self._difference(own.accepted_tokens - base.accepted_tokens, MIN_ACCEPTED_TOKENS_GAIN),
        )

    def decide(self, trial: Trial, own: Scores, comparison: Comparison) -> HypothesisResult:
        """The result, by the rule, of a reading that was compared with the declared one."""
        overlap, tokens = comparison.overlap, comparison.accepted_tokens
        enough = self.texts >= self.rule.min_texts
        found = comparison.gains and enough and not drafts_badly(own.accepted_length)
        status: Status = "cause" if found else "hint" if comparison.hints else "rejected"
        return self._describe(
            trial,
            own,
            status,
            difference=None if np.isnan(overlap.mean) else overlap.mean,
            difference_interval95=overlap.interval95,
            difference_decision_interval=overlap.decision,
            accepted_tokens_difference=tokens.mean,
            accepted_tokens_interval95=tokens.interval95,
            accepted_tokens_decision_interval=tokens.decision,
            fix=trial.reading.fix,
        )

    def _difference(self, sums: Floats, least: float) -> Difference:
        anchors, levels = self.base.anchors, (0.95, 1 - ERROR, self.rule.level)
        interval95, likely, decision = self.resampler.wide_intervals(
            sums[self._used], anchors[self._used], levels
        )
        mean = float(sums.sum() / max(anchors.sum(), 1.0))
        return Difference(mean, interval95, likely, decision, least, int(np.count_nonzero(sums)))

    def _describe(
        self, trial: Trial, own: Scores, status: Literal["declared"] | Status, **compared: Any
    ) -> HypothesisResult:
        """The numbers of a reading; ``compared`` are those that compare it with the declared."""
        anchors = max(float(own.anchors.sum()), 1.0)
        known = not np.isnan(own.overlap).any()
        return HypothesisResult(
            id=trial.hypothesis.id,
            status=status,
            reason=trial.hypothesis.looks_like,
            anchors=int(own.anchors.sum()),
            accepted_length=own.accepted_length,
            interval95=self.resampler.interval(
                own.committed[self._used], own.rounds[self._used], 0.95
            ),
            overlap=float(own.overlap.sum()) / anchors if known else None,
            overlap_at_most=float(own.overlap_at_most.sum()) / anchors if known else None,
            accepted_tokens=float(own.accepted_tokens.sum()) / anchors,
            **compared,
        )


def drafts_badly(accepted_length: float | None) -> bool:
    """Whether a draft is useless; a reading under which it stays useless explains nothing."""
    return accepted_length is None or accepted_length < USELESS_BELOW


def best_of_each(results: Sequence[HypothesisResult]) -> list[HypothesisResult]:
    """The best of several readings under one id, and all sorted by status and gain."""
    best: dict[str, HypothesisResult] = {}
    for result in sorted(results, key=_rank):
        best.setdefault(result.id, result)
    return list(best.values())


def _rank(result: HypothesisResult) -> tuple[int, float]:
    return get_args(Status).index(result.status), -total_gain(result)


def total_gain(result: HypothesisResult) -> float:
    """The sum of both differences, each in units of its least gain that counts."""
    overlap, tokens = result.difference or 0.0, result.accepted_tokens_difference or 0.0
    return overlap / MIN_OVERLAP_GAIN + tokens / MIN_ACCEPTED_TOKENS_GAIN
