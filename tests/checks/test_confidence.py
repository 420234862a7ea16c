"""The verdict on the confidence head, and the verdict on the whole report."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

import numpy as np
import pytest

from dspark_convert.checks.confidence import (
    MIN_TOKENS,
    check_confidence,
    decide_confidence,
)
from dspark_convert.checks.run import overall
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.runtime.records import DecodeResult, Round
from dspark_convert.schemas.numbers import ConfidenceNumbers
from dspark_convert.schemas.report import CheckResult, Verdict

SURE, UNSURE = 0.9, 0.2


def round_of(accepted: int, *confidence: float, stopped: bool = False) -> Round:
    """A round of as many drafted tokens as there are confidences."""
    proposed = tuple(range(len(confidence)))
    committed = proposed[:accepted] if stopped else (*proposed[:accepted], 99)
    return Round(7, proposed, accepted, committed, confidence)


def check(*rounds: Round, times: int = 1) -> CheckResult:
    return check_confidence([DecodeResult((1,), rounds)] * times, 2, group_prompts(range(times)))


def numbers(result: CheckResult) -> ConfidenceNumbers:
    assert isinstance(result.numbers, ConfidenceNumbers)
    return result.numbers


RIGHT = (round_of(1, SURE, UNSURE), round_of(0, UNSURE, UNSURE))
"""Three tokens with a fate, told apart: the accepted one is thought safer."""
WRONG = (round_of(1, UNSURE, SURE), round_of(0, SURE, SURE))
BLIND = (round_of(1, 0.5, 0.5), round_of(0, 0.5, 0.5))


@pytest.mark.parametrize(
    ("rounds", "verdict", "auc"),
    [(RIGHT, "pass", 1.0), (BLIND, "pass", 0.5), (WRONG, "fail", 0.0)],
)
def test_head_fails_only_when_it_prefers_what_is_rejected(
    rounds: tuple[Round, ...], verdict: Verdict, auc: float
) -> None:
    result = check(*rounds, times=40)
    assert result.verdict == verdict
    assert ("safer than accepted" in result.reason) == (verdict == "fail")
    assert "over 120 tokens" in result.reason
    assert (numbers(result).tokens, numbers(result).accepted) == (120, 40)
    assert numbers(result).auc == auc


@pytest.mark.parametrize(("rounds", "enough"), [(RIGHT, "pass"), (WRONG, "fail")])
def test_too_few_tokens_decide_nothing(rounds: tuple[Round, ...], enough: Verdict) -> None:
    few = check(*rounds, times=(MIN_TOKENS - 1) // 3)
    assert few.verdict == "inconclusive"
    assert few.reason == f"only {MIN_TOKENS - 1} tokens; {MIN_TOKENS} are needed"
    assert check(*rounds, times=(MIN_TOKENS - 1) // 3 + 1).verdict == enough


@pytest.mark.parametrize(
    ("round_", "tokens"),
    [(round_of(2, SURE, SURE), 400), (round_of(0, SURE, SURE), 200), (round_of(0), 0)],
    ids=["all accepted", "all rejected", "nothing drafted"],
)
def test_one_fate_decides_nothing(round_: Round, tokens: int) -> None:
    result = check(round_, times=200)
    assert result.verdict == "inconclusive"
    assert result.reason == f"all of {tokens} tokens had the same outcome"
    assert numbers(result).auc is None


def test_only_tokens_with_a_known_fate_count_each_at_its_position() -> None:
    ended = round_of(1, SURE, 0.0, stopped=True)
    rejected = round_of(0, UNSURE, 0.0)
    at = numbers(check(ended, rejected)).by_position
    assert [(x.position, x.tokens) for x in at] == [(1, 2), (2, 0)]
    assert at[0].mean_confidence == pytest.approx((SURE + UNSURE) / 2)
    assert (at[0].acceptance, at[1].acceptance) == (0.5, None)


@pytest.mark.parametrize(("margin", "verdict"), [(1.9, "pass"), (2.1, "fail")])
def test_two_standard_errors_below_chance_are_forgiven(margin: float, verdict: Verdict) -> None:
    """Two scores, tokens half and half: the AUC is half the mass that is ranked rightly."""
    tokens = 400
    error = ((tokens + 1) / (12 * (tokens / 2) ** 2)) ** 0.5
    right = 0.5 - margin * error
    scores = np.array([SURE, UNSURE, SURE, UNSURE])
    accepted = np.array([1.0, 0.0, 0.0, 1.0])
    weights = np.array([right, right, 1 - right, 1 - right]) * tokens / 2
    result = decide_confidence(
        np.ones(4, dtype=int),
        scores,
        accepted,
        weights,
        1,
        texts=np.zeros(4, dtype=int),
        groups=group_prompts("a"),
    )
    assert numbers(result).auc == pytest.approx(right)
    assert numbers(result).auc_standard_error == pytest.approx(error)
    assert result.verdict == verdict


def test_one_prompt_many_times_is_not_many_tokens() -> None:
    """What 120 tokens of forty prompts decide, those of one prompt forty times do not."""
    results = [DecodeResult((1,), WRONG)] * 40
    assert check_confidence(results, 2, group_prompts(range(40))).verdict == "fail"
    often = check_confidence(results, 2, group_prompts([0] * 40))
    assert often.verdict == "inconclusive"
    assert often.reason == f"only 3 tokens, repetitions left out; {MIN_TOKENS} are needed"
    once, many = numbers(check(*WRONG)), numbers(often)
    assert many.auc_standard_error == pytest.approx(once.auc_standard_error)
    assert (many.tokens, many.auc, many.accepted) == (120, once.auc, 40 * once.accepted)
    assert many.warnings == ("39 of 40 prompts are repetitions, and count once in intervals",)
    assert once.warnings == ()


def test_a_hundred_tokens_three_times_are_enough() -> None:
    few = [DecodeResult((1,), RIGHT)] * 3 * 34
    assert check_confidence(few, 2, group_prompts([*range(34)] * 3)).verdict == "pass"
    few = [DecodeResult((1,), RIGHT)] * 3 * 33
    assert check_confidence(few, 2, group_prompts([*range(33)] * 3)).verdict == "inconclusive"
    exact = [DecodeResult((1,), (round_of(1, SURE), round_of(0, UNSURE)))] * 3 * 50
    assert check_confidence(exact, 2, group_prompts([*range(50)] * 3)).verdict == "pass"


VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ALTOGETHER = {
    "": "inconclusive",
    "skipped": "inconclusive",
    "inconclusive": "inconclusive",
    "inconclusive skipped": "inconclusive",
    "pass": "pass",
    "pass skipped": "pass",
    "inconclusive pass": "inconclusive",
    "inconclusive pass skipped": "inconclusive",
    "fail": "fail",
    "fail skipped": "fail",
    "fail inconclusive": "fail",
    "fail inconclusive skipped": "fail",
    "fail pass": "fail",
    "fail pass skipped": "fail",
    "fail inconclusive pass": "fail",
    "fail inconclusive pass skipped": "fail",
}


def result(verdict: str) -> CheckResult:
    return CheckResult.model_validate(
        {"id": "parity", "verdict": verdict, "reason": "", "numbers": None}
    )


@pytest.mark.parametrize("combination", ALTOGETHER)
def test_verdict_of_all_checks(combination: str) -> None:
    results = [result(verdict) for verdict in combination.split()]
    for order in (results, results[::-1], results * 2):
        assert overall(order) == ALTOGETHER[combination]


def test_every_combination_of_verdicts_has_a_row() -> None:
    possible = (c for size in range(5) for c in combinations(sorted(VERDICTS), size))
    assert {" ".join(chosen) for chosen in possible} == set(ALTOGETHER)
