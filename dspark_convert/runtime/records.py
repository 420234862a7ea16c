"""The values that go into decoding (options) and come out of it (results, observations)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dspark_convert.runtime.sampling import (
    SamplingOptions,
    option_out_of_range,
    require_in_range,
    require_new_tokens,
)

DraftSampling = Literal["sample", "greedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """All knobs of a decode run.

    No round starts after ``max_new_tokens`` tokens, and the output is cut there. Draft tokens are
    drawn at ``temperature`` without ``top_k`` and ``top_p``, or chosen greedily with
    ``draft_sampling="greedy"`` (q is then one-hot). ``num_speculative_tokens`` None: all that a
    block proposes; fewer: the first ones of a whole block. With ``confidence_threshold`` a proposal
    ends before the first token whose confidence is below it, and may be empty.

    Raises ``UsageError`` (``option-out-of-range``).
    """

    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    draft_sampling: DraftSampling = "sample"
    num_speculative_tokens: int | None = None
    confidence_threshold: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _ = self.sampling
        require_new_tokens("max_new_tokens", self.max_new_tokens)
        require_in_range("num_speculative_tokens", self.num_speculative_tokens, 1)
        threshold = self.confidence_threshold
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise option_out_of_range("confidence_threshold", "0 to 1", threshold)

    @property
    def sampling(self) -> SamplingOptions:
        """How target tokens are drawn."""
        return SamplingOptions(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one prompt.

    ``anchor_position`` counts from the first prompt token. ``confidence`` holds the probabilities
    that the confidence head gave to the proposed tokens; None without a head.
    """

    anchor_position: int
    proposed_ids: tuple[int, ...]
    accepted: int
    committed_ids: tuple[int, ...]
    confidence: tuple[float, ...] | None

    @property
    def stopped_early(self) -> bool:
        """Whether a stop token among the accepted ones ended the round, which then has no bonus.

        Nothing is then known about the proposed tokens after it.
        """
        return len(self.committed_ids) == self.accepted


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """The output for one prompt.

    ``token_ids`` start with the token sampled from the prefill, which belongs to no round; they are
    cut at the limit and after a stop token. Rounds count in full.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def committed(self) -> int:
        """Tokens that the rounds committed; divided by ``len(rounds)``, the accepted length."""
        return sum(len(round_.committed_ids) for round_ in self.rounds)


@dataclass(frozen=True, slots=True)
class Observation:
    """What one forward pass of the target decided, before stop tokens and limits cut anything.

    The prefill is observed as a round whose anchor is the last prompt token and which proposes
    nothing (N = 0). Row r is prompt ``prompts[r]``; its tokens ``draft_ids[r, :lengths[r]]``
    were proposed and the first ``accepted[r]`` of them stand. The target's logits after the anchor
    and after each drafted token are ``target_logits`` [R, N + 1, V]. At a temperature above 0,
    ``target_probabilities`` [R, N + 1, V] are p and ``draft_probabilities`` [R, N, V] are q.
    Tensors are views of buffers: copy what outlives the call.
    """

    prompts: tuple[int, ...]
    anchor_positions: tuple[int, ...]
    target_logits: Tensor
    target_probabilities: Tensor | None
    draft_probabilities: Tensor | None
    draft_ids: Tensor
    lengths: Tensor
    accepted: Tensor
    next_token_ids: Tensor


Observer = Callable[[Observation], None]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many texts are done, and their total."""


def no_progress(what: str, done: int, total: int) -> None:
    """Where nobody follows the progress."""
