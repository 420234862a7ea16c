"""What ``dspark-verify diagnose`` says: which reading of a draft explains its acceptance best."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument, row_id
from dspark_convert.schemas.numbers import Interval

READING_IDS = (
    "as-declared",
    "layout-other",
    "layer-ids-minus-1",
    "layer-ids-plus-1",
    "last-layer-normed",
    "d2t-absolute",
    "markov-off",
    "markov-late",
    "mask-other",
    "positions-plus-1",
    "positions-minus-1",
    "rope-base",
    "rope-unscaled",
    "sliding-full",
    "sliding-causal",
    "target-embedding",
    "target-head",
)
"""What the published schema lists; a test holds it to the rows of ``diagnosis.readings``."""

ReadingId = Annotated[
    str, Field(json_schema_extra={"enum": [*READING_IDS]}), AfterValidator(row_id("readings"))
]
DiagnosisVerdict = Literal["healthy", "cause-found", "undecided"]
StaticId = Literal["d2t-zero", "other-target", "untrained-head"]


class HypothesisResult(OwnDocument):
    """One reading of the draft.

    Differences are this reading minus ``as-declared`` on the same anchors. Intervals are over
    texts; those of differences are widened, as Student's are, for the number of texts.
    """

    id: ReadingId | StaticId
    status: Literal["declared", "cause", "hint", "rejected", "not-applicable"] = Field(
        description="cause: meets the rule of `decision` on all anchors; hint: only its 95 % "
        "interval does, or it was judged only on a sample"
    )
    reason: str
    anchors: NonNegativeInt | None = Field(
        default=None,
        description="anchors behind all numbers here: those of the diagnosis, or a sample that was "
        "enough to rule the reading out or to prefer another; null: not evaluated",
    )
    accepted_length: float | None = Field(
        default=None,
        description="committed tokens per round; null: not evaluated, or not on all anchors",
    )
    interval95: Interval | None = None
    overlap: float | None = Field(
        default=None,
        description="mean over anchors of sum_v min(p, q) of the first drafted token, over the "
        "stored most likely tokens; null: none are stored",
    )
    overlap_at_most: float | None = Field(
        default=None, description="the same, if the tokens that are not stored were shared too"
    )
    difference: float | None = Field(default=None, description="of `overlap`")
    difference_interval95: Interval | None = None
    difference_decision_interval: Interval | None = Field(
        default=None, description="at the level of `decision`"
    )
    accepted_tokens: float | None = Field(
        default=None, description="mean over anchors of the draft tokens that a round accepts"
    )
    accepted_tokens_difference: float | None = None
    accepted_tokens_interval95: Interval | None = None
    accepted_tokens_decision_interval: Interval | None = None
    fix: str | None = Field(default=None, description="a command, or what to do in words")


class DecisionRule(OwnDocument):
    """When a reading counts as the cause.

    One of its two differences is large enough, and the whole interval of that one lies above 0;
    the interval of the other does not lie below 0. The level of the intervals leaves ``error`` for
    all comparisons together (Bonferroni).
    """

    comparisons: NonNegativeInt = Field(description="readings tried x statistics")
    error: float = Field(description="of naming any wrong reading, under all readings together")
    level: float = Field(description="of one decision interval: 1 - error / comparisons")
    min_overlap_gain: float
    min_accepted_tokens_gain: float
    min_texts: PositiveInt = Field(description="with fewer texts, only static causes are named")


class Diagnosis(OwnDocument):
    """``dspark-verify diagnose`` in full. Deterministic."""

    schema_version: Literal[1] = 1
    tool: Literal["dspark-verify"] = "dspark-verify"
    tool_version: str
    verdict: DiagnosisVerdict
    best: ReadingId | StaticId = Field(description="as-declared: nothing better found")
    reason: str
    draft: str
    target: str
    texts: NonNegativeInt
    anchors: NonNegativeInt = Field(description="of all texts")
    temperature: float | None = Field(
        description="of the texts and of the accepted length; null: a static cause, nothing was run"
    )
    overlap_temperature: float | None = Field(description="null: no overlap can be computed")
    engine: Literal["plain", "fast"] | None = Field(
        default=None,
        description="what replayed the texts; null: nothing did, or an older diagnosis",
    )
    engine_reason: str | None = Field(
        default=None, description="why the plain one ran, if the choice was left open"
    )
    seed: int = Field(description="of the bootstrap over texts")
    decision: DecisionRule
    hypotheses: tuple[HypothesisResult, ...] = Field(
        description="the best reading first, then causes, hints and the rest by their gain"
    )
    findings: tuple[Finding, ...] = Field(description="notes and warnings from reading the draft")
