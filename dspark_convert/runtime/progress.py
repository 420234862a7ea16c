"""What decoding keeps of each prompt on the host: tokens, rounds, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Round


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one round of one prompt, before stop tokens cut it."""

    proposed_ids: tuple[int, ...]
    accepted: int
    next_token_id: int
    confidence: tuple[float, ...] | None


def unpack_outcomes(counts: Tensor, confidence: Tensor | None) -> list[Outcome]:
    """The outcome of every row of a round; waits for tensors that are not on the host yet.

    ``counts`` int64 [R, 3 + N]: tokens proposed, tokens accepted, the next token, the drafted ids;
    ``confidence`` fp32 [R, N], None without a confidence head.
    """
    confidences = None if confidence is None else confidence.tolist()
    return [
        Outcome(
            proposed_ids=tuple(ids[:length]),
            accepted=accepted,
            next_token_id=next_token_id,
            confidence=None if confidences is None else tuple(confidences[row][:length]),
        )
        for row, (length, accepted, next_token_id, *ids) in enumerate(counts.tolist())
    ]


@dataclass
class Row:
    """One prompt. ``token_ids`` is the prefill's token and all that the rounds committed."""

    prompt: int
    prompt_length: int
    token_ids: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def anchor_position(self) -> int:
        """Position of the last committed token, counted from the first prompt token."""
        return self.prompt_length + len(self.token_ids) - 1

    def finished(self, options: DecodeOptions) -> bool:
        """Whether no further round starts."""
        committed = len(self.token_ids) - 1
        return committed >= options.max_new_tokens or self.token_ids[-1] in options.stop_token_ids

    def commit(self, outcome: Outcome, options: DecodeOptions) -> None:
        """Record a round; a stop token among the accepted ones ends it there, without a bonus."""
        accepted = outcome.accepted
        committed = (*outcome.proposed_ids[:accepted], outcome.next_token_id)
        for index, token_id in enumerate(outcome.proposed_ids[:accepted]):
            if token_id in options.stop_token_ids:
                accepted, committed = index + 1, committed[: index + 1]
                break
        self.rounds.append(
            Round(
                anchor_position=self.anchor_position,
                proposed_ids=outcome.proposed_ids,
                accepted=accepted,
                committed_ids=committed,
                confidence=outcome.confidence,
            )
        )
        self.token_ids.extend(committed)

    def result(self, options: DecodeOptions) -> DecodeResult:
        """The output, cut at the limit; the rounds count in full."""
        return DecodeResult(tuple(self.token_ids[: options.max_new_tokens]), tuple(self.rounds))
