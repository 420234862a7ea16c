"""The outcome of a gate or of a comparison with a baseline: one entry for each rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from dspark_convert.schemas.base import OwnDocument

RuleVerdict = Literal["pass", "fail", "inconclusive"]


class RuleResult(OwnDocument):
    """One rule: the verdict, and why."""

    rule: str = Field(description="such as required-check:acceptance or max-drop")
    verdict: RuleVerdict
    reason: str


class GateOutcome(OwnDocument):
    """A gate in full. Its acceptance thresholds are judged by the acceptance check itself."""

    file: str
    prompt_set: str | None
    baseline: str | None = Field(description="file name of the baseline report")
    verdict: RuleVerdict
    rules: tuple[RuleResult, ...]
    notes: tuple[str, ...] = Field(default=(), description="of the draft and that of the baseline")


def worst(verdicts: Iterable[RuleVerdict]) -> RuleVerdict:
    """The worst verdict: fail, then inconclusive, then pass; pass if there is nothing to judge."""
    found = set(verdicts)
    if "fail" in found:
        return "fail"
    return "inconclusive" if "inconclusive" in found else "pass"
