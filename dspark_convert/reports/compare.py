"""Two reports side by side: what changed, and whether it is a loss.

The drop of accepted length is base minus new. Both are ratios of sums over the same prompts,
R = sum c_i / sum v_i (c committed tokens, v rounds of prompt i). Linearised, prompt i moves R by
u_i = (c_i - R v_i) / mean(v); the standard error of the drop is that of the mean of the differences
of u, so what makes a prompt hard for both drafts cancels.
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
from dspark_convert.replay.intervals import Floats
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
from dspark_convert.schemas.report import CheckId, Verdict, VerifyReport

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
    """How far the accepted length may fall; None sets no limit."""

    absolute: float | None = None
    standard_errors: float | None = DEFAULT_STANDARD_ERRORS


def compare_reports(base: VerifyReport, new: VerifyReport, limits: DropLimits) -> Comparison:
    """Everything that differs, and a verdict: fail on a regression, which is a check that fails
    but did not before, or a drop of accepted length beyond ``limits``.

    A check that passed and is no longer decided, or a drop that cannot be measured, makes the
    verdict inconclusive.
    """
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
    if [prompt.id for prompt in before.prompts] != [prompt.id for prompt in after.prompts]:
        differing.append("prompts")
    return f"not measured alike: {', '.join(differing)} differ" if differing else None


def measure_drop(base: VerifyReport, new: VerifyReport) -> LengthChange:
    """The drop of accepted length between two comparable reports."""
    before, after = _acceptance(base), _acceptance(new)
    assert before is not None, "the reports are comparable"
    assert after is not None, "the reports are comparable"
    assert before.accepted_length is not None
    assert after.accepted_length is not None
    count = len(before.prompts)
    moved = _influence(after) - _influence(before)
    return LengthChange(
        base=before.accepted_length,
        new=after.accepted_length,
        drop=before.accepted_length - after.accepted_length,
        prompts=count,
        standard_error=float(moved.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
    )


def _influence(numbers: AcceptanceNumbers) -> Floats:
    """u_i of every prompt; [prompts]."""
    counts = np.array([_count(prompt) for prompt in numbers.prompts])
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
    before, after = (
        dict(_leaves("", report.model_dump(mode="json", include={"draft", "target", "settings"})))
        for report in (base, new)
    )
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
