"""The tiny drafts and their target, a trace to judge them by, and the planting of faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark_convert.diagnosis.diagnose import diagnose
from dspark_convert.diagnosis.subject import diagnosis_input_of_trace
from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.sampling import SamplingOptions
from dspark_convert.schemas.diagnosis import Diagnosis, HypothesisResult
from dspark_convert.traces.record import RecordOptions, record
from dspark_convert.traces.trace import Trace, open_trace

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"
TARGET = TINY / "target"
ANCHOR, ONE_PLUS_N, DENSE = "draft_anchor_reduced", "draft_1plusN_reduced", "draft_dense_full"
FLOAT32 = Machine(device="cpu", dtype="float32")

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Plant = Callable[[Config, Tensors], None]


def record_trace(
    folder: Path, *, every: int, max_new_tokens: int, temperature: float = 1.0
) -> Trace:
    """Every layer of the tiny target on every n-th prompt."""
    lines = (TINY / "prompts.jsonl").read_text().splitlines(keepends=True)[::every]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(lines))
    options = RecordOptions(
        target=TARGET,
        draft=TINY / ONE_PLUS_N,
        output=folder / "trace.safetensors",
        prompts=prompts,
        layers="all",
        max_new_tokens=max_new_tokens,
        sampling=SamplingOptions(temperature=temperature),
        machine=FLOAT32,
    )
    record(options)
    return open_trace(options.output)


def run(folder: Path, trace: Trace, *, target: Path | None = TARGET) -> Diagnosis:
    header = trace.header
    decode = DecodeOptions(
        max_new_tokens=header.max_new_tokens,
        stop_token_ids=frozenset(header.stop_token_ids),
        temperature=header.sampling.temperature,
    )
    inputs = diagnosis_input_of_trace(folder, trace, target=target, machine=FLOAT32)
    return diagnose(inputs, decode)


def by_id(diagnosis: Diagnosis) -> dict[str, HypothesisResult]:
    return {result.id: result for result in diagnosis.hypotheses}


def put(**values: object) -> Plant:
    def plant(config: Config, tensors: Tensors) -> None:
        config.update(values)

    return plant


def absolute_table(config: Config, tensors: Tensors) -> None:
    """A smaller vocabulary whose table of absolute ids is in range as offsets too."""
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    kept = (ids < 1024 - 320).nonzero().squeeze(1)[:320]
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        tensors[name] = tensors[name][kept].clone()
    tensors["d2t"] = ids[kept].clone()
    del tensors["t2d"]
    config["draft_vocab_size"] = len(kept)


ONE_PLUS_N_DECLARED = put(sample_from_anchor=False, dspark_bonus_anchor=True)
