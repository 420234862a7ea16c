"""Long traces: which readings a sample of the anchors rules out before all of them are replayed.

Most readings of a draft are plainly worse than the declared one, and a few thousand anchors show
it. Only those that may still be better are replayed on all anchors, where they are judged as if
there had been no sample. That does not raise the error of naming a wrong reading: a reading is
named only if it passes the test on all anchors, at the level that leaves the error for all readings
that were tried, ruled out or not. Whatever the sample has said, and though its anchors are among
those of the test, that test errs no more often; the sample can only take readings away. What it can
cost is a right reading, if its gain on the sample is below what counts by more than chance allows
at the same level.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.schemas.diagnosis import DecisionRule, HypothesisResult
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.verification.judgement import Judge, Trial
from dspark_convert.verification.paired import Scores

SCREENING_ANCHORS = 2048
"""A sample has this many anchors, at most half as many again, and one more for a text.

Where two readings differ by 0.1 of overlap from anchor to anchor, the mean difference over 2,048
anchors is known to 0.0022, less than half of the least gain that counts. Of a trace of 32,000
anchors the sample is a fifteenth, so that sixteen backbones cost little more than a replay.
"""


def find_stride(header: TraceHeader, decode: DecodeOptions) -> int:
    """Which anchors make the sample: every n-th of each text from its first on; 1: all of them."""
    anchors = sum(
        # A text that ends before its limit ends with a stop token, which is no anchor.
        min(entry.num_tokens - entry.first_generated - 1, decode.max_new_tokens)
        for entry in header.sequences
    )
    return max(1, anchors // SCREENING_ANCHORS)


def screen(
    trials: Sequence[Trial], sampled: Sequence[Scores], rule: DecisionRule, seed: int
) -> tuple[list[Trial], list[HypothesisResult]]:
    """Trials that are left, the declared one first, and the results of those ruled out.

    ``sampled`` are the scores of all trials on the same sample of the anchors. Ruled out is what
    gains less than counts at the upper end of the decision intervals of both statistics.
    """
    judge = Judge(sampled[0], rule, seed)
    left, ruled_out = [trials[0]], []
    for trial, own in zip(trials[1:], sampled[1:], strict=True):
        result = judge.rule_out(trial, own)
        if result is None:
            left.append(trial)
        else:
            ruled_out.append(result)
    return left, ruled_out
