"""Why does a draft draft badly: every reading of it on the same anchors, and which one is better.

The sharpest statistic is the overlap sum_v min(p, q) of the first drafted token: it uses the whole
distribution at every anchor instead of one accepted or rejected token. What concerns only later
tokens shows in the draft tokens that a round from each anchor accepts. Both are compared in pairs.
On long traces a sample of the anchors rules out most readings first (see ``screening``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dspark_convert import __version__
from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.schemas.diagnosis import DecisionRule, Diagnosis, HypothesisResult
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.verification.hypotheses import HYPOTHESES, NotApplicableError
from dspark_convert.verification.judgement import (
    Judge,
    Trial,
    best_of_each,
    decision_rule,
    drafts_badly,
)
from dspark_convert.verification.paired import Scores, score_readings
from dspark_convert.verification.screening import find_stride, screen
from dspark_convert.verification.suspect import Subject, Suspect

Progress = Callable[[str, int, int], None]


def diagnose(
    suspect: Suspect,
    decode: DecodeOptions,
    *,
    seed: int = 0,
    steps: ReplaySteps = PLAIN,
    on_progress: Progress = lambda *news: None,
) -> Diagnosis:
    """Try every reading of a draft on recorded texts.

    ``steps`` are those of ``ReplayOptions``. ``on_progress`` hears of every text that is done, once
    while "diagnosing", and before that while "screening" where the trace is long.

    Raises:
        UsageError: ``diagnose-text-given``; options that the draft cannot serve (see
            ``replay_sequence``).
        TraceError: a text cannot be read.
    """
    subject = suspect.subject
    if subject is None:
        return _conclude(suspect, suspect.static, decision_rule(0), None, anchors=0, seed=seed)
    header = subject.around.header
    _require_own_texts(header)
    trials, refused = plan_trials(subject)

    def score(chosen: Sequence[Trial], doing: str, stride: int = 1) -> list[Scores]:
        return score_readings(
            [trial.reading for trial in chosen],
            subject.texts,
            header,
            decode,
            stride=stride,
            steps=steps,
            on_text=lambda done: on_progress(doing, done, len(header.sequences)),
        )

    statistics = 1 if header.top_temperature is None else 2
    rule = decision_rule((len(trials) - 1) * statistics)
    ruled_out: list[HypothesisResult] = []
    left, stride = trials, find_stride(header, decode)
    if stride > 1:
        left, ruled_out = screen(trials, score(trials, "screening", stride), rule, seed)
    declared, *others = score(left, "diagnosing")
    judge = Judge(declared, rule, seed)
    compared = [judge.compare(*both) for both in zip(left[1:], others, strict=True)]
    results = [judge.declared(left[0]), *best_of_each([*compared, *ruled_out]), *refused]
    anchors = int(declared.anchors.sum())
    return _conclude(suspect, results, rule, steps, anchors=anchors, seed=seed)


def plan_trials(subject: Subject) -> tuple[list[Trial], list[HypothesisResult]]:
    """Readings to try, the declared one first; and hypotheses that cannot be, with the reason."""
    trials, refused = [], []
    for hypothesis in HYPOTHESES:
        try:
            readings = hypothesis.read(subject.draft, subject.around)
        except NotApplicableError as error:
            refused.append(
                HypothesisResult(id=hypothesis.id, status="not-applicable", reason=str(error))
            )
            continue
        trials += [Trial(hypothesis, reading) for reading in readings]
    return trials, refused


def _conclude(
    suspect: Suspect,
    results: Sequence[HypothesisResult],
    rule: DecisionRule,
    steps: ReplaySteps | None,
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
            "engine": steps and steps.name,
            "engine_reason": steps and steps.reason,
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
    better = [result for result in results if result.status == "hint"]
    hints = [result for result in better if not drafts_badly(result.accepted_length)]
    if hints:
        reason = (
            f"{hints[0].id} looks better, but not beyond what {rule.comparisons} comparisons "
            "show by chance; record more texts"
        )
        return "undecided", "as-declared", reason
    if declared.accepted_length is None:
        return "undecided", "as-declared", "no round was replayed: the texts end at once"
    if drafts_badly(declared.accepted_length):
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
