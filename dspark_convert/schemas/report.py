"""The report of ``dspark-verify check``: verdicts with the numbers that they rest on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.gate_outcome import GateOutcome

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
Count = NonNegativeInt | NonNegativeFloat
"""How often something happened, or is expected to happen if a trace was replayed."""


class StructureNumbers(OwnDocument):
    """What the static checks found."""

    errors: NonNegativeInt
    warnings: NonNegativeInt
    notes: NonNegativeInt
    findings: tuple[Finding, ...]


class PairingNumbers(OwnDocument):
    """How draft and target fit together."""

    findings: tuple[Finding, ...]
    tokenizer: Literal["same", "different", "draft has none", "target has none", "not compared"]


class ParityNumbers(OwnDocument):
    """Original against converted draft on random contexts."""

    contexts: PositiveInt
    compared: tuple[str, ...] = Field(description="outputs that were compared bit by bit")
    different: tuple[str, ...]
    max_abs_difference: float | None = Field(description="null: the shapes differ")
    stand_ins: tuple[str, ...] = Field(
        description="missing tensors that were filled with seeded random ones"
    )


class GreedyDifference(OwnDocument):
    """Where speculative and plain greedy output diverge."""

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
    """Whether sampled output follows the target's distribution."""

    temperature: float
    positions: NonNegativeInt = Field(description="positions with p and q")
    max_law_error: float | None = Field(
        description="of the exact distribution of a committed token, in fp64"
    )
    tokens: NonNegativeInt = Field(
        description="draws in the chi-square test: each verified token, its verdict, and the token "
        "after those of a round"
    )
    impossible: NonNegativeInt = Field(default=0, description="of these, draws of probability zero")
    chi_square: float | None
    degrees_of_freedom: PositiveInt
    p_value: float | None
    significance: float


class PromptRounds(OwnDocument):
    """The rounds of one prompt."""

    id: str
    accepted_per_round: tuple[NonNegativeInt, ...] = Field(description="without the bonus token")


class PromptExpectation(OwnDocument):
    """What decoding one recorded text yields on average."""

    id: str
    rounds: NonNegativeFloat
    committed: NonNegativeFloat


class ThresholdLength(OwnDocument):
    """The accepted length if proposals end before the first token of lower confidence."""

    confidence_threshold: float
    accepted_length: float


class AcceptanceNumbers(OwnDocument):
    """How well the draft drafts. N: speculative tokens of a round.

    Counts are those of a decode run, or those expected given the texts of a trace.
    """

    method: Literal["decoded", "replayed"] = "decoded"
    accepted_length: float | None = Field(
        description="committed tokens per round, bonus included, pooled over prompts"
    )
    interval95: Interval | None = Field(description="bootstrap over prompts; null below 2 prompts")
    threshold: float
    rounds: Count
    committed: Count
    drafted: Count | None = Field(
        description="null: not known, since a confidence threshold cut proposals and was replayed"
    )
    accepted: Count
    acceptance_by_position: tuple[float | None, ...] = Field(
        description="entry k-1: token k accepted, given that the k-1 before it were; length N"
    )
    acceptance_interval95: tuple[Interval | None, ...]
    survival_by_position: tuple[float | None, ...] = Field(
        description="entry k-1: the first k tokens all accepted, of all rounds; length N; engines "
        "call this the per-position acceptance rate"
    )
    histogram: tuple[Count, ...] = Field(
        description="entry i: rounds with i accepted draft tokens; length N + 1"
    )
    accepted_length_by_num_speculative_tokens: tuple[float | None, ...] = Field(
        description="entry n-1: what a draft of n tokens would reach: 1 + survival up to n, or "
        "exactly, if a trace was replayed"
    )
    accepted_length_by_confidence_threshold: tuple[ThresholdLength, ...] | None = Field(
        default=None, description="null: decoded, or no confidence head"
    )
    mass_outside_draft_vocabulary: float | None = Field(
        description="share of the target's sampling distribution that no draft token can match, "
        "mean over visited positions (at temperature 0: share of argmax tokens)"
    )
    prompts_needed: PositiveInt | None = Field(
        description="estimate of the prompts that would decide an inconclusive threshold"
    )
    warnings: tuple[str, ...]
    prompts: tuple[PromptRounds | PromptExpectation, ...]


class AgreementNumbers(OwnDocument):
    """Draft against target on texts that the target did not write; there is no accepted length.

    N: speculative tokens of a round. Every position with a text after it is an anchor.
    """

    texts: NonNegativeInt
    anchors: NonNegativeInt
    agreement_by_position: tuple[float | None, ...] = Field(
        description="entry k-1: share of anchors after which the draft's likeliest token k, given "
        "the text before it, is the target's; length N"
    )
    agreement_interval95: tuple[Interval | None, ...] = Field(
        description="bootstrap over texts; null below 2 texts"
    )


class ConfidenceAtPosition(OwnDocument):
    """Calibration at one position of the block."""

    position: PositiveInt
    tokens: Count
    mean_confidence: float | None
    acceptance: float | None


class ReliabilityBin(OwnDocument):
    """Drafted tokens of about the same confidence, over all positions."""

    low: float
    high: float
    tokens: Count
    mean_confidence: float | None
    acceptance: float | None


class ConfidenceNumbers(OwnDocument):
    """How well the confidence head is calibrated."""

    tokens: Count = Field(description="drafted tokens whose outcome is known")
    accepted: Count
    expected_calibration_error: float | None = Field(description="10 bins of equal width")
    auc: float | None = Field(
        description="probability that an accepted token ranks above a rejected one"
    )
    auc_standard_error: float | None
    by_position: tuple[ConfidenceAtPosition, ...]
    reliability: tuple[ReliabilityBin, ...] = Field(
        default=(), description="the bins of the expected calibration error"
    )


Numbers = (
    StructureNumbers
    | PairingNumbers
    | ParityNumbers
    | LosslessGreedyNumbers
    | LosslessSamplingNumbers
    | AcceptanceNumbers
    | AgreementNumbers
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
    seconds: dict[str, Any] = Field(description="wall time per check")
