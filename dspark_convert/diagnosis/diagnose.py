"""Why a draft drafts badly: every reading of it on the same anchors, and which one is better.

The sharpest statistic is the overlap sum_v min(p, q) of the first drafted token: it uses the whole
distribution at every anchor instead of one accepted or rejected token. What affects only later
tokens shows in the draft tokens that a round from each anchor accepts. Comparisons are paired.
On long traces a sample of the anchors settles most readings first (see ``screening``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dspark_convert import __version__
from dspark_convert.diagnosis.decision import (
    Judge,
    Trial,
    best_of_each,
    decision_rule,
    drafts_badly,
    total_gain,
)
from dspark_convert.diagnosis.readings import HYPOTHESES, NotApplicableError
from dspark_convert.diagnosis.scores import Scores, score_readings
from dspark_convert.diagnosis.screening import Sample, Screening, choose_sample, screen
from dspark_convert.diagnosis.subject import DiagnosisInput, ReplayInput
from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime.records import DecodeOptions, Progress, no_progress
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.schemas.diagnosis import (
    DecisionRule,
    Diagnosis,
    DiagnosisVerdict,
    HypothesisResult,
)
from dspark_convert.schemas.trace import TraceHeader


def diagnose(
    inputs: DiagnosisInput,
    decode: DecodeOptions,
    *,
    seed: int = 0,
    steps: ReplaySteps = PLAIN,
    on_progress: Progress = no_progress,
) -> Diagnosis:
    """Try every reading of a draft on recorded texts.

    ``steps`` are those of ``ReplayOptions``. ``on_progress`` is called after every text with the
    stage, the number of texts done and their total. The stage is "diagnosing"; on a long trace
    "screening" comes before it, and rarely "diagnosing again" after it.

    Raises:
        UsageError: ``diagnose-text-given``; options that the draft cannot serve (see
            ``replay_sequence``).
        TraceError: a text cannot be read.
    """
    replay_input = inputs.replay_input
    if replay_input is None:
        return _conclude(
            inputs,
            inputs.static,
            decision_rule(0),
            None,
            judged_texts=0,
            seed=seed,
        )
    header = replay_input.facts.header
    _require_own_texts(header)
    trials, refused = plan_trials(replay_input)
    run = _Run(replay_input, decode, steps, on_progress)
    statistics = 1 if header.top_temperature is None else 2
    rule = decision_rule((len(trials) - 1) * statistics)
    sample = choose_sample(header, decode)
    screening = Screening(trials)
    if sample is not None:
        screening = screen(trials, run.score(trials, "screening", sample), rule, seed)
    judge, results = run.decide(screening.left, rule, seed)
    outdone = [result for _, result in screening.outdone]
    if outdone and results[screening.best - 1].status != "cause":
        # What outdid them has failed, so the sample was misleading.
        again = [trials[0], *(trial for trial, _ in screening.outdone)]
        _, outdone = run.decide(again, rule, seed, doing="diagnosing again")
    tried = best_of_each([*results, *outdone, *screening.rejected])
    results = [judge.declared(trials[0]), *tried, *refused]
    return _conclude(
        replace(inputs, findings=(*inputs.findings, *_note_repetitions(judge, header))),
        results,
        rule,
        steps,
        judged_texts=judge.texts,
        seed=seed,
    )


@dataclass(frozen=True)
class _Run:
    """What trials are replayed on."""

    replay_input: ReplayInput
    decode: DecodeOptions
    steps: ReplaySteps
    on_progress: Progress

    def score(self, trials: Sequence[Trial], doing: str, sample: Sample | None) -> list[Scores]:
        header, texts = self.replay_input.facts.header, self.replay_input.texts
        chosen = range(len(texts)) if sample is None else sample.texts
        return score_readings(
            [trial.reading for trial in trials],
            (texts[index] for index in chosen),
            header,
            self.decode,
            stride=1 if sample is None else sample.stride,
            steps=self.steps,
            on_text=lambda done: self.on_progress(doing, done, len(chosen)),
        )

    def decide(
        self, trials: Sequence[Trial], rule: DecisionRule, seed: int, *, doing: str = "diagnosing"
    ) -> tuple[Judge, list[HypothesisResult]]:
        """The judge of all anchors, and the results of all trials but the first, which is the
        declared one.
        """
        declared, *others = self.score(trials, doing, None)
        judge = Judge(declared, rule, seed)
        results = [
            judge.decide(trial, own, judge.compare(own))
            for trial, own in zip(trials[1:], others, strict=True)
        ]
        return judge, results


def plan_trials(replay_input: ReplayInput) -> tuple[list[Trial], list[HypothesisResult]]:
    """Readings to try, the declared one first; and hypotheses that cannot be tried, and why."""
    trials, refused = [], []
    for hypothesis in HYPOTHESES:
        try:
            readings = hypothesis.read(replay_input.draft, replay_input.facts)
        except NotApplicableError as error:
            refused.append(
                HypothesisResult(id=hypothesis.id, status="not-applicable", reason=str(error))
            )
            continue
        trials += [Trial(hypothesis, reading) for reading in readings]
    return trials, refused


def _conclude(
    inputs: DiagnosisInput,
    results: Sequence[HypothesisResult],
    rule: DecisionRule,
    steps: ReplaySteps | None,
    *,
    judged_texts: int,
    seed: int,
) -> Diagnosis:
    header = None if inputs.replay_input is None else inputs.replay_input.facts.header
    verdict, best, reason = _verdict(results, judged_texts, rule)
    ordered = sorted(results, key=lambda result: result.id != best)
    return Diagnosis(
        tool_version=__version__,
        verdict=verdict,
        best=best,
        reason=reason,
        draft=inputs.name,
        target=inputs.target,
        texts=0 if header is None else len(header.sequences),
        anchors=results[0].anchors or 0,
        temperature=None if header is None else header.sampling.temperature,
        overlap_temperature=None if header is None else header.top_temperature,
        engine=None if steps is None else steps.name,
        engine_reason=None if steps is None else steps.reason,
        seed=seed,
        decision=rule,
        hypotheses=tuple(ordered),
        findings=inputs.findings,
    )


def _verdict(
    results: Sequence[HypothesisResult], texts: int, rule: DecisionRule
) -> tuple[DiagnosisVerdict, str, str]:
    """Verdict, best reading and reason; ``texts`` counts prompts whose texts have an anchor."""
    causes = [result for result in results if result.status == "cause"]
    if causes:
        return "cause-found", causes[0].id, _why(causes, results, rule)
    declared = results[0]
    if declared.accepted_length is None:
        return "undecided", "as-declared", "no round was replayed: the texts end immediately"
    if texts < rule.min_texts:
        reason = f"{texts} texts have an anchor; {rule.min_texts} are needed"
        return "undecided", "as-declared", reason
    better = [result for result in results if result.status == "hint"]
    hints = [result for result in better if not drafts_badly(result.accepted_length)]
    if hints:
        reason = (
            f"{hints[0].id} looks better, but not beyond what {rule.comparisons} comparisons "
            "show by chance; record more texts"
        )
        return "undecided", "as-declared", reason
    if drafts_badly(declared.accepted_length):
        return "undecided", "as-declared", "it drafts badly, and no reading tried explains it"
    return "healthy", "as-declared", "nothing better found"


def _why(
    causes: Sequence[HypothesisResult], results: Sequence[HypothesisResult], rule: DecisionRule
) -> str:
    best = causes[0]
    parts = [_how_sure(best, rule)]
    if len(causes) > 1:
        parts.append(f"also better: {', '.join(cause.id for cause in causes[1:])}")
    hints = [result for result in results if result.status == "hint"]
    whole = [hint for hint in hints if hint.anchors == best.anchors]
    if unsure := [hint.id for hint in whole if total_gain(hint) > total_gain(best)]:
        parts.append(f"{', '.join(unsure)} may be better still; more texts would show it")
    if less := [hint.id for hint in hints if hint.anchors != best.anchors]:
        parts.append(f"set aside on a sample, where the gain is less: {', '.join(less)}")
    return "; ".join(parts)


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


def _note_repetitions(judge: Judge, header: TraceHeader) -> Iterator[Finding]:
    total = len(header.sequences)
    if repetitions := total - judge.prompts:
        yield Finding(
            code="prompts-repeated",
            severity="warning",
            message="prompts are repeated; each counts as one text",
            found=f"{repetitions} of {total} prompts are repetitions",
            hint="record a trace of different prompts",
        )


def _require_own_texts(header: TraceHeader) -> None:
    if header.text_origin != "target":
        raise UsageError(
            Finding(
                code="diagnose-text-given",
                message="the target did not write the texts of this trace, so acceptance on them "
                "is unknown",
                key="text_origin",
                expected="target",
                found=header.text_origin,
                hint="record a trace with dspark-verify record --neighbours, or give --target",
            )
        )
