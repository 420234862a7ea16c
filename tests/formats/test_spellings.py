"""SpecForge's own exports, and fields that files spell in more than one place."""

from __future__ import annotations

import copy
from itertools import combinations
from typing import Any

import pytest

from dspark_convert.formats.detect import detect
from dspark_convert.formats.rules import assign, dotted
from dspark_convert.schemas.draft import DraftConfig, Layout

from .helpers import DENSE, REDUCED, config_of, errors, notes, parse, parsed

# What SpecForge writes, for the geometry of dense_vanilla_bf16.
SPECFORGE = {
    "architectures": ["DSparkDraftModel"],
    "attention_bias": False,
    "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
    "block_size": 7,
    "dflash_config": {
        "attention_mode": "gqa",
        "confidence_head_alpha": 1.0,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "markov_head_type": "vanilla",
        "markov_rank": 16,
        "mask_token_id": 319,
        "projector_type": "dspark",
        "target_layer_ids": [0, 1, 2],
    },
    "dtype": "bfloat16",
    "head_dim": 24,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 512,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 4,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": 320,
}
LAYOUT_PATHS: dict[tuple[str, ...], bool] = {
    (*block, name): name != "dspark_bonus_anchor"
    for name in (
        "sample_from_anchor",
        "dspark_bonus_anchor",
        "query_zero_predicts_next",
        "shift_label",
    )
    for block in ((), ("dflash_config",), ("dspark_config",))
}
"""Every spelling, and what it says of an anchor-first draft."""


def document(dialect: str) -> dict[str, Any]:
    """A config that says nothing of its layout."""
    if dialect == "specforge":
        return copy.deepcopy(SPECFORGE)
    config = config_of(DENSE if dialect == "dense" else REDUCED)
    config.pop("sample_from_anchor", None)
    config.pop("speculators_config", None)
    return config


def spelled(dialect: str, values: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    config = document(dialect)
    for path, value in values.items():
        assign(config, path, value)
    return config


def test_raw_export_of_specforge_is_the_dense_draft_of_the_same_values() -> None:
    assert detect(SPECFORGE, ()).dialect.name == "specforge"
    found = parsed(copy.deepcopy(SPECFORGE))
    assert found == parsed(config_of(DENSE)).model_copy(update={"num_anchors": None})


def test_layout_of_specforge_is_a_convention_and_said() -> None:
    result, findings = parse(document("specforge"))
    assert result is not None
    assert result.config.layout is Layout.ANCHOR_FIRST
    assert "SpecForge" in result.layout_evidence
    assert "layout-by-convention" in notes(findings)


@pytest.mark.parametrize("dialect", ["dense", "specforge", "speculators"])
@pytest.mark.parametrize("path", LAYOUT_PATHS, ids=dotted)
@pytest.mark.parametrize("layout", Layout)
def test_every_spelling_of_the_layout_is_read(
    dialect: str, path: tuple[str, ...], layout: Layout
) -> None:
    says = LAYOUT_PATHS[path] is (layout is Layout.ANCHOR_FIRST)
    result, findings = parse(spelled(dialect, {path: says}))
    assert result is not None, list(findings)
    assert result.config.layout is layout
    assert result.layout_evidence == "declared in the config"


@pytest.mark.parametrize("dialect", ["dense", "specforge", "speculators"])
@pytest.mark.parametrize("pair", list(combinations(LAYOUT_PATHS, 2)), ids=str)
def test_two_spellings_that_disagree_are_refused(
    dialect: str, pair: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    first, second = pair
    agree = {path: LAYOUT_PATHS[path] for path in pair}
    result, findings = parse(spelled(dialect, agree))
    assert result is not None, list(findings)
    result, findings = parse(spelled(dialect, agree | {second: not agree[second]}))
    assert result is None
    assert errors(findings) == ["layout-conflict"]
    (conflict,) = findings.of("error")
    assert dotted(first) in str(conflict.found)
    assert dotted(second) in str(conflict.found)


@pytest.mark.parametrize("dialect", ["dense", "specforge", "speculators"])
@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("mask_token_id", 319, 5),
        ("block_size", 7, 5),
        ("target_layer_ids", [0, 1, 2], [0, 1, 3]),
        ("markov_rank", 16, 8),
        ("markov_head_type", "vanilla", "rnn"),
        ("enable_confidence_head", True, False),
        ("confidence_head_with_markov", True, False),
    ],
)
@pytest.mark.parametrize("block", ["dflash_config", "dspark_config"])
def test_field_in_two_places(dialect: str, name: str, value: Any, other: Any, block: str) -> None:
    layout = {("sample_from_anchor",): True}
    twice = layout | {(name,): value, (block, name): value}
    assert read(spelled(dialect, twice))[name] == tuple_of(value)
    result, findings = parse(spelled(dialect, twice | {(block, name): other}))
    assert result is None
    assert errors(findings) == ["key-conflict"]


@pytest.mark.parametrize(
    ("alias", "name", "value", "other"),
    [
        ("dspark_block_size", "block_size", 7, 6),
        ("dspark_noise_token_id", "mask_token_id", 319, 5),
        ("dspark_markov_rank", "markov_rank", 16, 8),
        ("dspark_markov_head_type", "markov_head_type", "vanilla", "rnn"),
    ],
)
def test_names_with_a_prefix_mean_the_same(alias: str, name: str, value: Any, other: Any) -> None:
    document = config_of(DENSE)
    del document[name]
    assert read(document | {alias: value})[name] == value
    _, findings = parse(config_of(DENSE) | {alias: other})
    assert errors(findings) == ["key-conflict"]


def read(document: dict[str, Any]) -> dict[str, Any]:
    config: DraftConfig = parsed(document)
    return config.model_dump()


def tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
