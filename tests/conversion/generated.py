"""Drafts of every kind that a config can describe, small enough to write by the hundred."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.parse import render
from dspark_convert.formats.tensors import VOCABULARY_TABLE, expected_tensors
from dspark_convert.schemas.draft import DraftConfig, Layout
from fixtures.broken.drafts import ITEM_BYTES, Draft, Tensor, write_draft

STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

sizes = st.integers(1, 6)
flags = st.booleans()
scalings = st.sampled_from(
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ]
)


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    types = draw(
        st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=2)
    )
    slides = "sliding_attention" in types
    return {
        "num_hidden_layers": len(types),
        "layer_types": tuple(types),
        "sliding_window": draw(st.integers(1, 9)) if slides else None,
        "sliding_window_non_causal": slides and draw(flags),
    }


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, int]:
    vocab = draw(st.integers(2, 12))
    return {
        "vocab_size": vocab,
        "draft_vocab_size": draw(st.just(vocab) | st.integers(1, vocab + 2)),
        "mask_token_id": draw(st.integers(0, vocab - 1)),
    }


@st.composite
def heads(draw: st.DrawFn) -> dict[str, Any]:
    rank, confidence = draw(st.integers(0, 3)), draw(flags)
    return {
        "markov_rank": rank,
        "markov_head_type": draw(st.sampled_from(["vanilla", "gated", "rnn"])),
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": draw(flags) and (rank > 0 or not confidence),
    }


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    layout = draw(st.sampled_from(Layout))
    ids = sorted(draw(st.sets(st.integers(-1, 5), min_size=1, max_size=3)))
    return {
        "layout": layout,
        "block_size": draw(st.integers(1 if layout is Layout.ANCHOR_FIRST else 2, 8)),
        "target_layer_ids": tuple(ids),
        "num_target_layers": draw(st.none() | st.integers(6, 9)),
    }


@st.composite
def configs(draw: st.DrawFn) -> DraftConfig:
    kv_heads = draw(st.integers(1, 2))
    hidden = draw(sizes)
    theta = draw(st.sampled_from([500.0, 10000.0, 5e6]))
    return DraftConfig(
        hidden_size=hidden,
        intermediate_size=draw(sizes),
        num_attention_heads=kv_heads * draw(st.integers(1, 2)),
        num_key_value_heads=kv_heads,
        head_dim=draw(sizes),
        hidden_act=draw(st.sampled_from(["silu", "gelu"])),
        rms_norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        max_position_embeddings=draw(st.integers(64, 4096)),
        attention_bias=draw(flags),
        rope_parameters={**draw(scalings), "rope_theta": theta},
        target_hidden_size=draw(st.none() | st.just(hidden) | sizes),
        num_anchors=draw(st.none() | st.integers(1, 1024)),
        dtype=draw(st.sampled_from(sorted(STORED))),
        **draw(layers()),
        **draw(vocabularies()),
        **draw(heads()),
        **draw(blocks()),
    )


def tensors_of_config(config: DraftConfig, seed: int) -> dict[str, Tensor]:
    """Random bytes for every tensor that a draft of ``config`` has, under canonical names."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, spec in expected_tensors(config).items():
        dtype = STORED[config.dtype]
        data = random.bytes(math.prod(spec.shape) * ITEM_BYTES[dtype])
        tensors[name] = Tensor(dtype, spec.shape, data)
    if config.reduced_vocabulary:
        chosen = random.choice(config.vocab_size, config.draft_vocab_size, replace=False)
        offsets = np.sort(chosen) - np.arange(config.draft_vocab_size)
        tensors[VOCABULARY_TABLE] = Tensor.of(offsets, "I64")
    return tensors


def store(
    config: DraftConfig, dialect: Dialect, tensors: dict[str, Tensor], shards: int, folder: Path
) -> None:
    """Write a draft as ``dialect`` spells it."""
    names = {} if dialect.name == "dense" else {VOCABULARY_TABLE: "d2t"}
    stored = {names.get(name, name): tensor for name, tensor in tensors.items()}
    document = render(config, dialect)
    if config.num_anchors is None:
        document.pop("num_anchors", None)  # which a writer may leave out, though ours does not
    write_draft(Draft(document, stored, shards=shards), folder)
