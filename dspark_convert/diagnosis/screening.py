"""Long traces: which readings a sample of the anchors settles before all of them are replayed.

Most readings of a draft are clearly worse than the declared one, or than the right one, and about a
thousand anchors show it. Only the others are replayed on all anchors, where they are judged as if
there had been no sample. That does not raise the error of naming a reading that is no better than
the declared one: a reading is named only if it passes the test on all anchors, at the level that
leaves the error for all readings that were tried, settled early or not. Whatever the sample says,
and although its anchors are among those of the test, that test errs no more often; the sample can
only take readings away. What it can cost is the right reading: about once in a hundred diagnoses if
all texts gain from it alike, more often if only one text in twenty does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dspark_convert.diagnosis.decision import Judge, Trial, total_gain
from dspark_convert.diagnosis.scores import Scores
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.schemas.diagnosis import DecisionRule, HypothesisResult
from dspark_convert.schemas.trace import TraceHeader

SCREENING_ANCHORS = 1024
"""A sample has about this many anchors, or up to twice as many.

Where two readings differ by 0.1 of overlap from anchor to anchor, the mean difference over 1,024
anchors is known to 0.0031, less than the least gain that counts. The sample is a thirtieth of a
trace of 32,000 anchors, so sixteen backbones cost about half a replay.
"""
SCREENING_TEXTS = 48
"""A sample has at least this many texts, if that many have an anchor.

Intervals rest on texts, and what affects one text in ten must be among them. On a GPU, a text takes
as long as its launches, however short it is.
"""


@dataclass(frozen=True)
class Sample:
    """Every ``stride``-th anchor, from the first one on, of some ``texts`` of a trace."""

    texts: tuple[int, ...]
    stride: int


def choose_sample(header: TraceHeader, decode: DecodeOptions) -> Sample | None:
    """Evenly spaced anchors of texts from all over the trace; None if the trace is too short.

    Only texts that have anchors are chosen.
    """
    counts = [
        # A text that ends before its limit ends with a stop token, which is not an anchor.
        min(entry.num_tokens - entry.first_generated - 1, decode.max_new_tokens)
        for entry in header.sequences
    ]
    if sum(counts) < 2 * SCREENING_ANCHORS:
        return None
    speaking = [index for index, count in enumerate(counts) if count > 0]
    for every in range(max(1, len(speaking) // SCREENING_TEXTS), 0, -1):
        texts = _one_of_each(speaking, every)
        held = sum(counts[index] for index in texts)
        if held >= SCREENING_ANCHORS:
            break
    return Sample(texts, held // SCREENING_ANCHORS)


def _one_of_each(texts: Sequence[int], every: int) -> tuple[int, ...]:
    """One of each ``every`` texts, drawn at random, since files may alternate between kinds."""
    generator = random.Random(0)
    rows = (texts[start : start + every] for start in range(0, len(texts), every))
    return tuple(generator.choice(row) for row in rows)


@dataclass
class Screening:
    """What a sample says.

    ``left`` holds the trials that it does not settle, the declared one first. ``rejected`` holds
    the results of those that are worse than the declared one, or gain nothing that counts.
    ``outdone`` holds those that may gain but are worse than ``left[best]``, with their results:
    hints at most.
    """

    left: list[Trial]
    rejected: list[HypothesisResult] = field(default_factory=list)
    outdone: list[tuple[Trial, HypothesisResult]] = field(default_factory=list)
    best: int = 0


def screen(
    trials: Sequence[Trial], sampled: Sequence[Scores], rule: DecisionRule, seed: int
) -> Screening:
    """Settle what a sample can; ``sampled`` holds the scores of all trials on its anchors."""
    judge = Judge(sampled[0], rule, seed)
    if judge.texts < rule.min_texts:
        return Screening(list(trials))
    compared = [
        (trial, own, judge.compare(own)) for trial, own in zip(trials[1:], sampled[1:], strict=True)
    ]
    results = [judge.decide(*each) for each in compared]
    gaining = [
        (total_gain(result), own)
        for (_, own, comparison), result in zip(compared, results, strict=True)
        if comparison.gains
    ]
    best = max(gaining, key=lambda pair: pair[0], default=(0.0, None))[1]
    screening = Screening([trials[0]])
    for (trial, own, comparison), result in zip(compared, results, strict=True):
        if own is best:
            screening.best = len(screening.left)
        if comparison.likely_worse or not comparison.may_gain:
            screening.rejected.append(result.model_copy(update={"status": "rejected"}))
        elif best is not None and judge.compare(own, best).worse:
            screening.outdone.append((trial, result))
        else:
            screening.left.append(trial)
    return screening
