"""Intervals over texts: what they are, and how often they miss."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_convert.diagnosis.scores import Resampler
from dspark_convert.replay.expectation import Floats
from tests.conftest import mostly_slow


def test_intervals_are_those_of_whole_texts() -> None:
    """For equal anchors it is the interval of a mean, whose ends normal theory gives roughly."""
    values = np.random.default_rng(0).normal(1.0, 2.0, 400)
    low, high = Resampler(400, 0).interval(values, np.ones(400), 0.95)  # type: ignore[misc]
    error = values.std() / 20
    assert abs(low - (values.mean() - 1.96 * error)) < 0.1 * error
    assert abs(high - (values.mean() + 1.96 * error)) < 0.1 * error
    assert Resampler(1, 0).interval(values[:1], np.ones(1), 0.95) is None
    assert Resampler(2, 0).interval(np.array([1.0, np.nan]), np.ones(2), 0.95) is None


@pytest.mark.parametrize("texts", mostly_slow([8, 12, 24], fast=[8]))
def test_wide_intervals_miss_as_often_as_they_say(texts: int) -> None:
    """At 99 % a percentile interval over 8 texts misses the truth in 5 % of cases, not in 1 %."""
    rng, resampler, cases = np.random.default_rng(1), Resampler(texts, 0), 1000
    narrow_misses = wide_misses = 0
    for _ in range(cases):
        values = rng.standard_normal(texts)
        narrow = resampler.interval(values, np.ones(texts), 0.99)
        (wide,) = resampler.wide_intervals(values, np.ones(texts), [0.99])
        assert narrow is not None
        assert wide is not None
        assert wide[0] < narrow[0] < values.mean() < narrow[1] < wide[1]
        narrow_misses += not narrow[0] <= 0 <= narrow[1]
        wide_misses += not wide[0] <= 0 <= wide[1]
    # The count of misses is binomial: 10 expected, 22 or more once in a thousand.
    assert wide_misses < 22
    assert narrow_misses > wide_misses


@pytest.mark.parametrize(
    ("weights", "texts", "quantile"),
    [(np.ones(8), 8, 2.3646), (np.repeat([1000.0, 1.0], [8, 16]), 8, 2.3646)],
    ids=["eight texts", "eight long texts among short ones"],
)
def test_intervals_of_few_texts_are_widened_as_students_are(
    weights: Floats, texts: int, quantile: float
) -> None:
    """2.3646 is the quantile of Student's with 7 degrees of freedom, 1.96 the normal one."""
    values = np.random.default_rng(4).standard_normal(len(weights)) * weights
    resampler = Resampler(len(weights), 0)
    low, high = resampler.interval(values, weights, 0.95)  # type: ignore[misc]
    ((wide_low, wide_high),) = resampler.wide_intervals(values, weights, [0.95])  # type: ignore[misc]
    factor = (texts / (texts - 1)) ** 0.5 * quantile / 1.95996
    assert (wide_high - wide_low) / (high - low) == pytest.approx(factor, rel=1e-4)


def test_wide_intervals_of_many_texts_are_percentile_intervals() -> None:
    values, ones = np.random.default_rng(2).exponential(1.0, 400), np.ones(400)
    resampler = Resampler(400, 0)
    levels = [0.95, 0.9997]
    for level, wide in zip(levels, resampler.wide_intervals(values, ones, levels), strict=True):
        narrow = resampler.interval(values, ones, level)
        assert wide == pytest.approx(narrow, rel=5e-3)


def test_a_constant_has_an_interval_without_a_width() -> None:
    values = np.full(8, 0.25)
    assert Resampler(8, 0).wide_intervals(values, np.ones(8), [0.95]) == [(0.25, 0.25)]


def test_one_text_has_no_interval() -> None:
    assert Resampler(1, 0).wide_intervals(np.ones(1), np.ones(1), [0.9, 0.95]) == [None, None]
