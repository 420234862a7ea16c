"""A recorded text run through a draft: how likely each drafted token is to be accepted.

Shapes: T text positions, M anchors, N drafted tokens, C stored candidates per position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspark_convert.errors import Finding, UsageError
from dspark_convert.replay.expectation import Expectation, Flags, Floats, confident
from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.drafting import check_threshold, count_tokens, outputs_not_finite
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.replay import (
    PLAIN,
    BlockScores,
    compute_text_context,
    compute_text_input,
    score_blocks,
)
from dspark_convert.runtime.replay_steps import ReplaySteps, Results
from dspark_convert.traces.trace import TraceSequence


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How a text was made, and how a draft would have drafted it.

    ``decode`` holds the limit, stop tokens and sampling of the text, and the settings of the draft.
    ``top_temperature`` is that of the stored candidates; None: no overlap is computed.
    ``steps`` are the plain ones, or those for a GPU.
    """

    decode: DecodeOptions
    target_vocab_size: int
    top_temperature: float | None = None
    steps: ReplaySteps = PLAIN


@dataclass(frozen=True)
class AnchoredText:
    """The part of a text that is replayed, and the positions of its anchors."""

    sequence: TraceSequence
    token_ids: Tensor
    anchors: range

    @property
    def context_length(self) -> int:
        """Positions that the last anchor sees."""
        return self.anchors[-1] if self.anchors else 0


@dataclass(frozen=True)
class Questions:
    """What is asked of every draft that replays a text, on their device.

    ``temperature`` is that of q, or 0 if only the likeliest tokens matter. ``following`` int64
    [M, N] holds the tokens after each anchor, 0 past the end. For the first of them,
    ``candidate_ids`` and ``log_p`` [M, C] are the stored candidates, and ``tail_mass`` [M] is the
    mass of all other tokens; None if no overlap is wanted.
    """

    temperature: float
    following: Tensor
    candidate_ids: Tensor | None = None
    log_p: Tensor | None = None
    tail_mass: Tensor | None = None


@dataclass(frozen=True)
class Replay:
    """One text, replayed. Row i is the i-th anchor.

    On a sample of the anchors, only what ``expectation`` says about each anchor is meaningful:
    ``reach`` and ``exactly``. Where rounds start depends on all anchors.
    """

    id: str
    expectation: Expectation
    confidence: Floats | None
    """[M, N]: probabilities of the confidence head."""
    draftable: Flags
    """[M, N]: whether the text's token is in the draft vocabulary."""
    overlap: tuple[Floats, Floats] | None
    """Bounds [M] of sum_v min(p, q) of the first drafted token at ``top_temperature``."""


def replay_sequence(draft: DraftModel, sequence: TraceSequence, options: ReplayOptions) -> Replay:
    """Replay a text that the target wrote.

    Raises:
        UsageError: options that the draft cannot serve (see ``Drafter``), and
            ``replay-log-probs-missing``: a sampled draft needs log p of a sampled text.
    """
    num_tokens = count_tokens(draft, options.decode)
    check_threshold(draft, options.decode)
    text = anchor_text(sequence, options, num_tokens=num_tokens)
    questions = ask(text, options, draft.device, num_tokens=num_tokens)
    context = project_input(draft, read_input(draft, text, options), options)
    return start_replays([draft], context, text, questions, options).wait()[0]


def anchor_text(
    sequence: TraceSequence, options: ReplayOptions, *, num_tokens: int, stride: int = 1
) -> AnchoredText:
    """A text that the target wrote, with every ``stride``-th anchor from its first one on.

    ``num_tokens`` is N, the largest one if several drafts will replay the text.

    Raises ``UsageError``: see ``cut_text`` and ``replay_sequence``.
    """
    _require_log_probs(sequence, options.decode)
    token_ids, anchors = cut_text(sequence, options.decode, num_tokens)
    return AnchoredText(sequence, token_ids, anchors[::stride])


def ask(
    text: AnchoredText, options: ReplayOptions, device: torch.device, *, num_tokens: int
) -> Questions:
    """What is asked about a text, uploaded once for drafts of at most ``num_tokens`` tokens."""
    sequence, decode, upload = text.sequence, options.decode, options.steps.upload
    following = upload(_following(text.token_ids, text.anchors, num_tokens), device)
    if options.top_temperature is None or sequence.top_ids is None:
        greedy = decode.draft_sampling == "greedy"
        return Questions(0.0 if greedy else decode.temperature, following)
    assert sequence.top_log_probs is not None
    assert sequence.tail_mass is not None
    stored = (sequence.top_ids, sequence.top_log_probs, sequence.tail_mass)
    after = [upload(_after(values, sequence, text.anchors), device) for values in stored]
    return Questions(options.top_temperature, following, *after)


def read_input(draft: DraftModel, text: AnchoredText, options: ReplayOptions) -> Tensor:
    """Input [T, H] of the context projections, up to the last anchor."""
    layers = text.sequence.features_of(draft.config.target_layer_ids)
    return compute_text_input(
        draft,
        [features[: text.context_length] for features in layers],
        steps=options.steps,
    )


def project_input(draft: DraftModel, input_TH: Tensor, options: ReplayOptions) -> ContextKV:
    """Context keys and values [1, T, K, E] from ``read_input``."""
    return compute_text_context(draft, input_TH, steps=options.steps)


@dataclass(frozen=True)
class PendingReplays:
    """Scores of some drafts on a text, which a GPU may still be working on."""

    drafts: Sequence[DraftModel]
    downloads: Sequence[Callable[[], Results]]
    """One answer per draft (see ``_answer``); none without an anchor."""
    text: AnchoredText
    options: ReplayOptions

    def wait(self) -> list[Replay]:
        """The replay of each draft.

        Raises ``DraftError`` (``outputs-not-finite``).
        """
        text, decode = self.text, self.options.decode
        if not text.anchors:
            return [_replay_nothing(draft, text, decode) for draft in self.drafts]
        replays = []
        for draft, download in zip(self.drafts, self.downloads, strict=True):
            answer = download()
            if any(x is not None and x.isnan().any() for x in answer.values()):
                raise outputs_not_finite(draft)
            replays.append(_to_replay(answer, text, decode))
        return replays


def start_replays(
    drafts: Sequence[DraftModel],
    context: ContextKV,
    text: AnchoredText,
    questions: Questions,
    options: ReplayOptions,
) -> PendingReplays:
    """Replay drafts of the same layers (see ``score_blocks``).

    A draft that proposes fewer tokens than ``options.decode`` asks for proposes all it can; a
    confidence threshold must already have been checked.
    """
    downloads = []
    if text.anchors:
        scored = _score(drafts, context, text, questions, options)
        downloads = [
            options.steps.download(_answer(draft, scores, questions, options))
            for draft, scores in zip(drafts, scored, strict=True)
        ]
    return PendingReplays(drafts, downloads, text, options)


def measure_agreement(
    draft: DraftModel, sequence: TraceSequence, options: ReplayOptions
) -> tuple[Floats, Floats]:
    """How often the draft's likeliest tokens are the target's, on a text by anyone.

    Returns, [N] each, the number of anchors after which both choose the same token k, and the
    number that have a token k. Every generated position with a token after it is an anchor.

    Raises ``UsageError`` for options that the draft cannot serve.
    """
    num_tokens = count_tokens(draft, options.decode)
    tokens, first = sequence.token_ids, sequence.first_generated
    assert sequence.argmax_ids is not None
    anchors = range(first, len(tokens) - 1)
    if not anchors:
        return np.zeros(num_tokens), np.zeros(num_tokens)
    text = AnchoredText(sequence, tokens, anchors)
    context = project_input(draft, read_input(draft, text, options), options)
    greedily = Questions(0.0, _following(tokens, anchors, num_tokens))
    (scores,) = _score([draft], context, text, greedily, options)
    chosen = torch.cat((tokens[:first], sequence.argmax_ids))
    both = scores.greedy_ids.cpu() == _following(chosen, anchors, num_tokens, beyond=-1)
    counted = np.minimum(len(tokens) - np.arange(1, num_tokens + 1) - first, len(anchors))
    return both.sum(0).double().numpy(), counted.clip(0).astype(np.float64)


def cut_text(
    sequence: TraceSequence, decode: DecodeOptions, num_tokens: int
) -> tuple[Tensor, range]:
    """The text up to its first stop token, and the anchors from which rounds may start.

    Raises ``UsageError`` (``replay-text-too-short``) unless the last round is whole.
    """
    first = sequence.first_generated
    generated = sequence.token_ids[first:]
    stops = torch.isin(generated, torch.tensor(sorted(decode.stop_token_ids))).nonzero()
    if len(stops):
        end = first + int(stops[0])
        return sequence.token_ids[: end + 1], range(first, min(end, first + decode.max_new_tokens))
    wanted = decode.max_new_tokens + num_tokens + 1
    if len(generated) < wanted:
        raise UsageError(
            Finding(
                code="replay-text-too-short",
                message="a text ends before the last round does, without a stop token",
                key=sequence.id,
                expected=f"{wanted} tokens after the prompt",
                found=str(len(generated)),
                hint="replay fewer new tokens or fewer speculative tokens, or record again",
            )
        )
    return sequence.token_ids, range(first, first + decode.max_new_tokens)


def bound_overlap(log_p: Tensor, tail_mass: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds, float64 [...], of sum_v min(p, q), from log p and log q [..., C] of C tokens.

    ``tail_mass`` [...] is the mass of p on all other tokens, of which at least nothing and at most
    the smaller of both masses is shared.
    """
    p, q = log_p.double().exp(), log_q.double().exp()
    low = torch.minimum(p, q).sum(-1)
    return low, low + torch.minimum(tail_mass.double(), (1.0 - q.sum(-1)).clamp(min=0.0))


def _score(
    drafts: Sequence[DraftModel],
    context: ContextKV,
    text: AnchoredText,
    questions: Questions,
    options: ReplayOptions,
) -> list[BlockScores]:
    return score_blocks(
        drafts,
        context,
        text.token_ids,
        text.anchors,
        target_vocab_size=options.target_vocab_size,
        temperature=questions.temperature,
        num_tokens=options.decode.num_speculative_tokens,
        candidate_ids_MC=questions.candidate_ids,
        steps=options.steps,
    )


def _answer(
    draft: DraftModel, scores: BlockScores, questions: Questions, options: ReplayOptions
) -> Results:
    """What is needed from the scores of one draft, on its device."""
    following = questions.following[:, : scores.greedy_ids.shape[1]]
    vocabulary = draft.vocabulary.restrict(options.target_vocab_size)
    low, high = _overlap(scores, questions) or (None, None)
    return {
        "greedy_ids": scores.greedy_ids,
        "log_q": scores.log_q,
        "confidence": scores.confidence,
        "draftable": vocabulary.map_target_to_draft(following) >= 0,
        "overlap": low,
        "overlap_at_most": high,
    }


def _to_replay(answer: Results, text: AnchoredText, decode: DecodeOptions) -> Replay:
    """What the answer of one draft means for the acceptance of its tokens."""
    values = {name: None if x is None else x.numpy() for name, x in answer.items()}
    draftable, low, high = values["draftable"], values["overlap"], values["overlap_at_most"]
    assert draftable is not None
    left = len(text.token_ids) - 1 - np.array(text.anchors, dtype=np.int64)
    proposed = left[:, None] >= np.arange(1, draftable.shape[1] + 1)
    confidence = None
    if values["confidence"] is not None:
        confidence = values["confidence"].astype(np.float64)
    if decode.confidence_threshold is not None:
        assert confidence is not None, "checked above"
        proposed = confident(proposed, confidence, np.array([decode.confidence_threshold]))[0]
    return Replay(
        id=text.sequence.id,
        expectation=Expectation(_acceptance(answer, text, decode), proposed, left),
        confidence=confidence,
        draftable=draftable,
        overlap=None if low is None or high is None else (low, high),
    )


def _replay_nothing(draft: DraftModel, text: AnchoredText, decode: DecodeOptions) -> Replay:
    most = draft.config.num_speculative_tokens
    acceptance = np.zeros((0, min(most, decode.num_speculative_tokens or most)))
    proposed = acceptance > 0
    expectation = Expectation(acceptance, proposed, np.zeros(0, dtype=np.int64))
    return Replay(text.sequence.id, expectation, None, proposed, None)


def _after(values: Tensor, sequence: TraceSequence, anchors: range) -> Tensor:
    """Of values that start at position P, those one position after each anchor."""
    start = anchors.start + 1 - sequence.first_generated
    return values[start :: anchors.step][: len(anchors)]


def _acceptance(answer: Results, text: AnchoredText, decode: DecodeOptions) -> Floats:
    """min(1, q / p) at the text's tokens; for a greedy draft whether it chose them."""
    greedy_ids, log_q, anchors = answer["greedy_ids"], answer["log_q"], text.anchors
    assert greedy_ids is not None
    if decode.sampling.greedy or decode.draft_sampling == "greedy":
        return _wide(greedy_ids == _following(text.token_ids, anchors, greedy_ids.shape[1]))
    log_probs, first = text.sequence.log_probs, text.sequence.first_generated
    assert log_q is not None
    assert log_probs is not None
    from_first = range(anchors.start - first, anchors.stop - first, anchors.step)
    log_p = _following(log_probs, from_first, log_q.shape[1])
    return np.exp(np.minimum(_wide(log_q) - _wide(log_p), 0.0))


def _overlap(scores: BlockScores, questions: Questions) -> tuple[Tensor, Tensor] | None:
    if scores.candidate_log_q is None:
        return None
    assert questions.log_p is not None
    assert questions.tail_mass is not None
    return bound_overlap(questions.log_p, questions.tail_mass, scores.candidate_log_q)


def _following(values: Tensor, anchors: range, num_tokens: int, *, beyond: int = 0) -> Tensor:
    """``values`` [M, N] at the N positions after each anchor, ``beyond`` past their end."""
    padded = torch.nn.functional.pad(values, (0, num_tokens), value=beyond)
    windows = padded[anchors.start + 1 :].unfold(0, num_tokens, 1)
    return windows[:: anchors.step][: len(anchors)]


def _require_log_probs(sequence: TraceSequence, decode: DecodeOptions) -> None:
    if sequence.log_probs is None and not decode.sampling.greedy:
        if decode.draft_sampling == "greedy":
            return
        raise UsageError(
            Finding(
                code="replay-log-probs-missing",
                message="the trace holds no log probabilities of its sampled text",
                key=sequence.id,
                hint="replay with --draft-sampling greedy, or record the trace with "
                "dspark-verify record",
            )
        )


def _wide(values: Tensor) -> Floats:
    wide: Any = values.double().cpu().numpy()
    return wide  # type: ignore[no-any-return]
