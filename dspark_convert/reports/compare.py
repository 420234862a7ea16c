"""Two reports side by side: what changed, and whether it is a loss.

The drop of accepted length is base minus new. Both are ratios of sums over the same prompts,
R = sum c_i / sum v_i (c committed tokens, v rounds of prompt i, repetitions included). Linearised,
prompt i moves R by u_i = (c_i - R v_i) / mean(v); the standard error of the drop is that of the
mean of the differences of u, so what makes a prompt hard for both drafts cancels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspark_convert import __version__
from dspark_convert.checks import CHECKS
from dspark_convert.errors import Finding, UsageError
from dspark_convert.replay.intervals import Floats
from dspark_convert.replay.repetition import PromptGroups
from dspark_convert.reports.consistency import require_consistent
from dspark_convert.schemas.comparison import (
    Change,
    CheckChange,
    Comparison,
    LengthChange,
    PositionChange,
)
from dspark_convert.schemas.gate_outcome import RuleResult, RuleVerdict, worst
from dspark_convert.schemas.numbers import (
    AcceptanceNumbers,
    PromptExpectation,
    PromptRounds,
)
from dspark_convert.schemas.report import (
    CheckId,
    Verdict,
    VerifiedDraft,
    VerifiedTarget,
    VerifyReport,
)

DEFAULT_STANDARD_ERRORS = 2.0
"""A drop of more standard errors than this is a regression, unless limits are given."""

_ROUNDING = 1e-9
"""Differences up to this come from adding floats in another order."""

_MEASURED_ALIKE = (
    "max_new_tokens",
    "stop_token_ids",
    "temperature",
    "top_k",
    "top_p",
    "draft_sampling",
    "confidence_threshold",
)
"""Settings that must be equal for two accepted lengths to mean the same."""


@dataclass(frozen=True, kw_only=True)
class DropLimits:
    """How far the accepted length may fall; None sets no limit.

    Raises ``UsageError`` (``option-out-of-range``): a limit is negative or not a finite number.
    """

    absolute: float | None = None
    standard_errors: float | None = DEFAULT_STANDARD_ERRORS

    def __post_init__(self) -> None:
        limits = {"max-drop": self.absolute, "max-drop-standard-errors": self.standard_errors}
        for name, limit in limits.items():
            if limit is not None and not 0 <= limit < math.inf:
                raise UsageError(
                    Finding(
                        code="option-out-of-range",
                        message="a limit of the drop cannot be this value",
                        key=name,
                        expected="a finite number, 0 or above",
                        found=str(limit),
                    )
                )


def compare_reports(base: VerifyReport, new: VerifyReport, limits: DropLimits) -> Comparison:
    """Everything that differs, and a verdict: fail on a regression, which is a check that fails
    but did not before, or a drop of accepted length beyond ``limits``.

    A check that passed and is no longer decided, or a drop that cannot be measured, makes the
    verdict inconclusive.

    Raises ``ReportError`` (``report-inconsistent``): a report contradicts itself.
    """
    require_consistent(base, "the base report")
    require_consistent(new, "the new report")
    checks = _compare_checks(base, new)
    rules = (*filter(None, map(_compare_check, checks)), *decide_drop(base, new, limits))
    unlike = why_not_comparable(base, new)
    return Comparison(
        tool_version=__version__,
        verdict=worst(rule.verdict for rule in rules),
        base=base.draft.name,
        new=new.draft.name,
        rules=rules,
        checks=checks,
        accepted_length=None if unlike else measure_drop(base, new),
        acceptance_by_position=tuple(_compare_positions(base, new)),
        changed=tuple(_list_changes(base, new)),
        notes=tuple(list_notes(base, new)),
    )


def decide_drop(
    base: VerifyReport, new: VerifyReport, limits: DropLimits
) -> tuple[RuleResult, ...]:
    """The results of the rules ``max-drop`` and ``max-drop-standard-errors`` that have a limit."""
    bounds = {"max-drop": limits.absolute, "max-drop-standard-errors": limits.standard_errors}
    asked = {rule: bound for rule, bound in bounds.items() if bound is not None}
    if _acceptance(base) is None and _acceptance(new) is None and _drafted_in_neither(base, new):
        return ()
    unlike = why_not_comparable(base, new)
    if unlike:
        return tuple(RuleResult(rule=rule, verdict="inconclusive", reason=unlike) for rule in asked)
    change = measure_drop(base, new)
    return tuple(_decide_drop(rule, change, bound) for rule, bound in asked.items())


def list_notes(base: VerifyReport, new: VerifyReport) -> Iterator[str]:
    """What the names of drafts and targets do not show: that they stand for other weights."""
    pairs = {"draft": (base.draft, new.draft), "target": (base.target, new.target)}
    for side, (before, after) in pairs.items():
        if before and after and before.name == after.name and _other_weights(before, after):
            yield f"the {side} has the same name in both reports, and other weights"


def why_not_comparable(base: VerifyReport, new: VerifyReport) -> str | None:
    """Why the accepted lengths of two reports cannot be compared; None if they can."""
    numbers = (_acceptance(base), _acceptance(new))
    for name, side in zip(("base", "new"), numbers, strict=True):
        if side is None or side.accepted_length is None or not any(map(_rounds, side.prompts)):
            return f"the {name} report has no accepted length"
    before, after = numbers
    assert before is not None
    assert after is not None
    differing = [
        key for key in _MEASURED_ALIKE if getattr(base.settings, key) != getattr(new.settings, key)
    ]
    if len(before.acceptance_by_position) != len(after.acceptance_by_position):
        differing.append("num_speculative_tokens")
    if base.target and new.target and base.target.config_sha256 != new.target.config_sha256:
        differing.append("target")
    elif _other_weights(base.target, new.target):
        differing.append("target weights")
    if [prompt.id for prompt in before.prompts] != [prompt.id for prompt in after.prompts]:
        differing.append("prompts")
    return f"not measured alike: {', '.join(differing)} differ" if differing else None


def _other_weights(
    one: VerifiedDraft | VerifiedTarget | None, two: VerifiedDraft | VerifiedTarget | None
) -> bool:
    """Whether the weights are known to be others; older reports do not name them."""
    if one is None or two is None or one.weights is None or two.weights is None:
        return False
    return one.weights != two.weights


def measure_drop(base: VerifyReport, new: VerifyReport) -> LengthChange:
    """The drop of accepted length between two comparable reports."""
    before, after = _acceptance(base), _acceptance(new)
    assert before is not None, "the reports are comparable"
    assert after is not None, "the reports are comparable"
    assert before.accepted_length is not None
    assert after.accepted_length is not None
    groups = _group_prompts(before, after)
    count = groups.different
    moved = _influence(after, groups) - _influence(before, groups)
    return LengthChange(
        base=before.accepted_length,
        new=after.accepted_length,
        drop=before.accepted_length - after.accepted_length,
        prompts=count,
        standard_error=float(moved.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
    )


def _group_prompts(before: AcceptanceNumbers, after: AcceptanceNumbers) -> PromptGroups:
    """Which prompts are the same, as the newer report says if the other is too old to say it."""
    said = [
        tuple(
            index if prompt.same_prompt_as is None else prompt.same_prompt_as
            for index, prompt in enumerate(numbers.prompts)
        )
        for numbers in (before, after)
    ]
    return PromptGroups(tuple(map(min, *said)))


def _influence(numbers: AcceptanceNumbers, groups: PromptGroups) -> Floats:
    """u_i of every different prompt; [prompts]."""
    counts = groups.pool(np.array([_count(prompt) for prompt in numbers.prompts], dtype=float))
    committed, rounds = counts.T
    ratio = committed.sum() / rounds.sum()
    influence: Floats = (committed - ratio * rounds) / rounds.mean()
    return influence


def _count(prompt: PromptRounds | PromptExpectation) -> tuple[float, float]:
    """Committed tokens and rounds, counting the bonus that a stop token may have prevented."""
    if isinstance(prompt, PromptExpectation):
        return prompt.committed, prompt.rounds
    rounds = len(prompt.accepted_per_round)
    return sum(prompt.accepted_per_round) + rounds, rounds


def _rounds(prompt: PromptRounds | PromptExpectation) -> float:
    return _count(prompt)[1]


def _decide_drop(rule: str, change: LengthChange, bound: float) -> RuleResult:
    said = f"accepted length {change.base:.3f} -> {change.new:.3f}"
    error = change.standard_error
    if rule == "max-drop":
        limit, words = bound, f"a drop of {bound:g} is allowed"
    elif error is None:
        reason = f"{said}: one prompt gives no standard error; use two or more"
        return RuleResult(rule=rule, verdict="inconclusive", reason=reason)
    else:
        limit = bound * error
        words = f"a drop of {bound:g} standard errors ({limit:.3f}) is allowed"
    verdict: RuleVerdict = "fail" if change.drop > limit + _ROUNDING else "pass"
    return RuleResult(rule=rule, verdict=verdict, reason=f"{said}; {words}")


def _compare_checks(base: VerifyReport, new: VerifyReport) -> tuple[CheckChange, ...]:
    before, after = _verdicts(base), _verdicts(new)
    return tuple(
        CheckChange(id=check_id, base=before.get(check_id), new=after.get(check_id))
        for check_id in dict.fromkeys((*CHECKS, *before, *after))
        if check_id in before or check_id in after
    )


def _compare_check(change: CheckChange) -> RuleResult | None:
    if change.base != "pass" and not (change.new == "fail" and change.base != "fail"):
        return None
    verdict: RuleVerdict = "inconclusive"
    if change.new in ("pass", "fail"):
        verdict = "fail" if change.new == "fail" else "pass"
    reason = f"{change.base or 'absent'} -> {change.new or 'absent'}"
    return RuleResult(rule=f"check:{change.id}", verdict=verdict, reason=reason)


def _compare_positions(base: VerifyReport, new: VerifyReport) -> Iterator[PositionChange]:
    before, after = _acceptance(base), _acceptance(new)
    if before is None or after is None:
        return
    pairs = zip(before.acceptance_by_position, after.acceptance_by_position, strict=False)
    for position, (old, fresh) in enumerate(pairs, start=1):
        yield PositionChange(position=position, base=old, new=fresh)


def _list_changes(base: VerifyReport, new: VerifyReport) -> Iterator[Change]:
    documents = [
        report.model_dump(mode="json", include={"draft", "target", "settings"})
        for report in (base, new)
    ]
    for side in ("draft", "target"):
        sides = [document[side] for document in documents if document[side] is not None]
        if any(each["weights"] is None for each in sides):  # an older report
            for each in sides:
                del each["weights"]
    before, after = (dict(_leaves("", document)) for document in documents)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield Change(key=key, base=before.get(key), new=after.get(key))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(f"{path}.{key}" if path else key, child)
    else:
        yield path, json.dumps(value)


def _verdicts(report: VerifyReport) -> dict[CheckId, Verdict]:
    return {check.id: check.verdict for check in report.checks}


def _acceptance(report: VerifyReport) -> AcceptanceNumbers | None:
    found = (check.numbers for check in report.checks)
    return next((numbers for numbers in found if isinstance(numbers, AcceptanceNumbers)), None)


def _drafted_in_neither(base: VerifyReport, new: VerifyReport) -> bool:
    """Whether both reports skipped acceptance, so that there is nothing to compare."""
    return {_verdicts(base).get("acceptance"), _verdicts(new).get("acceptance")} <= {
        "skipped",
        None,
    }
