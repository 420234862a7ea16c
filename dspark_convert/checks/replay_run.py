"""The checks of a replayed trace: acceptance and confidence from expected counts.

Shapes: M anchors of a text, N drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dspark_convert.checks.acceptance import (
    AcceptanceSettings,
    Tally,
    decide_acceptance,
    to_count,
)
from dspark_convert.checks.confidence import decide_confidence
from dspark_convert.checks.marked_texts import Marks, mark_replayed
from dspark_convert.replay.expectation import Expectation, Floats, at_most, confident
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.replay.replay import (
    Replay,
    ReplayOptions,
    replay_sequence,
)
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.drafting import count_tokens
from dspark_convert.runtime.records import DecodeOptions, Progress, no_progress
from dspark_convert.schemas.numbers import (
    PromptExpectation,
    PromptRounds,
    ThresholdLength,
)
from dspark_convert.schemas.report import CheckResult
from dspark_convert.traces.trace import Trace

THRESHOLDS: Floats = np.arange(1, 10) / 10
"""Confidence thresholds whose accepted length is reported."""


class ReplayRun:
    """All texts of a trace, run through a draft; a text is summed up before the next is read."""

    def __init__(
        self,
        draft: DraftModel,
        trace: Trace,
        options: ReplayOptions,
        *,
        on_progress: Progress = no_progress,
    ) -> None:
        self.decode = options.decode
        self.num_tokens = count_tokens(draft, self.decode)
        self.texts: list[_Text] = []
        self.marks: list[Marks] = []
        prompts = []
        for sequence in trace:
            prompts.append(sequence.prompt_ids)
            replay = replay_sequence(draft, sequence, options)
            self.texts.append(_sum_up(replay, self.decode))
            generated = sequence.token_ids[sequence.first_generated :].tolist()
            self.marks.append(mark_replayed(replay.id, generated, replay.expectation))
            on_progress("replaying", len(self.texts), len(trace))
        self.groups = group_prompts(prompts)

    def check_acceptance(self, settings: AcceptanceSettings) -> CheckResult:
        """The ``acceptance`` check; its interval is over texts of different prompts."""
        tally = self.tally()
        trials = tally.trials.sum()
        outside = sum(text.outside for text in self.texts)
        cut = self.decode.confidence_threshold is not None
        rounds = float(tally.rounds.sum())
        return decide_acceptance(
            tally,
            settings,
            self.groups,
            method="replayed",
            drafted=None if cut else to_count(self.num_tokens * rounds),
            accepted_length_by_num_speculative_tokens=tuple(
                pool([text.by_num_tokens for text in self.texts])
            ),
            accepted_length_by_confidence_threshold=self._by_threshold(),
            mass_outside_draft_vocabulary=float(outside / trials) if trials else None,
            prompts=tuple(
                text.outcome.model_copy(update={"same_prompt_as": first})
                for text, first in zip(self.texts, self.groups.repeated, strict=True)
            ),
        )

    def check_confidence(self) -> CheckResult:
        """The ``confidence`` check of a draft with a confidence head."""
        tokens = np.concatenate([text.tokens for text in self.texts])
        positions, scores, accepted, weights = tokens.T
        return decide_confidence(
            positions.astype(int),
            scores,
            accepted,
            weights,
            self.num_tokens,
            texts=np.repeat(np.arange(len(self.texts)), [len(text.tokens) for text in self.texts]),
            groups=self.groups,
        )

    def tally(self) -> Tally:
        """Expected counts of every text."""
        return Tally(
            rounds=np.array([text.rounds for text in self.texts]),
            committed=np.array([text.committed for text in self.texts]),
            trials=np.stack([text.trials for text in self.texts]),
            successes=np.stack([text.successes for text in self.texts]),
        )

    def _by_threshold(self) -> tuple[ThresholdLength, ...] | None:
        counts = [text.by_threshold for text in self.texts if text.by_threshold is not None]
        if not counts:
            return None
        return tuple(
            ThresholdLength(confidence_threshold=float(threshold), accepted_length=length)
            for threshold, length in zip(THRESHOLDS, pool(counts), strict=True)
            if length is not None
        )


@dataclass(frozen=True)
class _Text:
    """What is kept of one text: expected counts, and every drafted token that may be verified."""

    rounds: float
    committed: float
    trials: Floats
    successes: Floats
    outside: float
    by_num_tokens: Floats
    """[N, 2]: committed tokens and rounds of a draft of n tokens."""
    by_threshold: Floats | None
    """[thresholds, 2], the same."""
    tokens: Floats
    """[tokens, 4]: position, confidence, probability of acceptance, expected number."""
    outcome: PromptRounds | PromptExpectation


def _sum_up(replay: Replay, decode: DecodeOptions) -> _Text:
    expectation = replay.expectation
    trials, successes = expectation.trials, expectation.successes
    rounds, committed = float(expectation.rounds), float(expectation.committed)
    by_threshold = None
    if replay.confidence is not None and decode.confidence_threshold is None:
        cut = confident(expectation.proposed, replay.confidence, THRESHOLDS)
        by_threshold = _lengths(replace(expectation, proposed=cut))
    certain = expectation.certain_rounds()
    return _Text(
        rounds=rounds,
        committed=committed,
        trials=trials.sum(0),
        successes=successes.sum(0),
        outside=float(trials[~replay.draftable].sum()),
        by_num_tokens=_lengths(replace(expectation, proposed=at_most(expectation.proposed))),
        by_threshold=by_threshold,
        tokens=_list_tokens(replay, trials),
        outcome=PromptExpectation(id=replay.id, rounds=rounds, committed=committed)
        if certain is None
        else PromptRounds(id=replay.id, accepted_per_round=tuple(k for _, k in certain)),
    )


def _list_tokens(replay: Replay, trials: Floats) -> Floats:
    if replay.confidence is None:
        return np.empty((0, 4))
    anchors, tokens = trials.nonzero()
    values = (replay.confidence, replay.expectation.acceptance, trials)
    return np.stack((tokens + 1.0, *(value[anchors, tokens] for value in values)), -1)


def _lengths(expectation: Expectation) -> Floats:
    """Committed tokens and rounds [variants, 2]."""
    return np.stack((expectation.committed, expectation.rounds), -1)


def pool(counts: list[Floats]) -> list[float | None]:
    """Ratios of the sums over texts of counts [..., 2]; None if there is nothing."""
    total = np.sum(counts, 0)
    return [float(top / bottom) if bottom else None for top, bottom in total]
