"""Comparison of two reports: the drop and its standard error by hand, and every verdict."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.reports.compare import DropLimits, compare_reports, measure_drop
from dspark_convert.schemas.report import VerifyReport
from tests.reports.documents import acceptance, report

PASSED = {"parity": "pass", "lossless-greedy": "pass", "acceptance": "pass"}
NO_LIMIT = DropLimits(absolute=None, standard_errors=None)

Rounds = tuple[tuple[int, ...], ...]


def drafted(*rounds: tuple[int, ...], **changes: Any) -> VerifyReport:
    """A report whose prompts had these accepted tokens, all checks passed."""
    total = sum(map(len, rounds))
    length = (sum(map(sum, rounds)) + total) / total
    numbers = {"acceptance": acceptance(length, rounds), **changes.pop("numbers", {})}
    changes.setdefault("verdicts", PASSED)
    return report(verdict="pass", numbers=numbers, **changes)


def verdicts(base: VerifyReport, new: VerifyReport, limits: DropLimits) -> dict[str, str]:
    return {rule.rule: rule.verdict for rule in compare_reports(base, new, limits).rules}


def test_drop_and_its_standard_error_are_those_computed_by_hand() -> None:
    # Base: 4 + 2 tokens in 2 + 1 rounds, R = 2; u = ((4 - 2*2)/1.5, (2 - 2)/1.5) = (0, 0).
    # New: 3 + 1 tokens in 2 + 1 rounds, R = 4/3; u = ((3 - 8/3)/1.5, (1 - 4/3)/1.5) = (2/9, -2/9).
    # Differences (2/9, -2/9): standard deviation 2/9 sqrt 2, over sqrt 2.
    change = measure_drop(drafted((1, 1), (1,)), drafted((0, 1), (0,)))
    assert change.base == 2.0
    assert change.drop == pytest.approx(2 - 4 / 3)
    assert change.standard_error == pytest.approx(2 / 9)
    assert change.prompts == 2


def test_standard_error_of_equal_rounds_is_the_paired_one_of_the_textbook() -> None:
    base = drafted((2, 1), (0, 1), (2, 2))
    new = drafted((1, 1), (0, 0), (0, 1))
    differences = [(2 - 3) / 2, (0 - 1) / 2, (1 - 4) / 2]
    mean = sum(differences) / 3
    textbook = math.sqrt(sum((x - mean) ** 2 for x in differences) / 2 / 3)
    assert measure_drop(base, new).standard_error == pytest.approx(textbook)


def test_expected_counts_of_a_replay_are_used() -> None:
    prompts = (
        {"id": "0", "rounds": 2.0, "committed": 5.0},
        {"id": "1", "rounds": 2.0, "committed": 3.0},
    )
    replayed = report(numbers={"acceptance": acceptance(2.0, prompts=prompts)})
    change = measure_drop(replayed, report(numbers={"acceptance": acceptance(2.0)}))
    # u = (0.5, -0.5) against that of (0, 2), (1, 1): zero, since both have 4 tokens in 2 rounds.
    assert change.standard_error == pytest.approx(0.5)


ROUNDS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=2, max_size=5
)


@given(ROUNDS.map(tuple))
def test_nothing_is_lost_against_oneself(rounds: Rounds) -> None:
    same = drafted(*rounds)
    comparison = compare_reports(same, same, DropLimits(absolute=0.0, standard_errors=0.0))
    assert comparison.verdict == "pass"
    assert comparison.changed == ()


@given(st.data())
def test_the_other_way_round_the_drop_is_a_gain(data: st.DataObject) -> None:
    base = data.draw(ROUNDS)
    size = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
    new = data.draw(st.lists(size, min_size=len(base), max_size=len(base)))
    there, back = (measure_drop(drafted(*a), drafted(*b)) for a, b in ((base, new), (new, base)))
    assert there.drop == -back.drop
    assert there.standard_error == pytest.approx(back.standard_error)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (DropLimits(absolute=0.6, standard_errors=None), {"max-drop": "fail"}),
        (DropLimits(absolute=0.7, standard_errors=None), {"max-drop": "pass"}),
        (DropLimits(standard_errors=2.9), {"max-drop-standard-errors": "fail"}),
        (DropLimits(standard_errors=3.1), {"max-drop-standard-errors": "pass"}),
        (
            DropLimits(absolute=0.7, standard_errors=2.0),
            {"max-drop": "pass", "max-drop-standard-errors": "fail"},
        ),
        (NO_LIMIT, {}),
    ],
)
def test_limits_of_a_drop_of_three_standard_errors(
    limits: DropLimits, expected: dict[str, str]
) -> None:
    found = verdicts(drafted((1, 1), (1,)), drafted((0, 1), (0,)), limits)
    assert {rule: verdict for rule, verdict in found.items() if "drop" in rule} == expected


def test_a_gain_never_fails() -> None:
    base, new = drafted((0, 1), (0,)), drafted((1, 1), (1,))
    assert compare_reports(base, new, DropLimits(absolute=0.0)).verdict == "pass"


def test_one_prompt_gives_no_standard_error() -> None:
    comparison = compare_reports(drafted((1, 2)), drafted((1, 1)), DropLimits())
    assert comparison.verdict == "inconclusive"
    assert comparison.accepted_length is not None
    assert comparison.accepted_length.standard_error is None


@pytest.mark.parametrize(
    ("key", "new"),
    [
        ("temperature", drafted((1, 1), (1,), settings={"temperature": 1.0})),
        ("draft_sampling", drafted((1, 1), (1,), settings={"draft_sampling": "greedy"})),
        ("max_new_tokens", drafted((1, 1), (1,), settings={"max_new_tokens": 9})),
        ("prompts", drafted((1, 1), (1,), (2,))),
        ("target", drafted((1, 1), (1,), target=report().target.model_copy(  # type: ignore[union-attr]
            update={"config_sha256": "other"}))),
    ],
)  # fmt: skip
def test_what_was_not_measured_alike_is_not_compared(key: str, new: VerifyReport) -> None:
    comparison = compare_reports(drafted((1, 1), (1,)), new, DropLimits(absolute=1.0))
    assert comparison.verdict == "inconclusive"
    assert comparison.accepted_length is None
    assert all(key in rule.reason for rule in comparison.rules if "drop" in rule.rule)


def test_either_decoder_measures_the_same() -> None:
    """As another device does: the change is named, and the drop is still told."""
    base = drafted((1, 1), (1,), settings={"engine": "plain", "engine_reason": "why"})
    for engine in ("fast", None):
        new = drafted((1, 1), (1,), settings={"engine": engine})
        comparison = compare_reports(base, new, DropLimits(absolute=0.0))
        assert comparison.verdict == "pass"
        assert {x.key for x in comparison.changed} == {"settings.engine", "settings.engine_reason"}


def test_a_shorter_block_is_not_measured_alike() -> None:
    short = {"acceptance_by_position": (0.5,), "acceptance_interval95": (None,)}
    numbers = {"acceptance": acceptance(2.0, **short)}
    new = report(verdicts=PASSED, numbers=numbers)
    comparison = compare_reports(drafted((0, 2), (1, 1)), new, DropLimits())
    assert "num_speculative_tokens" in comparison.rules[-1].reason


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("pass", "pass", "pass"),
        ("pass", "fail", "fail"),
        ("pass", "inconclusive", "inconclusive"),
        ("pass", "skipped", "inconclusive"),
        ("skipped", "fail", "fail"),
        ("inconclusive", "fail", "fail"),
        ("fail", "fail", None),
        ("fail", "pass", None),
        ("skipped", "skipped", None),
    ],
)
def test_verdicts_that_changed(before: str, after: str, expected: str | None) -> None:
    base, new = (
        drafted((1, 1), (1,), verdicts={**PASSED, "parity": verdict}) for verdict in (before, after)
    )
    assert verdicts(base, new, NO_LIMIT).get("check:parity") == expected


def test_a_lost_acceptance_is_inconclusive_and_an_absent_one_is_nothing() -> None:
    skipped = drafted(
        (1, 1), (1,), numbers={"acceptance": None}, verdicts={"acceptance": "skipped"}
    )
    lost = compare_reports(drafted((1, 1), (1,)), skipped, DropLimits())
    assert lost.verdict == "inconclusive"
    assert compare_reports(skipped, skipped, DropLimits()).verdict == "pass"


def test_changed_values_are_named_by_path() -> None:
    base, new = drafted((1,), (1,)), drafted((1,), (1,), text="other", settings={"seed": 5})
    changed = {x.key: (x.base, x.new) for x in compare_reports(base, new, NO_LIMIT).changed}
    assert changed["settings.seed"] == ("0", "5")
    assert changed["draft.name"] == ('"draft"', '"other"')
    assert changed["settings.versions.other"] == (None, '"other"')
