"""Get texts of the target, from a trace or by running it, and diagnose the draft on them."""

from __future__ import annotations

from dspark_convert.diagnosis.diagnose import diagnose
from dspark_convert.diagnosis.options import DiagnoseOptions
from dspark_convert.diagnosis.subject import (
    DiagnosisInput,
    diagnosis_input_of_target,
    diagnosis_input_of_trace,
)
from dspark_convert.runtime import DecodeOptions
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.runtime.records import Progress, no_progress
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.schemas.diagnosis import Diagnosis
from dspark_convert.traces.record import TargetRunOptions
from dspark_convert.traces.trace import open_trace


def run_diagnosis(options: DiagnoseOptions, *, on_progress: Progress = no_progress) -> Diagnosis:
    """Diagnose a draft.

    Raises:
        UsageError: options that make no sense, or neither a target nor a trace.
        CheckpointError, DialectError, DraftError, PromptError, TraceError: an input cannot be read.
    """
    options.check()
    inputs, decode = _find_input(options, on_progress)
    replay_input = inputs.replay_input
    steps = PLAIN if replay_input is None else choose_steps(replay_input.draft, options.decoder)
    return diagnose(inputs, decode, seed=options.seed, steps=steps, on_progress=on_progress)


def _find_input(
    options: DiagnoseOptions, on_progress: Progress
) -> tuple[DiagnosisInput, DecodeOptions]:
    """The draft with its texts, and how they were made."""
    if options.trace is not None:
        trace = open_trace(options.trace)
        decode = options.follow_trace(trace.header)
        inputs = diagnosis_input_of_trace(
            options.draft, trace, target=options.target_weights, machine=options.machine
        )
        return inputs, decode
    inputs = diagnosis_input_of_target(_target_run(options), on_progress=on_progress)
    if inputs.replay_input is not None:
        return inputs, options.follow_trace(inputs.replay_input.facts.header)
    return inputs, options.decode


def _target_run(options: DiagnoseOptions) -> TargetRunOptions:
    assert options.target is not None, "the options were checked"
    return TargetRunOptions(
        target=options.target,
        draft=options.draft,
        prompts=options.prompts,
        max_new_tokens=options.decode.max_new_tokens,
        sampling=options.decode.sampling,
        stop_token_ids=options.stop_token_ids,
        seed=options.seed,
        batch_size=options.batch_size,
        machine=options.machine,
    )
