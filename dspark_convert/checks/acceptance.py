"""Accepted length and acceptance by position, from the rounds of a decode run or a replay.

The counts are the field's (DeepSpec's evaluator): see ``runtime.decode``. If a stop token among the
accepted tokens ended a round, nothing is known about the token after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dspark_convert.checks.base import DRAFTING, Check
from dspark_convert.replay.intervals import decide, prompts_to_decide, ratio_interval95
from dspark_convert.replay.repetition import PromptGroups
from dspark_convert.schemas.numbers import AcceptanceNumbers, Interval, PromptRounds
from dspark_convert.schemas.report import CheckResult, Verdict

if TYPE_CHECKING:
    from dspark_convert.checks.context import CheckContext
    from dspark_convert.runtime import DecodeResult, Round

USELESS_BELOW = 1.1
"""Below this accepted length a draft costs more than it gains, whatever the engine."""

SUSPICIOUS_ACCEPTANCE = 0.999
_SUSPICIOUS_TRIALS = 200

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AcceptanceSettings:
    """The thresholds for acceptance."""

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
    """Rounds in which the outcome of token k is known, the k-1 before it accepted; [prompts, N]."""
    successes: Counts
    """Of those, the rounds in which it was accepted, that is, in which the first k were."""

    def pooled(self, groups: PromptGroups) -> Tally:
        """Counts of each different prompt, which are the rows of its texts added up."""
        return Tally(*map(groups.pool, (self.rounds, self.committed, self.trials, self.successes)))

    @property
    def survival(self) -> tuple[float | None, ...]:
        """Share of all rounds whose first k tokens were all accepted, of all prompts; [N]."""
        return _ratios(self.successes.sum(0), np.full(self.successes.shape[1], self.rounds.sum()))

    @property
    def histogram(self) -> Counts:
        """Rounds with exactly k accepted tokens, of all prompts; [N + 1]."""
        at_least = np.array([self.rounds.sum(), *self.successes.sum(0), 0.0])
        # Rounding of expected counts must not leave a negative one.
        exactly: Counts = np.maximum(at_least[:-1] - at_least[1:], 0.0)
        return exactly


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
    """Leading drafted tokens whose outcome is known: accepted ones and the first rejected one."""
    if round_.stopped_early:
        return round_.accepted
    return min(round_.accepted + 1, len(round_.proposed_ids))


def measure_acceptance(
    results: Sequence[DecodeResult],
    prompt_ids: Sequence[str],
    settings: AcceptanceSettings,
    *,
    groups: PromptGroups,
    mass_outside: float | None,
) -> CheckResult:
    """The ``acceptance`` check. ``mass_outside`` is computed by the observer of the run."""
    tally = count_rounds(results, settings.num_tokens)
    prompts = zip(prompt_ids, groups.repeated, results, strict=True)
    return decide_acceptance(
        tally,
        settings,
        groups,
        drafted=_drafted(results),
        accepted_length_by_num_speculative_tokens=_shorter_lengths(tally.survival),
        mass_outside_draft_vocabulary=mass_outside,
        prompts=tuple(
            PromptRounds(
                id=prompt_id,
                same_prompt_as=first,
                accepted_per_round=tuple(r.accepted for r in result.rounds),
            )
            for prompt_id, first, result in prompts
        ),
    )


def decide_acceptance(
    tally: Tally, settings: AcceptanceSettings, groups: PromptGroups, **numbers: Any
) -> CheckResult:
    """The ``acceptance`` check on counts, real or expected.

    Its intervals rest on different prompts. ``numbers`` are the fields of ``AcceptanceNumbers``
    that do not follow from the tally.
    """
    rounds, trials = float(tally.rounds.sum()), tally.trials.sum(0)
    length = float(tally.committed.sum() / rounds) if rounds else None
    by_prompt = tally.pooled(groups)
    interval = ratio_interval95(by_prompt.committed, by_prompt.rounds, settings.seed)
    conditional = _ratios(tally.successes.sum(0), trials)
    conditional_intervals = tuple(
        ratio_interval95(by_prompt.successes[:, k], by_prompt.trials[:, k], settings.seed)
        for k in range(settings.num_tokens)
    )
    verdict, reason, needed = _verdict(
        settings, length, interval, conditional, conditional_intervals, groups.different
    )
    threshold = settings.min_accepted_length
    described = AcceptanceNumbers(
        accepted_length=length,
        interval95=interval,
        threshold=USELESS_BELOW if threshold is None else threshold,
        rounds=to_count(rounds),
        committed=to_count(tally.committed.sum()),
        accepted=to_count(tally.successes.sum()),
        acceptance_by_position=conditional,
        acceptance_interval95=conditional_intervals,
        survival_by_position=tally.survival,
        histogram=tuple(map(to_count, tally.histogram)),
        prompts_needed=needed,
        warnings=(*groups.warnings, *_warnings(conditional, trials)),
        **numbers,
    )
    return CheckResult(id="acceptance", verdict=verdict, reason=reason, numbers=described)


def to_count(value: float) -> int | float:
    """A whole number as an int, so that reports on real runs hold no fractions."""
    return int(value) if float(value).is_integer() else float(value)


def _verdict(
    settings: AcceptanceSettings,
    length: float | None,
    interval: Interval | None,
    conditional: Sequence[float | None],
    conditional_intervals: Sequence[Interval | None],
    prompts: int,
) -> tuple[Verdict, str, int | None]:
    """Verdict, reason, and how many prompts would decide an undecided accepted length."""
    if length is None or all(value is None for value in conditional):
        return "inconclusive", "no token was drafted, so there is nothing to accept", None
    verdict, reason, needed = _decide_length(settings, length, interval, prompts)
    for position, threshold in enumerate(settings.min_acceptance):
        value, bounds = conditional[position], conditional_intervals[position]
        at_position = "inconclusive" if value is None else decide(bounds, threshold)
        if at_position == "pass" or verdict == "fail":
            continue
        words = "below" if at_position == "fail" else "not decidedly at"
        reason = (
            f"acceptance at position {position + 1} is {_number(value)} "
            f"{_bounds(bounds)}, {words} {threshold:g}"
        )
        verdict = at_position
    return verdict, reason, needed


def _decide_length(
    settings: AcceptanceSettings, length: float, interval: Interval | None, prompts: int
) -> tuple[Verdict, str, int | None]:
    said = f"accepted length {length:.3f} {_bounds(interval)}, bonus included"
    threshold = settings.min_accepted_length
    if threshold is None:
        if length < USELESS_BELOW:
            return "fail", f"{said}, is below {USELESS_BELOW}: the draft only costs time", None
        return "pass", f"{said}; no threshold was given", None
    verdict = decide(interval, threshold)
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


def _shorter_lengths(survival: Sequence[float | None]) -> tuple[float | None, ...]:
    """1 + the sum of survival up to n, for every n (ignoring bonuses that early stops prevent)."""
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


def _check(context: CheckContext) -> CheckResult:
    if context.given_texts:
        from dspark_convert.checks.agreement import check_agreement

        assert context.trace is not None, "given texts are those of a trace"
        return check_agreement(
            context.draft,
            context.trace,
            context.replay_options,
            seed=context.options.seed,
            on_progress=context.on_progress,
        )
    return context.run.check_acceptance(context.settle_acceptance())


ACCEPTANCE = Check(
    id="acceptance",
    title="How many tokens does a round commit?",
    looks_at="A decode run over the prompts, or a replay of a trace (--trace), which computes what "
    "such runs yield on average, given their texts. Accepted length is committed tokens per round, "
    "bonus token included, pooled over prompts; the prefill's token belongs to no round. "
    "Acceptance at position k is conditional on the k-1 tokens before it; survival is the share of "
    "all rounds whose first k tokens are all accepted, which engines report as the per-position "
    "acceptance rate. The interval is a bootstrap over prompts, in which repetitions of a prompt "
    "count once.",
    fails_when="The interval lies below --min-accepted-length or --min-acceptance; without a "
    "threshold, the accepted length is below 1.1, where a draft only costs time. If the interval "
    "contains the threshold, the check is inconclusive and says how many prompts would decide.",
    what_to_do="Accepted lengths near 1 usually mean a misread draft: wrong layout, "
    "vocabulary table or target layers. `dspark-verify diagnose` tries the other readings, --worst "
    "N shows the texts, and --source compares with the original.",
    needs=DRAFTING,
    run=_check,
)
