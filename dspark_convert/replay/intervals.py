"""Small exact statistics: ratio bootstrap, Student's t, thresholds, calibration, chi-square."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dspark_convert.schemas.numbers import Interval
from dspark_convert.schemas.report import Verdict

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

BOOTSTRAP_RESAMPLES = 4000
DECISION_RESAMPLES = 20_000
"""Enough for the end of a decision interval to rest on several of them."""
CALIBRATION_BINS = 10


def ratio_interval95(numerators: Floats, denominators: Floats, seed: int) -> Interval | None:
    """The percentile bootstrap interval of sum(numerators) / sum(denominators) over prompts.

    Prompts are resampled, since the rounds of one prompt are not independent. Resamples whose
    denominators are all 0 are left out. None if fewer than two prompts have a denominator.
    """
    used = denominators > 0
    if used.sum() < 2:
        return None
    tops, bottoms = numerators[used], denominators[used]
    picks = np.random.default_rng(seed).integers(
        0, len(tops), size=(BOOTSTRAP_RESAMPLES, len(tops))
    )
    ratios = tops[picks].sum(axis=1) / bottoms[picks].sum(axis=1)
    return _percentiles(ratios, [0.025, 0.975])[0]


class Resampler:
    """Intervals of ratios of sums over texts, all from the same resamples: of whole texts.

    So the difference of two readings is that of one set of texts. `ratio_interval95` draws afresh.
    """

    def __init__(self, texts: int, seed: int) -> None:
        shares = np.full(max(texts, 1), 1 / max(texts, 1))
        self.texts = texts
        self._counts = np.random.default_rng(seed).multinomial(texts, shares, DECISION_RESAMPLES)

    def interval(self, numerators: Floats, denominators: Floats, level: float) -> Interval | None:
        """Percentile interval of sum(numerators) / sum(denominators); None below two texts."""
        return self._intervals(numerators, denominators, [level])[0]

    def wide_intervals(
        self, numerators: Floats, denominators: Floats, levels: Sequence[float]
    ) -> list[Interval | None]:
        """``interval`` at each level, widened by the ratio of Student's interval to a normal one.

        The percentile interval of a few texts is too narrow, the more so the higher the level: it
        cannot leave the range of the texts' own values. Texts count by their weight: if one of
        them holds most of the denominator, there is effectively little more than one text.
        """
        if self.texts < 2 or not denominators.any():
            return [None] * len(levels)
        weigh = denominators.sum() ** 2 / (denominators**2).sum()
        value, texts = numerators.sum() / denominators.sum(), max(2, int(weigh + 1e-9))
        wide: list[Interval | None] = []
        for level, narrow in zip(
            levels, self._intervals(numerators, denominators, levels), strict=True
        ):
            if narrow is None:
                wide.append(None)
                continue
            factor = _widening(level, texts)
            low, high = value - factor * (value - narrow[0]), value + factor * (narrow[1] - value)
            wide.append((float(low), float(high)))
        return wide

    def _intervals(
        self, numerators: Floats, denominators: Floats, levels: Sequence[float]
    ) -> list[Interval | None]:
        nothing: list[Interval | None] = [None] * len(levels)
        if self.texts < 2 or np.isnan(numerators).any():
            return nothing
        tops, bottoms = self._counts @ numerators, self._counts @ denominators
        ratios = tops[bottoms > 0] / bottoms[bottoms > 0]
        if not len(ratios):
            return nothing
        ends = [share for level in levels for share in ((1 - level) / 2, (1 + level) / 2)]
        return [*_percentiles(ratios, ends)]


def _percentiles(ratios: Floats, ends: Sequence[float]) -> list[Interval]:
    """The quantiles at ``ends``, two and two: low, high, low, high, ..."""
    found = np.quantile(ratios, ends).tolist()
    return [*zip(found[::2], found[1::2], strict=True)]


def _widening(level: float, texts: int) -> float:
    student = student_quantile((1 - level) / 2, texts - 1)
    # A resample's spread is that of the texts over S, where Student's has S - 1.
    correction = math.sqrt(texts / (texts - 1))
    return correction * student / NormalDist().inv_cdf((1 + level) / 2)


@lru_cache
def student_quantile(tail: float, degrees: int) -> float:
    """The value that a Student variable exceeds with probability ``tail``, from 1e-9 to 0.5."""
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_tail(middle, degrees) > tail else (low, middle)
    return high


def _student_tail(t: float, degrees: int) -> float:
    """Probability that a Student variable exceeds ``t`` >= 0 (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - inside) / 2


def decide(interval: Interval | None, threshold: float) -> Verdict:
    """Pass if the whole interval reaches the threshold, fail if all of it lies below."""
    if interval is None:
        return "inconclusive"
    if interval[0] >= threshold:
        return "pass"
    return "fail" if interval[1] < threshold else "inconclusive"


def prompts_to_decide(value: float, interval: Interval, threshold: float, prompts: int) -> int:
    """Prompts after which an interval that shrinks as sqrt(1/n) would exclude the threshold."""
    distance = max(abs(value - threshold), 1e-3)
    half_width = (interval[1] - interval[0]) / 2
    return max(prompts + 1, math.ceil(prompts * (half_width / distance) ** 2))


@dataclass(frozen=True)
class Ranking:
    """``auc``: probability that a positive scores above a negative, with ties counted half."""

    auc: float
    standard_error: float


def rank(scores: Floats, positive: Floats | Flags, weights: Floats | None = None) -> Ranking | None:
    """The area under the ROC curve (Mann-Whitney U), with its standard error when it is 0.5.

    ``positive`` may be the probability of the outcome, ``weights`` the expected number of cases; a
    case then counts in part as either outcome. None unless both outcomes occur.
    """
    weights = np.ones(len(scores)) if weights is None else weights
    _, group = np.unique(scores, return_inverse=True)
    positives = np.bincount(group, weights=weights * positive)
    negatives = np.bincount(group, weights=weights * (1.0 - positive))
    total, others = float(positives.sum()), float(negatives.sum())
    if not total or not others:
        return None
    wins = float((positives * (negatives.cumsum() - negatives / 2)).sum())
    pairs = total * others
    return Ranking(wins / pairs, math.sqrt((total + others + 1) / (12 * pairs)))


def calibration_bin(scores: Floats) -> npt.NDArray[np.int64]:
    """Which of the bins of equal width each score in [0, 1] falls into, counted from 0."""
    bins: npt.NDArray[np.int64] = np.minimum(
        (scores * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1
    )
    return bins


def expected_calibration_error(
    scores: Floats, positive: Floats | Flags, weights: Floats | None = None
) -> float | None:
    """Mean gap between confidence and frequency over bins of equal width, weighted by count.

    ``positive`` and ``weights`` as in ``rank``.
    """
    weights = np.ones(len(scores)) if weights is None else weights
    if not weights.any():
        return None
    bins = calibration_bin(scores)
    confident = np.bincount(bins, weights=scores * weights, minlength=CALIBRATION_BINS)
    happened = np.bincount(bins, weights=positive * weights, minlength=CALIBRATION_BINS)
    return float(np.abs(confident - happened).sum() / weights.sum())


def chi_square_of_uniform(values: Floats, bins: int) -> float:
    """Pearson's chi-square of values in [0, 1) against the uniform law; bins - 1 degrees."""
    counts, _ = np.histogram(values, bins=bins, range=(0.0, 1.0))
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Probability that a chi-square variable exceeds ``statistic``: Q(degrees/2, statistic/2)."""
    import torch

    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))
