"""Counts and verdicts of acceptance, against rounds written down by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("torch")

from dspark_convert.checks.acceptance import AcceptanceSettings, measure_acceptance
from dspark_convert.replay.intervals import ratio_interval95
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.runtime.records import DecodeResult, Round
from dspark_convert.schemas.numbers import AcceptanceNumbers

N = 3


def make_round(accepted: int, proposed: int = N, *, stopped: bool = False) -> Round:
    committed = tuple(range(accepted if stopped else accepted + 1))
    return Round(
        anchor_position=0,
        proposed_ids=tuple(range(proposed)),
        accepted=accepted,
        committed_ids=committed,
        confidence=None,
    )


def measure(
    *prompts: list[Round],
    length: float | None = None,
    acceptance: tuple[float, ...] = (),
    same: Sequence[int] | None = None,
) -> tuple[str, AcceptanceNumbers]:
    """``same`` says which prompts are the same; without it all differ."""
    settings = AcceptanceSettings(
        num_tokens=N, min_accepted_length=length, min_acceptance=acceptance
    )
    results = [DecodeResult((), tuple(rounds)) for rounds in prompts]
    names = [str(index) for index in range(len(prompts))]
    check = measure_acceptance(
        results, names, settings, groups=group_prompts(same or names), mass_outside=0.25
    )
    assert isinstance(check.numbers, AcceptanceNumbers)
    return check.verdict, check.numbers


def test_counts_of_four_rounds() -> None:
    _, numbers = measure([make_round(3), make_round(1)], [make_round(0), make_round(2)])
    assert numbers.rounds == 4
    assert numbers.committed == 10
    assert (numbers.drafted, numbers.accepted) == (12, 6)
    assert numbers.accepted_length == 2.5
    assert numbers.histogram == (1, 1, 1, 1)
    assert numbers.acceptance_by_position == pytest.approx((3 / 4, 2 / 3, 1 / 2))
    assert numbers.survival_by_position == pytest.approx((3 / 4, 2 / 4, 1 / 4))
    assert numbers.accepted_length_by_num_speculative_tokens == pytest.approx((1.75, 2.25, 2.5))
    assert [prompt.accepted_per_round for prompt in numbers.prompts] == [(3, 1), (0, 2)]


def test_an_early_stop_says_nothing_of_the_token_after_it() -> None:
    _, numbers = measure([make_round(1, stopped=True), make_round(1)])
    assert numbers.acceptance_by_position == (1.0, 0.0, None)
    assert numbers.accepted_length == 1.5


def test_a_short_proposal_says_nothing_of_tokens_that_were_not_proposed() -> None:
    _, numbers = measure([make_round(1, proposed=1), make_round(0, proposed=0)])
    assert numbers.acceptance_by_position == (1.0, None, None)
    assert numbers.survival_by_position == (0.5, 0.0, 0.0)


@pytest.mark.parametrize("prompts", [[], [[]], [[make_round(0, proposed=0)]]])
def test_nothing_drafted_is_inconclusive(prompts: list[list[Round]]) -> None:
    assert measure(*prompts)[0] == "inconclusive"


@pytest.mark.parametrize(
    ("rounds", "length", "verdict"),
    [
        ([make_round(2)] * 5, 3.0, "pass"),
        ([make_round(2)] * 5, 3.1, "fail"),
        ([make_round(0), make_round(3)], 2.5, "inconclusive"),
        ([make_round(0)] * 20 + [make_round(1)], None, "fail"),
        ([make_round(1)] * 5, None, "pass"),
    ],
)
def test_verdict(rounds: list[Round], length: float | None, verdict: str) -> None:
    assert measure(*[[round_] for round_ in rounds], length=length)[0] == verdict


def test_an_undecided_length_says_how_many_prompts_would_do() -> None:
    _, numbers = measure([make_round(0)], [make_round(3)], length=2.6)
    assert numbers.prompts_needed is not None
    assert numbers.prompts_needed > 2


@pytest.mark.parametrize(
    ("thresholds", "verdict"),
    [((1.0, 1.0), "pass"), ((0.5, 0.5, 0.5), "fail"), ((1.0,), "pass")],
)
def test_a_threshold_for_each_position(thresholds: tuple[float, ...], verdict: str) -> None:
    rounds = [[make_round(2)], [make_round(2)], [make_round(2)]]
    assert measure(*rounds, acceptance=thresholds)[0] == verdict


def test_perfect_acceptance_is_suspicious() -> None:
    _, numbers = measure(*[[make_round(3)] * 50] * 5)
    assert len(numbers.warnings) == N
    _, numbers = measure(*[[make_round(3)] * 49 + [make_round(0)]] * 5)
    assert len(numbers.warnings) == N - 1


VARIED = [[make_round(0), make_round(3)], [make_round(2)], [make_round(1), make_round(1)]]


def test_one_prompt_twelve_times_is_one_prompt() -> None:
    once, one = measure(VARIED[0], length=1.1)
    often, twelve = measure(*VARIED[:1] * 12, length=1.1, same=[0] * 12)
    assert (once, often) == ("inconclusive", "inconclusive")
    assert (one.interval95, twelve.interval95) == (None, None)
    assert twelve.acceptance_interval95 == (None,) * N
    assert (one.prompts_needed, twelve.prompts_needed) == (2, 2)
    assert twelve.accepted_length == one.accepted_length
    assert twelve.rounds == 12 * one.rounds
    warning = "11 of 12 prompts are repetitions, and count once in intervals"
    assert (one.warnings, twelve.warnings) == ((), (warning,))
    assert [prompt.same_prompt_as for prompt in twelve.prompts] == [None, *[0] * 11]


def test_repetitions_leave_the_interval_of_the_different_prompts() -> None:
    _, once = measure(*VARIED, length=2.6)
    _, thrice = measure(*VARIED * 3, length=2.6, same=[0, 1, 2] * 3)
    assert thrice.interval95 == once.interval95
    assert thrice.acceptance_interval95 == once.acceptance_interval95
    assert thrice.prompts_needed == once.prompts_needed
    _, padded = measure(*VARIED, *VARIED[:1] * 9, same=[0, 1, 2, *[0] * 9])
    committed, rounds = np.array([50.0, 3.0, 4.0]), np.array([20.0, 1.0, 2.0])
    assert padded.interval95 == ratio_interval95(committed, rounds, 0)


def test_intervals_of_different_prompts_are_those_of_their_rows() -> None:
    _, numbers = measure(*VARIED)
    committed, rounds = np.array([5.0, 3.0, 4.0]), np.array([2.0, 1.0, 2.0])
    assert numbers.interval95 == ratio_interval95(committed, rounds, 0)
    accepted = np.array([1.0, 1.0, 2.0])
    assert numbers.acceptance_interval95[0] == ratio_interval95(accepted, rounds, 0)
    assert numbers.warnings == ()
    assert all(prompt.same_prompt_as is None for prompt in numbers.prompts)


def test_equal_outcomes_of_different_prompts_are_several() -> None:
    verdict, numbers = measure(*[[make_round(2)]] * 5, length=3.0)
    assert (verdict, numbers.interval95) == ("pass", (3.0, 3.0))
