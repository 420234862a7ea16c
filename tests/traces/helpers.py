"""Small traces, made of random tensors or of the golden verifier."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.sampling import SamplingOptions, compute_probabilities
from dspark_convert.schemas.trace import TraceHeader, TraceSequenceEntry
from dspark_convert.traces.generate import TextSettings, describe_tokens
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
    """A text of a random law; one that is shorter than the limit ends in a stop token."""
    generator = torch.Generator().manual_seed(seed)
    generated, vocab = entry.num_tokens - entry.first_generated, header.target.vocab_size
    prompt = torch.randint(0, vocab - 1, (entry.first_generated,), generator=generator)
    logits = 2 * torch.randn(generated, vocab, generator=generator)
    if stops := header.stop_token_ids:
        logits[:, stops[0]] = -torch.inf
        if generated < header.max_new_tokens + header.extra_tokens:
            logits[-1, stops[0]] = 30.0
    sampling = SamplingOptions(**header.sampling.model_dump())
    p = compute_probabilities(logits, sampling)
    text = p.multinomial(1, generator=generator).squeeze(1)
    settings = text_settings(sampling=sampling, top_log_probs=header.top_log_probs)
    numbers = describe_tokens(logits, p, text, settings)
    if not header.has_log_probs:
        del numbers["log_probs"]
    if not header.has_argmax:
        del numbers["argmax_ids"], numbers["top2_gap"]
    shape = (entry.num_tokens, len(header.layer_ids), header.target.hidden_size)
    features = torch.randn(shape, generator=generator)
    return TraceSequence(
        id=entry.id,
        token_ids=torch.cat((prompt, text)),
        first_generated=entry.first_generated,
        layer_ids=header.layer_ids,
        features=features.to(getattr(torch, header.feature_dtype)),
        **numbers,
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
        "machine": Machine(device="cpu"),
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
