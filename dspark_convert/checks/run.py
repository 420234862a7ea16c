"""Run every check of a draft and put the results into one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers

from dspark_convert import __version__
from dspark_convert.checkpoint.names import display_name
from dspark_convert.checks.acceptance import measure_acceptance
from dspark_convert.checks.builder import ReportBuilder
from dspark_convert.checks.confidence import check_confidence
from dspark_convert.checks.decode_run import DecodeRun
from dspark_convert.checks.example import mark_up
from dspark_convert.checks.options import Progress, VerifyOptions
from dspark_convert.checks.pairing import (
    check_pairing,
    check_trace_pairing,
)
from dspark_convert.checks.parity import check_parity
from dspark_convert.checks.replay_run import (
    ReplayRun,
    check_agreement,
    follow_trace,
    load_replayed_draft,
)
from dspark_convert.checks.worst import mark_decoded, worst_texts
from dspark_convert.conversion.inspection import describe
from dspark_convert.formats.read import Examination, examine
from dspark_convert.formats.target import TargetWeights, find_target_weights
from dspark_convert.replay.replay import ReplayOptions
from dspark_convert.runtime import (
    load_draft,
    load_target,
)
from dspark_convert.runtime.drafting import count_tokens
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.schemas.report import (
    CheckId,
    CheckResult,
    StructureNumbers,
    VerifiedDraft,
    VerifiedTarget,
    VerifyReport,
    VerifySettings,
)
from dspark_convert.traces.prompts import BUNDLED, encode_prompts, read_prompts
from dspark_convert.traces.tokenizer import load_tokenizer
from dspark_convert.traces.trace import Trace, open_trace

__all__ = ["VerifyOptions", "overall", "verify"]

_DECODED: tuple[CheckId, ...] = (
    "lossless-greedy",
    "lossless-sampling",
    "acceptance",
    "confidence",
)


def verify(options: VerifyOptions, *, on_progress: Progress = lambda *news: None) -> VerifyReport:
    """Run the checks.

    Raises:
        UsageError: options that cannot be meant, or neither target, trace nor source.
        CheckpointError, DialectError, DraftError, PromptError, TraceError: an input cannot be read.
    """
    options.check()
    device, dtype = options.machine.torch_device(), options.machine.torch_dtype()
    trace = None if options.trace is None else open_trace(options.trace)
    if trace is not None:
        decode = replace(options.decode, stop_token_ids=options.stop_token_ids or frozenset())
        options = replace(options, decode=follow_trace(trace.header, decode, options.stated))
    examination = examine(options.draft)
    report = ReportBuilder()
    structure = report.add(lambda: _check_structure(examination))
    if structure.verdict == "fail":
        report.skip(("pairing", "parity", *_DECODED), "the structure is broken")
    else:
        if trace is None:
            fits = _run_pairing(options, examination, report)
        else:
            fits = _run_trace_pairing(trace, examination, report)
        _run_parity(options, report, device)
        if options.target is None and trace is None:
            report.skip(_DECODED, "no target was given")
        elif not fits:
            report.skip(_DECODED, "the draft does not fit the target")
        elif trace is not None:
            _run_replay(options, trace, report, device, dtype, on_progress)
        else:
            _run_decoding(options, report, device, dtype, on_progress)
    return _finish(options, examination, report, device)


def overall(results: Sequence[CheckResult]) -> Any:
    """Any failure fails; else anything inconclusive, or nothing decided, is inconclusive."""
    verdicts = {result.verdict for result in results}
    if "fail" in verdicts:
        return "fail"
    return "inconclusive" if "inconclusive" in verdicts or "pass" not in verdicts else "pass"


def _check_structure(examination: Examination) -> CheckResult:
    findings = examination.findings
    errors = findings.of("error")
    numbers = StructureNumbers(
        errors=len(errors),
        warnings=len(findings.of("warning")),
        notes=len(findings.of("note")),
        findings=tuple(findings),
    )
    reason = str(errors[0]) if errors else "complete and consistent"
    if len(errors) > 1:
        reason += f" (and {len(errors) - 1} more)"
    verdict = "fail" if errors else "pass"
    return CheckResult.model_validate(
        {"id": "structure", "verdict": verdict, "reason": reason, "numbers": numbers}
    )


def _run_pairing(options: VerifyOptions, examination: Examination, report: ReportBuilder) -> bool:
    if options.target is None:
        report.skip(("pairing",), "no target was given")
        return False
    weights = find_target_weights(options.target)
    tokenizer = load_tokenizer(options.target, trust_remote_code=options.machine.trust_remote_code)
    config = examination.config
    assert config is not None, "the structure passed"
    result = report.add(lambda: check_pairing(config, options.draft, weights, tokenizer))
    report.target = _identify_target(weights)
    return result.verdict == "pass"


def _run_trace_pairing(trace: Trace, examination: Examination, report: ReportBuilder) -> bool:
    config = examination.config
    assert config is not None, "the structure passed"
    result = report.add(lambda: check_trace_pairing(config, trace.header))
    recorded = trace.header.target
    report.target = VerifiedTarget(
        name=recorded.name,
        config_sha256=recorded.config_sha256,
        architecture="not recorded",
        dtype=recorded.dtype,
        device="not loaded",
    )
    return result.verdict == "pass"


def _run_parity(options: VerifyOptions, report: ReportBuilder, device: torch.device) -> None:
    if options.source is None:
        report.skip(("parity",), "no --source was given")
        return
    original, target = options.source, options.target or options.target_weights
    report.add(
        lambda: check_parity(
            original, options.draft, target=target, device=device, seed=options.seed
        )
    )


def _run_decoding(
    options: VerifyOptions,
    report: ReportBuilder,
    device: torch.device,
    dtype: torch.dtype | None,
    on_progress: Progress,
) -> None:
    assert options.target is not None
    trust = options.machine.trust_remote_code
    tokenizer = load_tokenizer(options.target, trust_remote_code=trust)
    prompts = read_prompts(options.prompts)
    token_ids = encode_prompts(prompts, tokenizer)
    target = load_target(options.target, device=device, dtype=dtype, trust_remote_code=trust)
    draft = load_draft(options.draft, device=device, dtype=dtype, target=options.target)
    run = DecodeRun(options, target, draft, token_ids, on_progress)
    names = [prompt.id for prompt in prompts]
    report.engine, report.engine_reason = run.engine.name, run.engine.reason
    report.num_prompts = len(prompts)
    report.example = mark_up(names[0], run.results[0], tokenizer)
    report.stop_token_ids = tuple(sorted(run.options.stop_token_ids))
    report.add(lambda: run.check_greedy(names))
    if options.decode.sampling.greedy:
        report.skip(("lossless-sampling",), "it needs a temperature above 0")
    else:
        report.add(run.check_sampling)
    report.add(
        lambda: measure_acceptance(
            run.results, names, run.settings, mass_outside=run.observer.mass_outside
        )
    )
    marks = [mark_decoded(name, result) for name, result in zip(names, run.results, strict=True)]
    report.worst = worst_texts(marks, options.worst, tokenizer)
    if draft.confidence_head is None:
        report.skip(("confidence",), "the draft has no confidence head")
    else:
        report.add(lambda: check_confidence(run.results, run.num_tokens))
    if report.target is not None:
        dtype_name = str(target.model.dtype).removeprefix("torch.")
        report.target = report.target.model_copy(
            update={"dtype": dtype_name, "device": str(device)}
        )


def _run_replay(
    options: VerifyOptions,
    trace: Trace,
    report: ReportBuilder,
    device: torch.device,
    dtype: torch.dtype | None,
    on_progress: Progress,
) -> None:
    draft = load_replayed_draft(
        options.draft, trace, target=options.target_weights, device=device, dtype=dtype
    )
    decode = options.decode
    report.num_prompts = len(trace)
    report.stop_token_ids = tuple(sorted(decode.stop_token_ids))
    report.skip(_DECODED[:2], "a trace was replayed, so nothing was decoded")
    steps = choose_steps(draft, options.engine)
    report.engine, report.engine_reason = steps.name, steps.reason
    replay = ReplayOptions(
        decode=decode, target_vocab_size=trace.header.target.vocab_size, steps=steps
    )
    if trace.header.text_origin == "given":
        report.add(
            lambda: check_agreement(
                draft, trace, replay, seed=options.seed, on_progress=on_progress
            )
        )
        report.skip(("confidence",), "the target did not write the texts of the trace")
        return
    settings = options.acceptance_settings(count_tokens(draft, decode))
    run = ReplayRun(draft, trace, replay, on_progress=on_progress)
    report.add(lambda: run.check_acceptance(settings))
    if options.worst:
        weights, trust = options.target_weights, options.machine.trust_remote_code
        tokenizer = None if weights is None else load_tokenizer(weights, trust_remote_code=trust)
        report.worst = worst_texts(run.marks, options.worst, tokenizer)
    if draft.confidence_head is None:
        report.skip(("confidence",), "the draft has no confidence head")
    else:
        report.add(run.check_confidence)


def _identify_target(weights: TargetWeights) -> VerifiedTarget:
    checkpoint = weights.checkpoint
    architectures = checkpoint.config.get("architectures") or ["unknown"]
    return VerifiedTarget(
        name=display_name(checkpoint.folder),
        config_sha256=checkpoint.config_sha256,
        architecture=str(architectures[0]),
        dtype="not loaded",
        device="not loaded",
    )


def _finish(
    options: VerifyOptions, examination: Examination, report: ReportBuilder, device: torch.device
) -> VerifyReport:
    inspection = describe(options.draft, examination)
    checkpoint = examination.checkpoint
    decode_options = options.decode
    return VerifyReport(
        tool_version=__version__,
        verdict=overall(report.results),
        draft=VerifiedDraft(
            name=inspection.name,
            dialect=inspection.dialect,
            config_sha256=checkpoint.config_sha256 if checkpoint else None,
            config=inspection.draft,
        ),
        target=report.target,
        settings=VerifySettings(
            prompts=_name_of_prompts(options),
            trace=options.trace.name if options.trace else None,
            num_prompts=report.num_prompts,
            max_new_tokens=decode_options.max_new_tokens,
            stop_token_ids=report.stop_token_ids,
            temperature=decode_options.temperature,
            top_k=decode_options.top_k,
            top_p=decode_options.top_p,
            draft_sampling=decode_options.draft_sampling,
            num_speculative_tokens=decode_options.num_speculative_tokens,
            confidence_threshold=decode_options.confidence_threshold,
            seed=options.seed,
            batch_size=options.batch_size,
            device=str(device),
            engine=report.engine,
            engine_reason=report.engine_reason,
            dtype=options.machine.dtype,
            min_accepted_length=options.min_accepted_length,
            min_acceptance=options.min_acceptance,
            source=display_name(options.source) if options.source else None,
            versions={
                "dspark-convert": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        ),
        checks=tuple(report.results),
        example=report.example,
        worst=report.worst,
        seconds=report.seconds,
    )


def _name_of_prompts(options: VerifyOptions) -> str:
    file = options.trace or options.prompts
    return file.name if file else BUNDLED
