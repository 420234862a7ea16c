"""Small traces, made of random tensors or of the golden verifier."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dspark_convert.runtime import SamplingOptions
from dspark_convert.schemas.trace import TraceHeader, TraceSequenceEntry
from dspark_convert.traces.generate import TextSettings
from dspark_convert.traces.record import RecordOptions
from dspark_convert.traces.trace import TraceSequence
from dspark_convert.traces.writer import staged_trace
from tests.runtime.helpers import GOLDEN

VERIFIER = GOLDEN / "verifier_fp32"
FULL = GOLDEN / "spec_vanilla_full_anchor_fp32" / "checkpoint"
REDUCED = GOLDEN / "spec_vanilla_reduced_anchor_bf16" / "checkpoint"
PROMPTS = ((5, 6, 7, 8), (9, 10, 11), (200, 3, 4, 77, 12, 13, 250))

VOCAB, HIDDEN = 50, 6


def header_document(**changes: Any) -> dict[str, Any]:
    """A header of two sequences as JSON would have it, of which tests change what they need."""
    return {
        "tool_version": "0",
        "recorded_by": "dspark-verify",
        "target": {
            "name": "target",
            "config_sha256": "c" * 64,
            "revision": None,
            "tokenizer_sha256": None,
            "hidden_size": HIDDEN,
            "vocab_size": VOCAB,
            "num_hidden_layers": 4,
            "dtype": "float32",
        },
        "text_origin": "target",
        "sampling": {"temperature": 1.0, "top_k": None, "top_p": None},
        "max_new_tokens": 5,
        "extra_tokens": 3,
        "stop_token_ids": [49],
        "seed": 0,
        "layer_ids": [-1, 1, 3],
        "feature_dtype": "float32",
        "has_log_probs": True,
        "has_argmax": True,
        "top_log_probs": 4,
        "top_temperature": 1.0,
        "has_embedding": False,
        "has_lm_head": False,
        "sequences": [
            {"id": "a", "num_tokens": 11, "first_generated": 3},
            {"id": "b", "num_tokens": 8, "first_generated": 4},
        ],
        **changes,
    }


def make_header(**changes: Any) -> TraceHeader:
    return TraceHeader.model_validate(header_document(**changes))


def make_sequence(header: TraceHeader, entry: TraceSequenceEntry, seed: int = 0) -> TraceSequence:
    """Random tensors of the right shapes; a text that is shorter than the limit ends in a stop."""
    generator = torch.Generator().manual_seed(seed)
    length, generated = entry.num_tokens, entry.num_tokens - entry.first_generated
    largest, layers = header.top_log_probs, len(header.layer_ids)
    vocab, hidden = header.target.vocab_size, header.target.hidden_size

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(0, vocab - 1, shape, generator=generator)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    token_ids = ids(length)
    if generated < header.max_new_tokens + header.extra_tokens and header.stop_token_ids:
        token_ids[-1] = header.stop_token_ids[0]
    dtype = getattr(torch, header.feature_dtype)
    return TraceSequence(
        id=entry.id,
        token_ids=token_ids,
        first_generated=entry.first_generated,
        layer_ids=header.layer_ids,
        features=floats(length, layers, hidden).to(dtype),
        log_probs=-floats(generated).abs() if header.has_log_probs else None,
        top_ids=ids(generated, largest).int() if largest else None,
        top_log_probs=-floats(generated, largest).abs() if largest else None,
        tail_mass=floats(generated).sigmoid() if largest else None,
        argmax_ids=ids(generated) if header.has_argmax else None,
        top2_gap=floats(generated) if header.has_argmax else None,
    )


def write_trace(path: Path, header: TraceHeader, seed: int = 0) -> list[TraceSequence]:
    """Write a random trace; returns what went into it."""
    sequences = [
        make_sequence(header, entry, seed + index) for index, entry in enumerate(header.sequences)
    ]
    with staged_trace(path, header, {}, overwrite=False) as writer:
        for sequence in sequences:
            writer.add(sequence)
    return sequences


def text_settings(**changes: Any) -> TextSettings:
    """Settings of a sampled text on the golden verifier."""
    values: dict[str, Any] = {
        "layer_ids": (-1, 1, 3),
        "max_generated": 12,
        "sampling": SamplingOptions(temperature=1.0),
        "stop_token_ids": frozenset(),
        "top_log_probs": 8,
        "feature_dtype": torch.float32,
    }
    return TextSettings(**{**values, **changes})


def write_prompts(folder: Path, lines: Sequence[dict[str, Any]] | None = None) -> Path:
    """A prompts file; by default the three prompts as token ids."""
    if lines is None:
        lines = [
            {"id": f"p{number}", "prompt_token_ids": list(prompt)}
            for number, prompt in enumerate(PROMPTS)
        ]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def record_options(folder: Path, **changes: Any) -> RecordOptions:
    """Options to record the golden verifier over the three prompts for a full draft."""
    values: dict[str, Any] = {
        "target": VERIFIER,
        "draft": FULL,
        "output": folder / "trace.safetensors",
        "max_new_tokens": 10,
        "stop_token_ids": frozenset(),
        "top_log_probs": 8,
    }
    if "prompts" not in changes:
        values["prompts"] = write_prompts(folder)
    return RecordOptions(**{**values, **changes})


def assert_same(found: TraceSequence, wanted: TraceSequence) -> None:
    for name, value in vars(wanted).items():
        other = getattr(found, name)
        if isinstance(value, torch.Tensor):
            assert other.dtype == value.dtype, name
            assert torch.equal(other, value), name
        else:
            assert other == value, name
