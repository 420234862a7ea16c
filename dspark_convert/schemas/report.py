"""The report of ``dspark-verify check``: verdicts with the numbers that they rest on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from dspark_convert.schemas.base import OwnDocument, row_id
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.gate_outcome import GateOutcome
from dspark_convert.schemas.identity import WeightsIdentity
from dspark_convert.schemas.numbers import Numbers

Verdict = Literal["pass", "fail", "inconclusive", "skipped"]

CHECK_IDS = (
    "structure",
    "pairing",
    "parity",
    "lossless-greedy",
    "lossless-sampling",
    "acceptance",
    "confidence",
)
"""What the published schemas list; a test holds it to the rows of ``checks.CHECKS``."""

CheckId = Annotated[
    str, Field(json_schema_extra={"enum": [*CHECK_IDS]}), AfterValidator(row_id("checks"))
]


class CheckResult(OwnDocument):
    """One check: the verdict, why, and the numbers (null when skipped)."""

    id: CheckId
    verdict: Verdict
    reason: str
    numbers: Numbers | None


class VerifiedDraft(OwnDocument):
    """The draft that was verified."""

    name: str
    dialect: str | None
    config_sha256: str | None
    weights: WeightsIdentity | None = Field(
        default=None, description="null: it cannot be opened, or an older report"
    )
    config: DraftConfig | None


class VerifiedTarget(OwnDocument):
    """The target that it was verified against."""

    name: str
    config_sha256: str
    weights: WeightsIdentity | None = Field(
        default=None, description="null: an older report, or an older trace"
    )
    architecture: str
    dtype: str
    device: str


class VerifySettings(OwnDocument):
    """Everything that a second run needs to repeat this one."""

    prompts: str = Field(description="file name of prompts or trace, or that of the bundled set")
    trace: str | None = Field(default=None, description="name of the trace; null: decoded")
    num_prompts: NonNegativeInt
    max_new_tokens: PositiveInt
    stop_token_ids: tuple[int, ...] | None = Field(description="null: no target was decoded")
    temperature: float
    top_k: int | None
    top_p: float | None
    draft_sampling: Literal["sample", "greedy"]
    num_speculative_tokens: int | None
    confidence_threshold: float | None
    seed: int
    batch_size: PositiveInt
    device: str
    engine: Literal["plain", "fast"] | None = Field(
        default=None, description="what decoded or replayed; null: nothing did, or an older report"
    )
    engine_reason: str | None = Field(
        default=None, description="why the plain one ran, if the choice was left open"
    )
    dtype: str
    min_accepted_length: float | None
    min_acceptance: tuple[float, ...]
    source: str | None
    versions: dict[str, str]


class ExampleRound(OwnDocument):
    """What one round committed, as text."""

    accepted: str = Field(description="of draft tokens that the target accepted")
    bonus: str = Field(description="of the target's own token; empty if a stop token came first")


class ExampleText(OwnDocument):
    """The beginning of one output, marked up to show which tokens the draft proposed."""

    id: str = Field(description="of the prompt")
    first: str = Field(description="of the token sampled from the prefill, part of no round")
    rounds: tuple[ExampleRound, ...]


SpanKind = Literal["first", "accepted", "rejected", "bonus"]


class MarkedSpan(OwnDocument):
    """Consecutive tokens of a text that arose in the same way."""

    text: str = Field(description="token ids if no tokenizer is at hand")
    kind: SpanKind = Field(
        description="first: sampled from the prefill; accepted: drafted and accepted; rejected: "
        "the target's own, in the place of a draft token that it rejected; bonus: the target's "
        "own after a whole proposal"
    )
    probability: float = Field(
        ge=0, le=1.000001, description="probability of this kind, mean over tokens; 1 if decoded"
    )


class MarkedText(OwnDocument):
    """One output in full, marked up by what happened to the draft's tokens."""

    id: str
    accepted_length: float
    spans: tuple[MarkedSpan, ...]


class VerifyReport(OwnDocument):
    """``dspark-verify check`` in full. Deterministic except for ``seconds``."""

    schema_version: Literal[1] = 1
    tool: Literal["dspark-verify"] = "dspark-verify"
    tool_version: str
    verdict: Literal["pass", "fail", "inconclusive"]
    draft: VerifiedDraft
    target: VerifiedTarget | None
    settings: VerifySettings
    checks: tuple[CheckResult, ...]
    gate: GateOutcome | None = Field(default=None, description="null: no thresholds file")
    example: ExampleText | None = Field(default=None, description="null: nothing was decoded")
    worst: tuple[MarkedText, ...] = Field(
        default=(), description="texts of lowest accepted length, worst first, as many as asked for"
    )
    seconds: dict[str, NonNegativeFloat] = Field(description="wall time per check")
