"""Accepted length and acceptance by position, from the rounds of a decode run.

The counts are the field's (DeepSpec's evaluator): see ``runtime.decode``. Of a round that a stop
token ended among its accepted tokens, nothing is known about the token after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_convert.runtime.records import DecodeResult, Round
from dspark_convert.schemas.report import (
    AcceptanceNumbers,
    CheckResult,
    Interval,
    PromptRounds,
    Verdict,
)
from dspark_convert.verification.statistics import judge, prompts_to_decide, ratio_interval95

USELESS_BELOW = 1.1
"""Accepted length below which a draft costs more than it brings, whatever the engine."""

SUSPICIOUS_ACCEPTANCE = 0.999
_SUSPICIOUS_TRIALS = 200

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AcceptanceSettings:
    """What acceptance is held against."""

    num_tokens: int
    """N, speculative tokens of a round."""
    min_accepted_length: float | None = None
    min_acceptance: tuple[float, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Tally:
    """Counts of each prompt (rows) at each position 1..N (columns)."""

    rounds: Counts
    committed: Counts
    trials: Counts
    """Rounds in which the fate of token k is known, the k-1 before it accepted; [prompts, N]."""
    successes: Counts
    """Of those, rounds in which it was accepted; this is also "the first k accepted"."""


def count_rounds(results: Sequence[DecodeResult], num_tokens: int) -> Tally:
    """Count trials and successes of every prompt."""
    shape = (len(results), num_tokens)
    trials, successes = np.zeros(shape), np.zeros(shape)
    for row, result in enumerate(results):
        for round_ in result.rounds:
            successes[row, : round_.accepted] += 1
            trials[row, : known_tokens(round_)] += 1
    return Tally(
        rounds=np.array([len(result.rounds) for result in results], dtype=float),
        committed=np.array([result.committed for result in results], dtype=float),
        trials=trials,
        successes=successes,
    )


def known_tokens(round_: Round) -> int:
    """Leading drafted tokens whose fate is known: the accepted ones and the first rejected."""
    if round_.stopped_early:
        return round_.accepted
    return min(round_.accepted + 1, len(round_.proposed_ids))


def measure_acceptance(
    results: Sequence[DecodeResult],
    prompt_ids: Sequence[str],
    settings: AcceptanceSettings,
    *,
    mass_outside: float | None,
) -> CheckResult:
    """The ``acceptance`` check. ``mass_outside`` is computed by the observer of the run."""
    tally = count_rounds(results, settings.num_tokens)
    rounds, drafted = int(tally.rounds.sum()), _drafted(results)
    length = float(tally.committed.sum() / rounds) if rounds else None
    interval = ratio_interval95(tally.committed, tally.rounds, settings.seed)
    conditional = _ratios(tally.successes.sum(0), tally.trials.sum(0))
    conditional_intervals = tuple(
        ratio_interval95(tally.successes[:, k], tally.trials[:, k], settings.seed)
        for k in range(settings.num_tokens)
    )
    survival = _ratios(tally.successes.sum(0), np.full(settings.num_tokens, rounds, dtype=float))
    verdict, reason, needed = _verdict(
        settings, length, interval, conditional, conditional_intervals, drafted, len(results)
    )
    threshold = settings.min_accepted_length
    numbers = AcceptanceNumbers(
        accepted_length=length,
        interval95=interval,
        threshold=USELESS_BELOW if threshold is None else threshold,
        rounds=rounds,
        committed=int(tally.committed.sum()),
        drafted=drafted,
        accepted=sum(round_.accepted for result in results for round_ in result.rounds),
        acceptance_by_position=conditional,
        acceptance_interval95=conditional_intervals,
        survival_by_position=survival,
        histogram=_histogram(results, settings.num_tokens),
        accepted_length_by_num_speculative_tokens=_shorter_lengths(survival),
        mass_outside_draft_vocabulary=mass_outside,
        prompts_needed=needed,
        warnings=_warnings(conditional, tally.trials.sum(0)),
        prompts=tuple(
            PromptRounds(id=prompt_id, accepted_per_round=tuple(r.accepted for r in result.rounds))
            for prompt_id, result in zip(prompt_ids, results, strict=True)
        ),
    )
    return CheckResult(id="acceptance", verdict=verdict, reason=reason, numbers=numbers)


def _verdict(
    settings: AcceptanceSettings,
    length: float | None,
    interval: Interval | None,
    conditional: Sequence[float | None],
    conditional_intervals: Sequence[Interval | None],
    drafted: int,
    prompts: int,
) -> tuple[Verdict, str, int | None]:
    """Verdict, reason, and the prompts that would decide an undecided accepted length."""
    if length is None or not drafted:
        return "inconclusive", "no token was drafted, so there is nothing to accept", None
    verdict, reason, needed = _judge_length(settings, length, interval, prompts)
    for position, threshold in enumerate(settings.min_acceptance):
        value, bounds = conditional[position], conditional_intervals[position]
        at_position = "inconclusive" if value is None else judge(value, bounds, threshold)
        if at_position == "pass" or verdict == "fail":
            continue
        words = "below" if at_position == "fail" else "not decidedly at"
        reason = (
            f"acceptance at position {position + 1} is {_number(value)} "
            f"{_bounds(bounds)}, {words} {threshold:g}"
        )
        verdict = at_position
    return verdict, reason, needed


def _judge_length(
    settings: AcceptanceSettings, length: float, interval: Interval | None, prompts: int
) -> tuple[Verdict, str, int | None]:
    said = f"accepted length {length:.3f} {_bounds(interval)}, bonus included"
    threshold = settings.min_accepted_length
    if threshold is None:
        if length < USELESS_BELOW:
            return "fail", f"{said}, is below {USELESS_BELOW}: the draft only costs", None
        return "pass", f"{said}; no threshold was given", None
    verdict = judge(length, interval, threshold)
    if verdict == "pass":
        return verdict, f"{said}, reaches {threshold:g}", None
    if verdict == "fail":
        return verdict, f"{said}, is below {threshold:g}", None
    if interval is None:
        return verdict, f"{said}: one prompt gives no interval; use two or more", 2
    needed = prompts_to_decide(length, interval, threshold, prompts)
    return verdict, f"{said}, leaves {threshold:g} open; about {needed} prompts decide", needed


def _drafted(results: Sequence[DecodeResult]) -> int:
    return sum(len(round_.proposed_ids) for result in results for round_ in result.rounds)


def _ratios(tops: Counts, bottoms: Counts) -> tuple[float | None, ...]:
    return tuple(
        float(top / bottom) if bottom else None for top, bottom in zip(tops, bottoms, strict=True)
    )


def _histogram(results: Sequence[DecodeResult], num_tokens: int) -> tuple[int, ...]:
    accepted = [round_.accepted for result in results for round_ in result.rounds]
    counts = np.bincount(np.array(accepted, dtype=int), minlength=num_tokens + 1)
    return tuple(int(count) for count in counts)


def _shorter_lengths(survival: Sequence[float | None]) -> tuple[float | None, ...]:
    """1 + the sum of survival up to n, for every n (an early stop's missing bonus aside)."""
    if None in survival:
        return tuple(None for _ in survival)
    return tuple(float(1 + total) for total in np.cumsum([s or 0.0 for s in survival]))


def _warnings(conditional: Sequence[float | None], trials: Counts) -> tuple[str, ...]:
    return tuple(
        f"acceptance at position {position} is {value:.4f} over {int(count)} tokens: suspiciously "
        "perfect; is the draft reading the target's own answer?"
        for position, (value, count) in enumerate(zip(conditional, trials, strict=True), start=1)
        if value is not None and value >= SUSPICIOUS_ACCEPTANCE and count >= _SUSPICIOUS_TRIALS
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _bounds(interval: Interval | None) -> str:
    return "(no interval)" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"
