"""Run every check on a draft and put the results into one report."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

from dspark_convert import __version__
from dspark_convert.checks import CHECKS
from dspark_convert.checks.context import CheckContext
from dspark_convert.checks.marked_texts import mark_up, worst_texts
from dspark_convert.checks.options import VerifyOptions
from dspark_convert.checks.settings import describe_draft, describe_settings, describe_target
from dspark_convert.runtime.records import Progress, no_progress
from dspark_convert.schemas.report import (
    CheckResult,
    ExampleText,
    MarkedText,
    VerifyReport,
)

__all__ = ["VerifyOptions", "overall", "verify"]


def verify(options: VerifyOptions, *, on_progress: Progress = no_progress) -> VerifyReport:
    """Run the checks.

    Raises:
        UsageError: options that make no sense, or neither target, trace nor source.
        CheckpointError, DialectError, DraftError, PromptError, TraceError: an input cannot be read.
    """
    context = CheckContext(options, on_progress)
    seconds = run_checks(context)
    return VerifyReport(
        tool_version=__version__,
        verdict=overall(context.results.values()),
        draft=describe_draft(context),
        target=describe_target(context),
        settings=describe_settings(context),
        checks=tuple(context.results.values()),
        example=_example(context),
        worst=_worst(context),
        seconds=seconds,
    )


def run_checks(context: CheckContext) -> dict[str, float]:
    """Fill ``context.results`` with every check, in order; returns the wall time of each."""
    seconds = {}
    for check in CHECKS.values():
        reason = check.why_skipped(context)
        if reason is not None:
            context.results[check.id] = CheckResult(
                id=check.id, verdict="skipped", reason=reason, numbers=None
            )
            continue
        for need in check.needs:
            need.bring(context)
        start = time.perf_counter()
        context.results[check.id] = check.run(context)
        seconds[check.id] = round(time.perf_counter() - start, 3)
    return seconds


def overall(results: Iterable[CheckResult]) -> Literal["pass", "fail", "inconclusive"]:
    """Any failure fails; otherwise anything inconclusive, or nothing decided, is inconclusive."""
    verdicts = {result.verdict for result in results}
    if "fail" in verdicts:
        return "fail"
    return "inconclusive" if "inconclusive" in verdicts or "pass" not in verdicts else "pass"


def _example(context: CheckContext) -> ExampleText | None:
    """The first output of a decode run."""
    if context.drafted is None or context.trace is not None:
        return None
    run = context.decode_run
    return mark_up(run.names[0], run.results[0], context.tokenizer)


def _worst(context: CheckContext) -> tuple[MarkedText, ...]:
    """The worst outputs, as many as were asked for."""
    count = context.options.worst
    if context.drafted is None or context.given_texts or not count:
        return ()
    return worst_texts(context.run.marks, count, context.tokenizer)
