"""Bootstrap, thresholds, ranking, calibration: against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_convert.checks.lossless import ulp
from dspark_convert.replay.expectation import Floats
from dspark_convert.replay.intervals import (
    Resampler,
    chi_square_tail,
    decide,
    expected_calibration_error,
    prompts_to_decide,
    rank,
    ratio_interval95,
    student_quantile,
)
from tests.conftest import mostly_slow

torch = pytest.importorskip("torch")


def test_interval_of_equal_prompts_has_no_width() -> None:
    assert ratio_interval95(np.full(5, 6.0), np.full(5, 3.0), seed=0) == (2.0, 2.0)


def test_interval_covers_the_pooled_ratio_about_95_times_in_100() -> None:
    random = np.random.default_rng(7)
    covered = 0
    for seed in range(200):
        rounds = random.integers(5, 30, size=40).astype(float)
        committed = random.binomial(rounds.astype(int), 0.5) + rounds
        low, high = ratio_interval95(committed, rounds, seed) or (0.0, 0.0)
        covered += low <= 1.5 <= high
    assert 180 <= covered <= 199


@pytest.mark.parametrize("prompts", [0, 1])
def test_no_interval_below_two_prompts(prompts: int) -> None:
    assert ratio_interval95(np.ones(prompts), np.ones(prompts), seed=0) is None


@pytest.mark.parametrize(
    ("tail", "degrees", "value"),
    [
        (0.025, 1, 12.7062),
        (0.025, 2, 4.3027),
        (0.05, 3, 2.3534),
        (0.025, 7, 2.3646),
        (0.005, 10, 3.1693),
        (0.0005, 15, 4.0728),
        (0.025, 30, 2.0423),
        (0.0005, 120, 3.3735),
        (0.025, 10_000, 1.9602),
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(
    tail: float, degrees: int, value: float
) -> None:
    assert student_quantile(tail, degrees) == pytest.approx(value, abs=1e-4)


def test_prompts_without_rounds_do_not_count() -> None:
    assert ratio_interval95(np.array([2.0, 0.0]), np.array([1.0, 0.0]), seed=0) is None


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((2.0, 3.0), "pass"),
        ((2.1, 3.0), "pass"),
        ((1.0, 1.9), "fail"),
        ((1.9, 2.1), "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_verdict_against_a_threshold_of_two(
    interval: tuple[float, float] | None, verdict: str
) -> None:
    assert decide(interval, 2.0) == verdict


def test_four_times_the_distance_needs_a_sixteenth_of_the_prompts() -> None:
    near = prompts_to_decide(2.1, (1.5, 2.7), 2.0, 10)
    far = prompts_to_decide(2.4, (1.8, 3.0), 2.0, 10)
    assert (near, far) == (360, 23)


@pytest.mark.parametrize(
    ("scores", "positive", "auc"),
    [
        ([0.1, 0.2, 0.8, 0.9], [False, False, True, True], 1.0),
        ([0.9, 0.8, 0.2, 0.1], [False, False, True, True], 0.0),
        ([0.5, 0.5, 0.5, 0.5], [False, True, False, True], 0.5),
        ([0.1, 0.4, 0.35, 0.8], [False, False, True, True], 0.75),
    ],
)
def test_area_under_the_curve(scores: list[float], positive: list[bool], auc: float) -> None:
    ranking = rank(np.array(scores), np.array(positive))
    assert ranking is not None
    assert ranking.auc == pytest.approx(auc)


def test_one_fate_only_cannot_be_ranked() -> None:
    assert rank(np.array([0.1, 0.9]), np.array([True, True])) is None


def test_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    scores = np.array([0.05, 0.05, 0.95, 0.95])
    fates = np.array([False, False, True, False])
    # bin 0: |0.05 - 0| x 2, bin 9: |0.95 - 0.5| x 2, over 4
    assert expected_calibration_error(scores, fates) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("statistic", "degrees", "tail"),
    [(3.841458820694124, 1, 0.05), (30.143527205646155, 19, 0.05), (0.0, 19, 1.0)],
)
def test_chi_square_tail_is_that_of_the_tables(statistic: float, degrees: int, tail: float) -> None:
    assert chi_square_tail(statistic, degrees) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(1.0, "float32", 2.0**-23), (20.0, "bfloat16", 0.125), (-3.0, "float16", 2.0**-9)],
)
def test_ulp(value: float, dtype: str, expected: float) -> None:
    assert ulp(value, getattr(torch, dtype)) == expected


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
