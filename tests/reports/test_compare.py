"""Comparison of two reports: the drop and its standard error by hand, and every verdict."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.errors import ReportError, UsageError
from dspark_convert.reports.compare import DropLimits, compare_reports, measure_drop
from dspark_convert.schemas.identity import WeightsIdentity
from dspark_convert.schemas.report import VerifyReport
from tests.reports.documents import acceptance, report

PASSED = {"parity": "pass", "lossless-greedy": "pass", "acceptance": "pass"}
NO_LIMIT = DropLimits(absolute=None, standard_errors=None)

Rounds = tuple[tuple[int, ...], ...]


def drafted(*rounds: tuple[int, ...], **changes: Any) -> VerifyReport:
    """A report whose prompts had these accepted tokens, all checks passed."""
    total = sum(map(len, rounds))
    length = (sum(map(sum, rounds)) + total) / total
    numbers = {"acceptance": acceptance(length, rounds, threshold=1.0)}
    numbers |= changes.pop("numbers", {})
    checks = changes.setdefault("verdicts", PASSED)
    verdict = next((x for x in ("fail", "inconclusive") if x in checks.values()), "pass")
    return report(verdict=verdict, numbers=numbers, **changes)


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


def repeated(
    length: float, *rounds: tuple[int, ...], first: tuple[int | None, ...]
) -> VerifyReport:
    """A report in which prompt i is the same as prompt ``first[i]``."""
    prompts = [
        {"id": str(row), "same_prompt_as": same, "accepted_per_round": accepted}
        for row, (accepted, same) in enumerate(zip(rounds, first, strict=True))
    ]
    changes: dict[str, Any] = {"threshold": 1.0, "prompts": prompts}
    if None not in first[1:]:
        changes |= {"interval95": None, "acceptance_interval95": (None, None)}
    numbers = {"acceptance": acceptance(length, rounds, **changes)}
    return report(verdict="pass", verdicts=PASSED, numbers=numbers)


def test_a_prompt_twelve_times_gives_no_standard_error() -> None:
    """Else the drop is known to a standard error of 0, or a loss of half the length passes."""
    first = (None, *[0] * 11)
    base = repeated(2.5, *[(1, 2)] * 12, first=first)
    new = repeated(2.0, *[(1, 1)] * 12, first=first)
    comparison = compare_reports(base, new, DropLimits())
    assert comparison.verdict == "inconclusive"
    assert comparison.accepted_length is not None
    assert comparison.accepted_length.standard_error is None
    assert comparison.accepted_length.prompts == 1


@pytest.mark.parametrize("older", [False, True])
def test_repetitions_leave_the_standard_error_of_the_different_prompts(older: bool) -> None:
    once = measure_drop(drafted((1, 1), (1,)), drafted((0, 1), (0,)))
    first = (None, None, 0, 1)
    base = repeated(2.0, (1, 1), (1,), (1, 1), (1,), first=(None,) * 4 if older else first)
    new = repeated(4 / 3, (0, 1), (0,), (0, 1), (0,), first=first)
    twice = measure_drop(base, new)
    assert twice.standard_error == pytest.approx(once.standard_error)
    assert (twice.prompts, twice.drop) == (2, pytest.approx(once.drop))


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
    short = {
        "acceptance_by_position": (1.0,),
        "acceptance_interval95": (None,),
        "survival_by_position": (1.0,),
        "histogram": (0, 4),
        "accepted_length_by_num_speculative_tokens": (2.0,),
    }
    new = drafted((1, 1), (1, 1), numbers={"acceptance": acceptance(2.0, ((1, 1),) * 2, **short)})
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
        (1, 1), (1,), numbers={"acceptance": None}, verdicts={**PASSED, "acceptance": "skipped"}
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


# Which weights the names stand for --------------------------------------------------------------


def weighing(draft: str | None, target: str | None = None, **changes: Any) -> VerifyReport:
    """A report whose draft and target have weights of these digests."""
    found = drafted((1, 1), (1,), **changes)
    assert found.target is not None
    draft_weights, target_weights = (
        digest and WeightsIdentity(method="all-bytes", sha256=digest, nbytes=8)
        for digest in (draft, target)
    )
    return found.model_copy(
        update={
            "draft": found.draft.model_copy(update={"weights": draft_weights}),
            "target": found.target.model_copy(update={"weights": target_weights}),
        }
    )


def test_other_weights_under_the_name_of_the_draft_are_told() -> None:
    comparison = compare_reports(weighing("a", "t"), weighing("b", "t"), DropLimits())
    assert comparison.verdict == "pass"
    assert comparison.notes == ("the draft has the same name in both reports, and other weights",)
    assert [x.key for x in comparison.changed] == ["draft.weights.sha256"]
    renamed = compare_reports(weighing("a", "t"), weighing("b", "t", text="new"), DropLimits())
    assert renamed.notes == ()
    assert "draft.weights.sha256" in [x.key for x in renamed.changed]


def test_other_weights_of_the_target_are_another_target() -> None:
    comparison = compare_reports(weighing("a", "t"), weighing("a", "u"), DropLimits(absolute=1.0))
    assert comparison.verdict == "inconclusive"
    assert comparison.accepted_length is None
    assert comparison.notes == ("the target has the same name in both reports, and other weights",)
    assert "target weights differ" in comparison.rules[-1].reason


@pytest.mark.parametrize("named", [("a", None), (None, "t"), ("a", "t")])
def test_an_older_report_says_nothing_of_weights(named: tuple[str | None, str | None]) -> None:
    comparison = compare_reports(weighing(None), weighing(*named), DropLimits(absolute=0.0))
    assert (comparison.verdict, comparison.notes, comparison.changed) == ("pass", (), ())


# What is not believed ---------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["base", "new"])
def test_a_report_that_contradicts_itself_is_not_compared(side: str) -> None:
    good = drafted((1, 1), (1,))
    bad = drafted((1, 1), (1,), numbers={"acceptance": acceptance(2.0, ((0, 0), (0,)))})
    pair = (bad, good) if side == "base" else (good, bad)
    with pytest.raises(ReportError) as refused:
        compare_reports(*pair, DropLimits())
    assert {x.code for x in refused.value.findings} == {"report-inconsistent"}
    assert {x.file for x in refused.value.findings} == {f"the {side} report"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1])
@pytest.mark.parametrize("limit", ["absolute", "standard_errors"])
def test_a_limit_that_is_no_limit_is_refused(limit: str, value: float) -> None:
    with pytest.raises(UsageError) as refused:
        DropLimits(**{limit: value})
    assert refused.value.code == "option-out-of-range"
