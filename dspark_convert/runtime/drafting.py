"""The draft's part of a decoding round: how many tokens, how they are chosen, where they are cut.

Shapes: R rows, N drafted tokens of a round, B slots, H hidden, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark_convert.errors import DraftError, Finding, UsageError
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import Chain, GreedyChoice, SampledChoice, run_chain
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.rejection import count_leading
from dspark_convert.runtime.sampling import one_hot, require_generator, scale_logits
from dspark_convert.runtime.vocabulary import ProposalBuffer


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafted tokens of a batch, all on the device.

    ``target_ids`` int64 [R, N], of which row r proposes the first ``lengths[r]``; ``confidence``
    fp32 [R, N] probabilities, None without a confidence head; ``probabilities`` fp32 [R, N, V] is
    q, None at temperature 0.
    """

    target_ids: Tensor
    lengths: Tensor
    confidence: Tensor | None
    probabilities: Tensor | None


class Drafter:
    """Drafts for batches of at most ``rows`` rows. The buffer of q is allocated here, once.

    Drafting raises ``DraftError`` (``outputs-not-finite``). The constructor raises ``UsageError``
    for options that this draft cannot serve (``too-many-speculative-tokens``,
    ``confidence-head-absent``, ``generator-required``) and ``DraftError`` when its vocabulary does
    not fit into ``target_vocab_size``.
    """

    def __init__(
        self,
        draft: DraftModel,
        options: DecodeOptions,
        *,
        target_vocab_size: int,
        rows: int,
        generator: torch.Generator | None,
    ) -> None:
        self.draft, self.options = draft, options
        self.num_tokens = count_tokens(draft, options)
        check_threshold(draft, options)
        self.vocabulary = draft.vocabulary.restrict(target_vocab_size)
        self.choose: GreedyChoice | SampledChoice = GreedyChoice(self.vocabulary)
        if not options.sampling.greedy and options.draft_sampling == "sample":
            buffer = ProposalBuffer(self.vocabulary, rows, self.num_tokens, draft.dtype)
            self.choose = SampledChoice(buffer, options.temperature, require_generator(generator))

    def __call__(self, hidden_RBH: Tensor, anchor_token_ids_R: Tensor) -> Drafted:
        """Draft after each anchor, from the backbone hidden states of its block."""
        chain = run_chain(
            self.draft, hidden_RBH, anchor_token_ids_R, self.choose, num_tokens=self.num_tokens
        )
        require_finite(chain.biased_logits, self.draft)
        confidence = confidence_of(self.draft, chain)
        return Drafted(
            chain.target_ids,
            proposed_lengths(chain.target_ids, confidence, self.options),
            confidence,
            self._probabilities(chain.target_ids),
        )

    def draft_nothing(self, rows: int) -> Drafted:
        """A proposal of no tokens, N = 0: what precedes the token of the prefill."""
        ids = torch.zeros(rows, 0, dtype=torch.int64, device=self.draft.device)
        return Drafted(ids, ids.new_zeros(rows), None, self._probabilities(ids))

    def _probabilities(self, target_ids: Tensor) -> Tensor | None:
        """q: temperature only, as the tokens were drawn; one-hot for greedy drafts."""
        if self.options.sampling.greedy:
            return None
        if isinstance(self.choose, SampledChoice):
            rows, num_tokens = target_ids.shape
            logits = self.choose.buffer.logits[:rows, :num_tokens]
            return scale_logits(logits, self.options.temperature).softmax(-1)
        return one_hot(target_ids, self.vocabulary.target_size, torch.float32)


def confidence_of(draft: DraftModel, chain: Chain) -> Tensor | None:
    """Probabilities, fp32 [R, N], that each drafted token is accepted; None without a head."""
    if chain.confidence_logits is None:
        return None
    return chain.confidence_logits[:, draft.first_predicting_slot :].sigmoid()


def proposed_lengths(
    target_ids: Tensor, confidence: Tensor | None, options: DecodeOptions
) -> Tensor:
    """How many of the drafted tokens [R, N] each row proposes, int64 [R].

    All N, or those before the first one whose ``confidence`` [R, N] is below the threshold.
    """
    rows, num_tokens = target_ids.shape
    every = target_ids.new_full((rows,), num_tokens)
    if options.confidence_threshold is None or confidence is None:
        return every
    return count_leading(confidence >= options.confidence_threshold, every)


def require_finite(draft_logits: Tensor, draft: DraftModel) -> None:
    """Raise ``DraftError`` (``outputs-not-finite``) for logits that are NaN or +inf.

    -inf stands where nothing can be drafted.
    """
    if bool((draft_logits.isnan() | draft_logits.isposinf()).any()):
        raise outputs_not_finite(draft)


def outputs_not_finite(draft: DraftModel) -> DraftError:
    """The error for a draft whose weights are finite and whose outputs are not."""
    dtype = str(draft.dtype).removeprefix("torch.")
    return DraftError(
        Finding(
            code="outputs-not-finite",
            message=f"the draft's outputs are not finite in {dtype}",
            expected="finite logits",
            found="NaN or infinity",
            hint="its activations overflow: give --dtype bfloat16 or float32; if they do so there "
            "too, its weights are damaged",
        )
    )


def count_tokens(draft: DraftModel, options: DecodeOptions) -> int:
    """N of a round.

    Raises ``UsageError`` (``too-many-speculative-tokens``).
    """
    most = draft.config.num_speculative_tokens
    wanted = options.num_speculative_tokens
    if wanted is not None and wanted > most:
        raise UsageError(
            Finding(
                code="too-many-speculative-tokens",
                message="the draft proposes fewer tokens in a block",
                key="num_speculative_tokens",
                expected=f"at most {most}",
                found=str(wanted),
                hint="slots beyond those that the draft was trained with propose noise",
            )
        )
    return most if wanted is None else wanted


def check_threshold(draft: DraftModel, options: DecodeOptions) -> None:
    """Raise ``UsageError`` (``confidence-head-absent``) for a threshold without a head."""
    if options.confidence_threshold is not None and draft.confidence_head is None:
        raise UsageError(
            Finding(
                code="confidence-head-absent",
                message="a confidence threshold needs a draft with a confidence head",
                key="confidence_threshold",
                hint="omit the threshold",
            )
        )
