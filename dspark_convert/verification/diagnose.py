"""Why does a draft draft badly: every reading of it on the same anchors, and which one is better.

The sharpest statistic is the overlap sum_v min(p, q) of the first drafted token: it uses the whole
distribution at every anchor instead of one accepted or rejected token. What concerns only later
tokens shows in the draft tokens that a round from each anchor accepts. Both are compared in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dspark_convert import __version__
from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.schemas.diagnosis import DecisionRule, Diagnosis, HypothesisResult
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.verification.acceptance import USELESS_BELOW
from dspark_convert.verification.expectation import Floats
from dspark_convert.verification.hypotheses import (
    HYPOTHESES,
    Hypothesis,
    NotApplicableError,
    Reading,
)
from dspark_convert.verification.paired import Resampler, Scores, score_readings
from dspark_convert.verification.suspect import Subject, Suspect

ERROR = 0.01
"""Of naming a wrong reading in one diagnosis; shared by all comparisons (Bonferroni)."""
MIN_OVERLAP_GAIN = 0.005
MIN_ACCEPTED_TOKENS_GAIN = 0.03
"""Gains below these are not worth a new checkpoint, however certain they are."""
MIN_TEXTS = 8
"""The bootstrap cannot be trusted with fewer."""

Progress = Callable[[str, int, int], None]


def diagnose(
    suspect: Suspect,
    decode: DecodeOptions,
    *,
    seed: int = 0,
    on_progress: Progress = lambda *news: None,
) -> Diagnosis:
    """Try every reading of a draft on recorded texts.

    Raises:
        UsageError: ``diagnose-text-given``; options that the draft cannot serve (see
            ``replay_sequence``).
        TraceError: a text cannot be read.
    """
    subject = suspect.subject
    if subject is None:
        return _conclude(suspect, suspect.static, _rule(0), anchors=0, seed=seed)
    header = subject.around.header
    _require_own_texts(header)
    trials, refused = _plan(subject)
    total = len(header.sequences)
    scores = score_readings(
        [trial.reading for trial in trials],
        subject.texts,
        header,
        decode,
        on_text=lambda done: on_progress("diagnosing", done, total),
    )
    statistics = 1 if header.top_temperature is None else 2
    rule = _rule((len(trials) - 1) * statistics)
    judge = _Judge(scores[0], rule, seed)
    compared = [
        judge.compare(trial, own) for trial, own in zip(trials[1:], scores[1:], strict=True)
    ]
    results = [judge.declared(trials[0]), *_best_of_each(compared), *refused]
    return _conclude(suspect, results, rule, anchors=int(scores[0].anchors.sum()), seed=seed)


@dataclass(frozen=True)
class _Trial:
    hypothesis: Hypothesis
    reading: Reading


def _plan(subject: Subject) -> tuple[list[_Trial], list[HypothesisResult]]:
    """Readings to try, the declared one first; and hypotheses that cannot be tried, with reason."""
    trials, refused = [], []
    for hypothesis in HYPOTHESES:
        try:
            readings = hypothesis.read(subject.draft, subject.around)
        except NotApplicableError as error:
            refused.append(
                HypothesisResult(id=hypothesis.id, status="not-applicable", reason=str(error))
            )
            continue
        trials += [_Trial(hypothesis, reading) for reading in readings]
    return trials, refused


def _rule(comparisons: int) -> DecisionRule:
    return DecisionRule(
        comparisons=comparisons,
        error=ERROR,
        level=1 - ERROR / max(comparisons, 1),
        min_overlap_gain=MIN_OVERLAP_GAIN,
        min_accepted_tokens_gain=MIN_ACCEPTED_TOKENS_GAIN,
        min_texts=MIN_TEXTS,
    )


@dataclass(frozen=True)
class _Difference:
    """One statistic of a reading less that of the declared one, per anchor."""

    mean: float
    interval95: tuple[float, float] | None
    decision: tuple[float, float] | None
    least: float

    @property
    def gains(self) -> bool:
        return self._above(self.decision)

    @property
    def hints(self) -> bool:
        return self._above(self.interval95)

    @property
    def loses(self) -> bool:
        return self.decision is not None and self.decision[1] < 0

    def _above(self, interval: tuple[float, float] | None) -> bool:
        return interval is not None and interval[0] > 0 and self.mean >= self.least


class _Judge:
    """Compares readings with the declared one."""

    def __init__(self, declared: Scores, rule: DecisionRule, seed: int) -> None:
        self.base, self.rule = declared, rule
        self.resampler = Resampler(len(declared.anchors), seed)
        self.enough = len(declared.anchors) >= rule.min_texts

    def declared(self, trial: _Trial) -> HypothesisResult:
        return HypothesisResult.model_validate(
            {
                "id": trial.hypothesis.id,
                "status": "declared",
                "reason": trial.hypothesis.looks_like,
                **self._levels(self.base),
            }
        )

    def compare(self, trial: _Trial, own: Scores) -> HypothesisResult:
        overlap = self._difference(own.overlap - self.base.overlap, MIN_OVERLAP_GAIN)
        tokens = self._difference(
            own.accepted_tokens - self.base.accepted_tokens, MIN_ACCEPTED_TOKENS_GAIN
        )
        both = (overlap, tokens)
        gains = any(part.gains for part in both) and not any(part.loses for part in both)
        hints = any(part.hints for part in both) and not any(part.loses for part in both)
        status = "cause" if gains and self.enough else "hint" if hints else "rejected"
        return HypothesisResult.model_validate(
            {
                "id": trial.hypothesis.id,
                "status": status,
                "reason": trial.hypothesis.looks_like,
                **self._levels(own),
                "difference": None if np.isnan(overlap.mean) else overlap.mean,
                "difference_interval95": overlap.interval95,
                "difference_decision_interval": overlap.decision,
                "accepted_tokens_difference": tokens.mean,
                "accepted_tokens_interval95": tokens.interval95,
                "accepted_tokens_decision_interval": tokens.decision,
                "fix": trial.reading.fix,
            }
        )

    def _difference(self, sums: Floats, least: float) -> _Difference:
        anchors = self.base.anchors
        return _Difference(
            mean=float(sums.sum() / max(anchors.sum(), 1.0)),
            interval95=self.resampler.interval(sums, anchors, 0.95),
            decision=self.resampler.interval(sums, anchors, self.rule.level),
            least=least,
        )

    def _levels(self, own: Scores) -> dict[str, object]:
        anchors = max(float(own.anchors.sum()), 1.0)
        known = not np.isnan(own.overlap).any()
        return {
            "accepted_length": own.accepted_length,
            "interval95": self.resampler.interval(own.committed, own.rounds, 0.95),
            "overlap": float(own.overlap.sum()) / anchors if known else None,
            "overlap_at_most": float(own.overlap_at_most.sum()) / anchors if known else None,
            "accepted_tokens": float(own.accepted_tokens.sum()) / anchors,
        }


def _best_of_each(results: Sequence[HypothesisResult]) -> list[HypothesisResult]:
    """Of several readings under one id the best; then all by status and gain."""
    best: dict[str, HypothesisResult] = {}
    for result in sorted(results, key=_rank):
        best.setdefault(result.id, result)
    return list(best.values())


_STATUSES = ("cause", "hint", "rejected")


def _rank(result: HypothesisResult) -> tuple[int, float]:
    return _STATUSES.index(result.status), -_gain(result)


def _gain(result: HypothesisResult) -> float:
    """Both differences in units of their least gain that counts."""
    overlap, tokens = result.difference or 0.0, result.accepted_tokens_difference or 0.0
    return overlap / MIN_OVERLAP_GAIN + tokens / MIN_ACCEPTED_TOKENS_GAIN


def _conclude(
    suspect: Suspect,
    results: Sequence[HypothesisResult],
    rule: DecisionRule,
    *,
    anchors: int,
    seed: int,
) -> Diagnosis:
    header = None if suspect.subject is None else suspect.subject.around.header
    texts = 0 if header is None else len(header.sequences)
    verdict, best, reason = _verdict(results, texts, rule)
    ordered = sorted(results, key=lambda result: result.id != best)
    return Diagnosis.model_validate(
        {
            "tool_version": __version__,
            "verdict": verdict,
            "best": best,
            "reason": reason,
            "draft": suspect.name,
            "target": suspect.target,
            "texts": texts,
            "anchors": anchors,
            "temperature": header and header.sampling.temperature,
            "overlap_temperature": header and header.top_temperature,
            "seed": seed,
            "decision": rule,
            "hypotheses": ordered,
            "findings": suspect.findings,
        }
    )


def _verdict(
    results: Sequence[HypothesisResult], texts: int, rule: DecisionRule
) -> tuple[str, str, str]:
    """Verdict, best reading and why."""
    causes = [result for result in results if result.status == "cause"]
    if causes:
        others = ", ".join(cause.id for cause in causes[1:])
        reason = _how_sure(causes[0], rule) + (f"; also better: {others}" if others else "")
        return "cause-found", causes[0].id, reason
    declared = results[0]
    if texts < rule.min_texts:
        return "undecided", "as-declared", f"{texts} texts; {rule.min_texts} are needed"
    hints = [result for result in results if result.status == "hint"]
    if hints:
        reason = (
            f"{hints[0].id} looks better, but not beyond what {rule.comparisons} comparisons "
            "show by chance; record more texts"
        )
        return "undecided", "as-declared", reason
    length = declared.accepted_length
    if length is None or length < USELESS_BELOW:
        return "undecided", "as-declared", "it drafts badly, and no reading tried explains it"
    return "healthy", "as-declared", "nothing better found"


def _how_sure(cause: HypothesisResult, rule: DecisionRule) -> str:
    parts = []
    for what, mean, interval in (
        ("overlap", cause.difference, cause.difference_decision_interval),
        (
            "accepted tokens",
            cause.accepted_tokens_difference,
            cause.accepted_tokens_decision_interval,
        ),
    ):
        if mean is not None and interval is not None:
            parts.append(f"{what} {mean:+.3f} ({interval[0]:+.3f} to {interval[1]:+.3f})")
    if not parts:
        return cause.reason
    return f"{', '.join(parts)} per anchor, at level {rule.level:.2%} each"


def _require_own_texts(header: TraceHeader) -> None:
    if header.text_origin != "target":
        raise UsageError(
            Finding(
                code="diagnose-text-given",
                message="the target did not write the texts of this trace, so acceptance on them "
                "is not known",
                key="text_origin",
                expected="target",
                found=header.text_origin,
                hint="record a trace with dspark-verify record --neighbours, or give --target",
            )
        )
