"""What each check rests its verdict on, in numbers; a report holds those of its checks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument

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


SamePrompt = Annotated[
    NonNegativeInt | None,
    Field(
        description="index of the first entry with the same prompt, with which this one counts as "
        "one in intervals; null: this is the first, or an older report"
    ),
]


class PromptRounds(OwnDocument):
    """The rounds of one prompt."""

    id: str
    same_prompt_as: SamePrompt = None
    accepted_per_round: tuple[NonNegativeInt, ...] = Field(description="without the bonus token")


class PromptExpectation(OwnDocument):
    """What decoding one recorded text yields on average."""

    id: str
    same_prompt_as: SamePrompt = None
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
    interval95: Interval | None = Field(
        description="bootstrap over different prompts; null below 2 of them"
    )
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
        description="estimate of the different prompts that would decide an inconclusive threshold"
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
        description="bootstrap over texts of different prompts; null below 2 prompts"
    )
    warnings: tuple[str, ...] = ()


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
    auc_standard_error: float | None = Field(
        description="as if all tokens on one prompt were those of one text"
    )
    by_position: tuple[ConfidenceAtPosition, ...]
    reliability: tuple[ReliabilityBin, ...] = Field(
        default=(), description="the bins of the expected calibration error"
    )
    warnings: tuple[str, ...] = ()


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
