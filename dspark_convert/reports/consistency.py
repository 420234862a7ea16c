"""Whether the numbers of a report agree with each other and with its verdicts.

Thresholds, comparisons and model cards take a report at its word, so a report that was edited,
truncated or assembled from two must not be read. What our writer derives from other numbers is
derived here again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from dspark_convert.checkpoint.fingerprint import choose_method
from dspark_convert.errors import Findings, ReportError
from dspark_convert.schemas.gate_outcome import RuleVerdict, worst
from dspark_convert.schemas.numbers import (
    AcceptanceNumbers,
    AgreementNumbers,
    ConfidenceNumbers,
    LosslessGreedyNumbers,
    LosslessSamplingNumbers,
    PairingNumbers,
    ParityNumbers,
    PromptRounds,
    StructureNumbers,
)
from dspark_convert.schemas.report import CheckResult, VerifyReport

_MAX_FINDINGS = 20
_TOLERANCE = 1e-6
"""Relative above 1, absolute below: sums of expected counts, in another order."""

_NEED_A_TARGET = (
    PairingNumbers,
    LosslessGreedyNumbers,
    LosslessSamplingNumbers,
    AcceptanceNumbers,
    AgreementNumbers,
    ConfidenceNumbers,
)

Contradiction = tuple[str, str]
"""Key and what is wrong there."""


def require_consistent(report: VerifyReport, name: str) -> None:
    """Refuse a report that contradicts itself; ``name`` says which one it is, or its file.

    Raises ``ReportError`` (``report-inconsistent``).
    """
    findings = Findings()
    for key, problem in islice(find_contradictions(report), _MAX_FINDINGS):
        findings.error(
            "report-inconsistent",
            f"the report contradicts itself: {problem}",
            file=name,
            key=key,
            hint="write it anew with dspark-verify check --report",
        )
    findings.raise_errors(ReportError)


def find_contradictions(report: VerifyReport) -> Iterator[Contradiction]:
    """Every contradiction in a report, with the key where it shows."""
    yield from _checks(report.checks)
    verdicts = {check.verdict for check in report.checks}
    decided = {"fail", "inconclusive", "pass"} & verdicts
    own: RuleVerdict = "pass" if decided == {"pass"} else "inconclusive"
    own = "fail" if "fail" in decided else own
    gated = worst((own, report.gate.verdict)) if report.gate else own
    if report.verdict != gated:
        yield "verdict", f"it is {report.verdict}, but the checks and rules give {gated}"
    if report.target is None and any(type(c.numbers) in _NEED_A_TARGET for c in report.checks):
        yield "target", "there is none, but there are results that need one"
    named = {"draft": report.draft.weights, "target": report.target and report.target.weights}
    for side, weights in named.items():
        if weights and weights.method != choose_method(weights.nbytes):
            yield f"{side}.weights.method", f"{weights.nbytes} bytes are not read like that"
    for index, check in enumerate(report.checks):
        for key, problem in _check(check, report):
            yield f"checks.{index}.{key}", problem


def _checks(checks: Iterable[CheckResult]) -> Iterator[Contradiction]:
    counts = Counter(check.id for check in checks)
    if not counts:
        yield "checks", "there are none"
    for check_id, count in counts.items():
        if count > 1:
            yield "checks", f"there are {count} results of {check_id}"


def _check(check: CheckResult, report: VerifyReport) -> Iterator[Contradiction]:
    numbers = check.numbers
    if check.verdict == "skipped":
        if numbers is not None:
            yield "numbers", "the check was skipped, but has numbers"
        return
    if numbers is None:
        if check.verdict == "pass":
            yield "numbers", "the check passed, but has no numbers"
        return
    if isinstance(numbers, AcceptanceNumbers):
        yield from _acceptance(numbers)
        yield from _threshold(check, numbers, report)
    elif isinstance(numbers, ConfidenceNumbers) and numbers.accepted > numbers.tokens + _TOLERANCE:
        yield "numbers.accepted", "more tokens were accepted than drafted"
    for kind, why in _FAILED.items():
        if check.verdict == "pass" and isinstance(numbers, kind) and (problem := why(numbers)):
            yield "verdict", f"it is pass, but {problem}"


def _structure(numbers: StructureNumbers) -> str | None:
    return f"there are {numbers.errors} errors" if numbers.errors else None


def _pairing(numbers: PairingNumbers) -> str | None:
    if numbers.findings:
        return "draft and target do not fit"
    return "the tokenizers differ" if numbers.tokenizer == "different" else None


def _parity(numbers: ParityNumbers) -> str | None:
    return f"{', '.join(numbers.different)} differ" if numbers.different else None


def _lossless_greedy(numbers: LosslessGreedyNumbers) -> str | None:
    if not all(difference.tie for difference in numbers.differences):
        return "outputs differ that are not ties"
    if numbers.identical + len(numbers.differences) != numbers.prompts:
        return "some outputs are neither identical nor listed as different"
    return None


def _lossless_sampling(numbers: LosslessSamplingNumbers) -> str | None:
    if numbers.impossible:
        return "there are draws of probability zero"
    unlikely = numbers.p_value is not None and numbers.p_value < numbers.significance
    return "the draws do not follow the law of the target" if unlikely else None


_FAILED: Mapping[type, Callable[..., str | None]] = {
    StructureNumbers: _structure,
    PairingNumbers: _pairing,
    ParityNumbers: _parity,
    LosslessGreedyNumbers: _lossless_greedy,
    LosslessSamplingNumbers: _lossless_sampling,
}
"""Why numbers of each kind cannot be those of a check that passed; None: they can."""


def _acceptance(numbers: AcceptanceNumbers) -> Iterator[Contradiction]:
    positions = len(numbers.acceptance_by_position)
    for name, length in (
        ("acceptance_interval95", positions),
        ("survival_by_position", positions),
        ("accepted_length_by_num_speculative_tokens", positions),
        ("histogram", positions + 1),
    ):
        if len(getattr(numbers, name)) != length:
            yield f"numbers.{name}", f"it must have {length} entries"
            return
    yield from _intervals(numbers)
    yield from _counts(numbers)
    yield from _totals_of_prompts(numbers)
    for name in ("acceptance_by_position", "survival_by_position"):
        if any(not -_TOLERANCE <= value <= 1 + _TOLERANCE for value in _known(numbers, name)):
            yield f"numbers.{name}", "a share lies between 0 and 1"


def _intervals(numbers: AcceptanceNumbers) -> Iterator[Contradiction]:
    """An interval rests on two different prompts that have a round, or on more."""
    speaking = set()
    for index, prompt in enumerate(numbers.prompts):
        first = index if prompt.same_prompt_as is None else prompt.same_prompt_as
        earlier = numbers.prompts[first].same_prompt_as if first < index else None
        if first > index or prompt.same_prompt_as == index or earlier is not None:
            key = f"numbers.prompts.{index}.same_prompt_as"
            yield key, "it is not the index of an earlier prompt that is the first of its kind"
        if len(prompt.accepted_per_round) if isinstance(prompt, PromptRounds) else prompt.rounds:
            speaking.add(first)
    if len(speaking) > 1:
        return
    if numbers.interval95 is not None:
        yield "numbers.interval95", "less than two different prompts give no interval"
    if any(interval is not None for interval in numbers.acceptance_interval95):
        yield "numbers.acceptance_interval95", "less than two different prompts give no interval"


def _counts(numbers: AcceptanceNumbers) -> Iterator[Contradiction]:
    """Rounds, accepted tokens and survival follow from the histogram, the length from counts."""
    rounds, histogram = numbers.rounds, numbers.histogram
    derived = {"rounds": sum(histogram), "accepted": sum(k * n for k, n in enumerate(histogram))}
    for name, value in derived.items():
        if not _same(getattr(numbers, name), value):
            yield f"numbers.{name}", f"the histogram gives {value:g}"
    if (numbers.accepted_length is None) != (rounds == 0):
        yield "numbers.accepted_length", f"there are {rounds:g} rounds"
    if numbers.accepted_length is not None and rounds:
        length = numbers.committed / rounds
        if not _same(numbers.accepted_length, length):
            yield "numbers.accepted_length", f"committed tokens and rounds give {length:g}"
    for k, survival in enumerate(numbers.survival_by_position, start=1):
        if survival is not None and not _same(survival * rounds, sum(histogram[k:])):
            yield f"numbers.survival_by_position.{k - 1}", "the histogram gives another value"


def _totals_of_prompts(numbers: AcceptanceNumbers) -> Iterator[Contradiction]:
    """The rounds of all prompts together are the rounds; the same for tokens, where known."""
    rounds = least = most = 0.0
    for prompt in numbers.prompts:
        if isinstance(prompt, PromptRounds):
            accepted = sum(prompt.accepted_per_round)
            rounds += len(prompt.accepted_per_round)
            least, most = least + accepted, most + accepted + len(prompt.accepted_per_round)
        else:
            rounds += prompt.rounds
            least, most = least + prompt.committed, most + prompt.committed
    if not _same(rounds, numbers.rounds):
        yield "numbers.rounds", f"those of the prompts are {rounds:g}"
    slack = _TOLERANCE * max(1.0, most)
    if not least - slack <= numbers.committed <= most + slack:
        yield "numbers.committed", f"the prompts give {least:g} to {most:g}"


def _threshold(
    check: CheckResult, numbers: AcceptanceNumbers, report: VerifyReport
) -> Iterator[Contradiction]:
    """An accepted length passes by the whole interval; without a threshold, by its own value."""
    if check.verdict != "pass":
        return
    reached = numbers.accepted_length
    if report.settings.min_accepted_length is not None:
        reached = numbers.interval95[0] if numbers.interval95 else None
    if reached is None or reached < numbers.threshold:
        yield "verdict", f"it is pass, but {numbers.threshold:g} is not reached"


def _known(numbers: AcceptanceNumbers, name: str) -> list[float]:
    return [value for value in getattr(numbers, name) if value is not None]


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
