"""Draft against target on texts that the target did not write, in place of ``acceptance``."""

from __future__ import annotations

import numpy as np

from dspark_convert.checks.replay_run import pool
from dspark_convert.replay.expectation import Floats
from dspark_convert.replay.intervals import ratio_interval95
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.replay.replay import ReplayOptions, measure_agreement
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.records import Progress
from dspark_convert.schemas.numbers import AgreementNumbers
from dspark_convert.schemas.report import CheckResult
from dspark_convert.traces.trace import Trace


def check_agreement(
    draft: DraftModel, trace: Trace, options: ReplayOptions, *, seed: int, on_progress: Progress
) -> CheckResult:
    """What can be said about texts that the target did not write, in place of ``acceptance``."""
    if not trace.header.has_argmax:
        return CheckResult(
            id="acceptance",
            verdict="inconclusive",
            reason="the target did not write the texts, and the trace does not hold its choices",
            numbers=None,
        )
    counts: list[tuple[Floats, Floats]] = []
    prompts = []
    for sequence in trace:
        prompts.append(sequence.prompt_ids)
        counts.append(measure_agreement(draft, sequence, options))
        on_progress("comparing", len(counts), len(trace))
    agreed, anchors = (np.stack(column) for column in zip(*counts, strict=True))
    groups = group_prompts(prompts)
    tops, bottoms = groups.pool(agreed), groups.pool(anchors)
    shares = pool([np.stack(pair, -1) for pair in counts])
    return CheckResult(
        id="acceptance",
        verdict="inconclusive",
        reason="the target did not write the texts, so acceptance is unknown; the first drafted "
        f"token is the target's choice after {_share(shares[0])} of the anchors",
        numbers=AgreementNumbers(
            texts=len(trace),
            anchors=int(anchors[:, 0].sum()),
            agreement_by_position=tuple(shares),
            agreement_interval95=tuple(
                ratio_interval95(tops[:, k], bottoms[:, k], seed) for k in range(len(shares))
            ),
            warnings=groups.warnings,
        ),
    )


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"
