"""The report of ``dspark-verify check``: verdicts with the numbers that they rest on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.draft import DraftConfig

Verdict = Literal["pass", "fail", "inconclusive", "skipped"]
CheckId = Literal[
    "structure",
    "pairing",
    "parity",
    "lossless-greedy",
    "lossless-sampling",
    "acceptance",
    "confidence",
]
Interval = tuple[float, float]


class StructureNumbers(OwnDocument):
    """What the static checks found."""

    errors: NonNegativeInt
    warnings: NonNegativeInt
    notes: NonNegativeInt
    findings: tuple[Finding, ...]


class PairingNumbers(OwnDocument):
    """How draft and target fit together."""

    findings: tuple[Finding, ...]
    tokenizer: Literal["same", "different", "draft has none", "target has none"]


class ParityNumbers(OwnDocument):
    """Original against converted draft on random contexts."""

    contexts: PositiveInt
    compared: tuple[str, ...] = Field(description="outputs that were compared bit by bit")
    different: tuple[str, ...]
    max_abs_difference: float
    stand_ins: tuple[str, ...] = Field(description="absent tensors that a seeded random one filled")


class GreedyDifference(OwnDocument):
    """Where speculative and plain greedy output part."""

    prompt: str
    position: NonNegativeInt = Field(description="index of the first differing new token")
    speculative_token_id: int
    plain_token_id: int
    top2_gap: float = Field(description="between the target's two largest logits there")
    gap_in_ulp: float
    tie: bool


class LosslessGreedyNumbers(OwnDocument):
    """Speculative greedy output against the plain loop."""

    prompts: NonNegativeInt
    tokens: NonNegativeInt
    identical: NonNegativeInt = Field(description="prompts with equal output")
    tie_ulp: float = Field(description="gaps up to this many ULP of the target's dtype are ties")
    differences: tuple[GreedyDifference, ...]


class LosslessSamplingNumbers(OwnDocument):
    """Whether committed tokens follow the target's distribution."""

    temperature: float
    positions: NonNegativeInt = Field(description="positions with p and q")
    max_law_error: float | None = Field(description="of the exact law of a committed token, fp64")
    tokens: NonNegativeInt = Field(description="committed tokens in the chi-square test")
    chi_square: float | None
    degrees_of_freedom: PositiveInt
    p_value: float | None
    significance: float


class PromptRounds(OwnDocument):
    """The rounds of one prompt."""

    id: str
    accepted_per_round: tuple[NonNegativeInt, ...] = Field(description="without the bonus token")


class AcceptanceNumbers(OwnDocument):
    """How well the draft drafts. N: speculative tokens of a round."""

    accepted_length: float | None = Field(
        description="committed tokens per round, bonus included, pooled over prompts"
    )
    interval95: Interval | None = Field(description="bootstrap over prompts; null below 2 prompts")
    threshold: float
    rounds: NonNegativeInt
    committed: NonNegativeInt
    drafted: NonNegativeInt
    accepted: NonNegativeInt
    acceptance_by_position: tuple[float | None, ...] = Field(
        description="entry k-1: token k accepted, given that the k-1 before it were; length N"
    )
    acceptance_interval95: tuple[Interval | None, ...]
    survival_by_position: tuple[float | None, ...] = Field(
        description="entry k-1: the first k tokens all accepted, of all rounds; length N; engines "
        "call this the per-position acceptance rate"
    )
    histogram: tuple[NonNegativeInt, ...] = Field(
        description="entry i: rounds with i accepted draft tokens; length N + 1"
    )
    accepted_length_by_num_speculative_tokens: tuple[float | None, ...] = Field(
        description="entry n-1: 1 + survival up to n, what a draft of n tokens would reach"
    )
    mass_outside_draft_vocabulary: float | None = Field(
        description="share of the target's sampling distribution that no draft token can match, "
        "mean over visited positions (at temperature 0: share of argmax tokens)"
    )
    prompts_needed: PositiveInt | None = Field(
        description="estimate of the prompts that would decide an inconclusive threshold"
    )
    warnings: tuple[str, ...]
    prompts: tuple[PromptRounds, ...]


class ConfidenceAtPosition(OwnDocument):
    """Calibration at one position of the block."""

    position: PositiveInt
    tokens: NonNegativeInt
    mean_confidence: float | None
    acceptance: float | None


class ConfidenceNumbers(OwnDocument):
    """How far the confidence head can be believed."""

    tokens: NonNegativeInt = Field(description="drafted tokens whose fate is known")
    accepted: NonNegativeInt
    expected_calibration_error: float | None = Field(description="10 bins of equal width")
    auc: float | None = Field(description="an accepted token ranks above a rejected one")
    auc_standard_error: float | None
    by_position: tuple[ConfidenceAtPosition, ...]


Numbers = (
    StructureNumbers
    | PairingNumbers
    | ParityNumbers
    | LosslessGreedyNumbers
    | LosslessSamplingNumbers
    | AcceptanceNumbers
    | ConfidenceNumbers
)


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
    config: DraftConfig | None


class VerifiedTarget(OwnDocument):
    """The target that it was verified against."""

    name: str
    config_sha256: str
    architecture: str
    dtype: str
    device: str


class VerifySettings(OwnDocument):
    """Everything that a second run needs to repeat this one."""

    prompts: str = Field(description="file name, or that of the bundled set")
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
    dtype: str
    min_accepted_length: float | None
    min_acceptance: tuple[float, ...]
    source: str | None
    versions: dict[str, str]


class VerifyReport(OwnDocument):
    """``dspark-verify check`` in full. Deterministic but for ``seconds``."""

    schema_version: Literal[1] = 1
    tool: Literal["dspark-verify"] = "dspark-verify"
    tool_version: str
    verdict: Literal["pass", "fail", "inconclusive"]
    draft: VerifiedDraft
    target: VerifiedTarget | None
    settings: VerifySettings
    checks: tuple[CheckResult, ...]
    seconds: dict[str, Any] = Field(description="wall time per check")
