"""Several readings of one draft on the same anchors: what each scores, and paired differences.

Whole texts are resampled, with the same resamples for all readings, so a difference is that of one
set of texts under two readings. Shapes: S texts, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dspark_convert.diagnosis.readings import Reading
from dspark_convert.diagnosis.shared_replay import SharedReplay
from dspark_convert.replay.expectation import Floats
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.replay.replay import Replay, ReplayOptions
from dspark_convert.runtime.drafting import check_threshold
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.trace import TraceSequence


@dataclass(frozen=True)
class Scores:
    """Sums of one reading over the anchors of each text, [S] each; texts of a prompt are one.

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
    prompts = []
    for done, text in enumerate(texts, start=1):
        prompts.append(text.prompt_ids)
        for index, replay in together.replay(text, options, stride=stride):
            rows[index].append(_sum_up(replay, whole=stride == 1))
        on_text(done)
    groups = group_prompts(prompts)
    return [Scores(*groups.pool(np.array(row).reshape(-1, 6)).T) for row in rows]


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
