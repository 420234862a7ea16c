"""What ``dspark-verify compare`` says about two reports."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.gate_outcome import RuleResult, RuleVerdict
from dspark_convert.schemas.report import CheckId, Verdict


class Change(OwnDocument):
    """A value that is not the same in both reports."""

    key: str = Field(description="dotted path in the report")
    base: str | None = Field(description="as JSON; null: absent")
    new: str | None


class CheckChange(OwnDocument):
    """The verdict of one check in both reports; null where a report lacks it."""

    id: CheckId
    base: Verdict | None
    new: Verdict | None


class LengthChange(OwnDocument):
    """How the accepted length moved, in committed tokens per round."""

    base: float
    new: float
    drop: float = Field(description="base minus new: above 0 is a loss")
    prompts: PositiveInt = Field(description="different ones")
    standard_error: float | None = Field(
        description="of the drop, over prompts, each paired with itself; null below 2 prompts"
    )


class PositionChange(OwnDocument):
    """Acceptance at one position, given that those before it were accepted."""

    position: PositiveInt
    base: float | None
    new: float | None


class Comparison(OwnDocument):
    """``dspark-verify compare`` in full."""

    schema_version: Literal[1] = 1
    tool: Literal["dspark-verify"] = "dspark-verify"
    tool_version: str
    verdict: RuleVerdict
    base: str = Field(description="name of the draft of the baseline report")
    new: str
    rules: tuple[RuleResult, ...]
    checks: tuple[CheckChange, ...]
    accepted_length: LengthChange | None = Field(
        description="null: a report has none, or the two were not measured alike"
    )
    acceptance_by_position: tuple[PositionChange, ...]
    changed: tuple[Change, ...] = Field(
        description="of draft, target and settings; weights only if both reports name them"
    )
    notes: tuple[str, ...] = Field(
        default=(), description="what the names of drafts and targets do not show"
    )
