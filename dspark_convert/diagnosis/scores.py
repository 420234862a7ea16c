"""Several readings of one draft on the same anchors: what each scores, and paired differences.

Whole texts are resampled, with the same resamples for all readings, so a difference is that of one
set of texts under two readings. Shapes: S texts, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from dspark_convert.diagnosis.readings import Reading
from dspark_convert.diagnosis.shared_replay import SharedReplay
from dspark_convert.replay.expectation import Floats
from dspark_convert.replay.intervals import student_quantile
from dspark_convert.replay.replay import Replay, ReplayOptions
from dspark_convert.runtime.drafting import check_threshold
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.schemas.numbers import Interval
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.trace import TraceSequence

RESAMPLES = 20_000
"""Enough for the end of a decision interval to rest on several of them."""


@dataclass(frozen=True)
class Scores:
    """Sums of one reading over the anchors of each text, [S] each.

    Rounds need every anchor, so ``rounds`` and ``committed`` of a sample are nan.
    """

    anchors: Floats
    overlap: Floats
    """Sums of the lower bounds; nan without stored probabilities, like the upper ones."""
    overlap_at_most: Floats
    accepted_tokens: Floats
    """Expected draft tokens that a round from each anchor accepts."""
    rounds: Floats
    committed: Floats

    @property
    def accepted_length(self) -> float | None:
        """Committed tokens per round over all texts."""
        rounds = float(self.rounds.sum())
        return float(self.committed.sum()) / rounds if rounds > 0 else None


def score_readings(
    readings: Sequence[Reading],
    texts: Iterable[TraceSequence],
    header: TraceHeader,
    decode: DecodeOptions,
    *,
    stride: int = 1,
    steps: ReplaySteps = PLAIN,
    on_text: Callable[[int], None] = lambda done: None,
) -> list[Scores]:
    """Scores of every reading, on every ``stride``-th anchor of each text from its first one on.

    A text is read once, and all readings replay it together. The first reading is the declared
    one. No reading drafts more tokens than that, since the texts may be too short for them.

    Raises ``UsageError`` (``confidence-head-absent``; see ``anchor_text``).
    """
    declared = readings[0].draft
    check_threshold(declared, decode)
    own = declared.config.num_speculative_tokens
    most = min(own, decode.num_speculative_tokens or own)
    options = ReplayOptions(
        decode=replace(decode, num_speculative_tokens=most),
        target_vocab_size=header.target.vocab_size,
        top_temperature=header.top_temperature,
        steps=steps,
    )
    together = SharedReplay(readings)
    rows: list[list[tuple[float, ...]]] = [[] for _ in readings]
    for done, text in enumerate(texts, start=1):
        for index, replay in together.replay(text, options, stride=stride):
            rows[index].append(_sum_up(replay, whole=stride == 1))
        on_text(done)
    return [Scores(*np.array(row).reshape(-1, 6).T) for row in rows]


def _sum_up(replay: Replay, *, whole: bool) -> tuple[float, ...]:
    expectation = replay.expectation
    anchors = len(expectation.left)
    low, high = replay.overlap or (np.full(anchors, np.nan),) * 2
    return (
        float(anchors),
        float(low.sum()),
        float(high.sum()),
        float(expectation.reach[:, 1:].sum()),
        float(expectation.rounds) if whole else np.nan,
        float(expectation.committed) if whole else np.nan,
    )


class Resampler:
    """Intervals of ratios of sums over texts, all from the same resamples."""

    def __init__(self, texts: int, seed: int) -> None:
        shares = np.full(max(texts, 1), 1 / max(texts, 1))
        self.texts = texts
        self._counts = np.random.default_rng(seed).multinomial(texts, shares, RESAMPLES)

    def interval(self, numerators: Floats, denominators: Floats, level: float) -> Interval | None:
        """Percentile interval of sum(numerators) / sum(denominators); None below two texts."""
        return self._intervals(numerators, denominators, [level])[0]

    def wide_intervals(
        self, numerators: Floats, denominators: Floats, levels: Sequence[float]
    ) -> list[Interval | None]:
        """``interval`` at each level, widened by the ratio of Student's interval to a normal one.

        The percentile interval of a few texts is too narrow, the more so the higher the level: it
        cannot leave the range of the texts' own values. Texts count by their weight: if one of
        them holds most of the denominator, there is effectively little more than one text.
        """
        if self.texts < 2 or not denominators.any():
            return [None] * len(levels)
        weigh = denominators.sum() ** 2 / (denominators**2).sum()
        value, texts = numerators.sum() / denominators.sum(), max(2, int(weigh + 1e-9))
        wide: list[Interval | None] = []
        for level, narrow in zip(
            levels, self._intervals(numerators, denominators, levels), strict=True
        ):
            if narrow is None:
                wide.append(None)
                continue
            factor = _widening(level, texts)
            low, high = value - factor * (value - narrow[0]), value + factor * (narrow[1] - value)
            wide.append((float(low), float(high)))
        return wide

    def _intervals(
        self, numerators: Floats, denominators: Floats, levels: Sequence[float]
    ) -> list[Interval | None]:
        nothing: list[Interval | None] = [None] * len(levels)
        if self.texts < 2 or np.isnan(numerators).any():
            return nothing
        tops, bottoms = self._counts @ numerators, self._counts @ denominators
        ratios = tops[bottoms > 0] / bottoms[bottoms > 0]
        if not len(ratios):
            return nothing
        ends = [share for level in levels for share in ((1 - level) / 2, (1 + level) / 2)]
        found = np.quantile(ratios, ends).tolist()
        return [*zip(found[::2], found[1::2], strict=True)]


def _widening(level: float, texts: int) -> float:
    student = student_quantile((1 - level) / 2, texts - 1)
    # A resample's spread is that of the texts over S, where Student's has S - 1.
    correction = math.sqrt(texts / (texts - 1))
    return correction * student / NormalDist().inv_cdf((1 + level) / 2)
