"""Bootstrap, thresholds, ranking, calibration: against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_convert.checks.lossless import ulp
from dspark_convert.replay.intervals import (
    chi_square_tail,
    decide,
    expected_calibration_error,
    prompts_to_decide,
    rank,
    ratio_interval95,
    student_quantile,
)

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
