"""Configs into ``DraftConfig``: layout, RoPE, sliding windows, heads, and back to dense."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.parse import render
from dspark_convert.schemas.draft import DraftConfig, Layout
from fixtures.broken.drafts import read_draft

from .helpers import (
    DENSE,
    FULL,
    REDUCED,
    SLIDING,
    config_of,
    errors,
    notes,
    parse,
    parsed,
    stored,
    whole,
)

FIRST, BONUS = Layout.ANCHOR_FIRST, Layout.BONUS_ANCHOR
BLOCK = 7
TOKENS: dict[str, list[int | None]] = {
    "none": [],
    "block": [7],
    "one less": [6],
    "other": [4],
    "null": [None],
    "disagree": [6, 7],
    "agree": [6, 6],
}


def outcome(dialect: str, declared: bool | None, evidence: str) -> Layout | str:
    """Issue: the declared key decides; when absent, the tokens; a contradiction is refused."""
    said = None if declared is None else (FIRST if declared else BONUS)
    shown = {"block": FIRST, "one less": BONUS, "agree": BONUS}.get(evidence)
    if said and shown and said is not shown:
        return "layout-conflict"
    if said or shown:
        return said or shown
    return FIRST if dialect == "dense" else "layout-undeclared"


@pytest.mark.parametrize(
    ("dialect", "declared", "evidence"),
    list(product(["dense", "speculators"], [None, True, False], TOKENS)),
)
def test_layout_truth_table(dialect: str, declared: bool | None, evidence: str) -> None:
    document = config_of(DENSE if dialect == "dense" else REDUCED)
    document["sample_from_anchor"] = declared
    methods = [{"speculative_tokens": count} for count in TOKENS[evidence]]
    document["speculators_config"] = {"proposal_methods": methods}
    result, findings = parse(document)
    expected = outcome(dialect, declared, evidence)
    if not isinstance(expected, Layout):
        assert result is None
        assert errors(findings) == [expected]
        return
    assert result is not None
    assert result.config.layout is expected
    assert result.config.num_speculative_tokens == BLOCK - (expected is BONUS)
    inferred = declared is None and evidence in ("block", "one less", "agree")
    convention = declared is None and not inferred
    assert ("layout-inferred" in notes(findings)) == inferred
    assert ("layout-by-convention" in notes(findings)) == convention
    assert result.layout_evidence


@pytest.mark.parametrize("variant", [DENSE, REDUCED])
@pytest.mark.parametrize(
    ("sample", "bonus", "block", "expected"),
    [
        (True, False, None, FIRST),
        (False, True, None, BONUS),
        (None, True, None, BONUS),
        (None, False, None, FIRST),
        (None, None, True, FIRST),
        (True, True, None, "layout-conflict"),
        (False, False, None, "layout-conflict"),
        (True, None, False, "layout-conflict"),
    ],
)
def test_layout_keys_agree_or_conflict(
    variant: str, sample: bool | None, bonus: bool | None, block: bool | None, expected: object
) -> None:
    document = {**config_of(variant), "sample_from_anchor": sample, "dspark_bonus_anchor": bonus}
    document.pop("speculators_config", None)
    document["dflash_config"] = {"sample_from_anchor": block}
    result, findings = parse(document)
    assert (result.config.layout if result else errors(findings)[0]) == expected


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("declared", [None, True, False])
def test_given_layout_overrules_everything(layout: Layout, declared: bool | None) -> None:
    result, findings = parse({**config_of(), "sample_from_anchor": declared}, layout=layout)
    assert result is not None
    assert result.config.layout is layout
    assert "--layout" in result.layout_evidence
    assert not errors(findings)


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("variant", [DENSE, REDUCED])
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope_parameters": {"rope_theta": 5e6}}, {"rope_type": "default", "rope_theta": 5e6}),
        ({"rope_theta": 5e6}, {"rope_type": "default", "rope_theta": 5e6}),
        (
            {"rope_theta": 5e6, "rope_scaling": None},
            {"rope_type": "default", "rope_theta": 5e6},
        ),
        ({"rope_theta": 5000000, "rope_parameters": {"rope_theta": 5e6}}, {"rope_type": "default"}),
        ({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}}, YARN),
        ({"rope_parameters": {"rope_theta": 1e6, **YARN}}, YARN),
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": YARN}, YARN),
        ({"rope_scaling": {"rope_theta": 1e6, **YARN}}, YARN),
    ],
)
def test_rope_in_every_spelling(
    variant: str, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    rope = parsed(with_rope(variant, keys)).rope_parameters
    assert rope == {"rope_theta": rope["rope_theta"], **expected}


@pytest.mark.parametrize("variant", [DENSE, REDUCED])
@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({}, "key-missing"),
        ({"rope_parameters": {"rope_type": "default"}}, "key-missing"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope-conflict"),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_theta": 1e6}}, "rope-conflict"),
        (
            {"rope_parameters": {"rope_theta": 1e6, **YARN}, "rope_scaling": {"type": "linear"}},
            "rope-conflict",
        ),
    ],
)
def test_rope_that_is_absent_or_contradicts_itself(
    variant: str, keys: dict[str, Any], code: str
) -> None:
    result, findings = parse(with_rope(variant, keys))
    assert result is None
    assert errors(findings) == [code]


def test_two_rope_bases_on_two_levels_conflict() -> None:
    result, findings = parse({**config_of(REDUCED), "rope_theta": 5e6})
    assert result is None
    assert errors(findings) == ["rope-conflict"]


def with_rope(variant: str, keys: dict[str, Any]) -> dict[str, Any]:
    document = config_of(variant)
    decoder = document.get("transformer_layer_config", document)
    del decoder["rope_parameters"]
    decoder.update(keys)
    return document


@pytest.mark.parametrize(
    ("top", "decoder", "expected"),
    [
        ({"sliding_window_non_causal": None}, {}, False),
        ({"sliding_window_non_causal": False}, {}, False),
        ({"sliding_window_non_causal": True}, {}, True),
        ({"sliding_window_non_causal": None, "is_causal": False}, {}, True),
        ({"sliding_window_non_causal": None, "dflash_config": {"causal": False}}, {}, True),
        ({"sliding_window_non_causal": None}, {"is_causal": False}, True),
        ({"sliding_window_non_causal": None}, {"is_causal": True}, False),
        ({"sliding_window_non_causal": True, "is_causal": True}, {}, "key-conflict"),
        ({"sliding_window_non_causal": False}, {"is_causal": False}, "key-conflict"),
        (
            {"sliding_window_non_causal": True, "dflash_config": {"causal": True}},
            {},
            "key-conflict",
        ),
    ],
)
def test_causality_of_sliding_layers(
    top: dict[str, Any], decoder: dict[str, Any], expected: bool | str
) -> None:
    document = {**config_of(SLIDING), **top}
    document["transformer_layer_config"].update(decoder)
    result, findings = parse(document)
    found = result.config.sliding_window_non_causal if result else errors(findings)[0]
    assert found == expected
    default = top == {"sliding_window_non_causal": None} and not decoder
    assert ("default-used" in notes(findings)) == default


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"sliding_window": None}, "sliding-window-missing"),
        ({"layer_types": ["sliding_attention"]}, "config-invalid"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "config-invalid"),
        ({"layer_types": None, "use_sliding_window": True}, "key-missing"),
        ({"sliding_window": 0}, "config-invalid"),
    ],
)
def test_sliding_keys_that_say_too_little(keys: dict[str, Any], code: str) -> None:
    document = config_of(SLIDING)
    document["transformer_layer_config"].update(keys)
    assert code in errors(parse(document)[1])


def test_window_without_sliding_layers_means_nothing() -> None:
    document = config_of(DENSE) | {"sliding_window": 2048, "sliding_window_non_causal": True}
    config = parsed(document)
    assert config.sliding_window is None
    assert not config.sliding_window_non_causal
    assert not config.slides


def test_window_switched_off_is_said_and_kept() -> None:
    document = config_of(SLIDING)
    document["transformer_layer_config"]["use_sliding_window"] = False
    result, findings = parse(document)
    assert result is not None
    assert result.config.sliding_window == 6
    assert notes(findings) == ["sliding-window-switched-off"]


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("hidden_size", 4096),
        ("intermediate_size", 22016),
        ("num_attention_heads", 32),
        ("num_key_value_heads", 32),
        ("head_dim", 128),
        ("hidden_act", "silu"),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32768),
        ("attention_bias", False),
        ("vocab_size", 151936),
    ],
)
def test_absent_decoder_key_is_the_default_of_transformers(key: str, default: object) -> None:
    document = config_of(FULL)
    del document["transformer_layer_config"][key]
    result, findings = parse(document)
    assert result is not None
    assert getattr(result.config, key) == default
    assert notes(findings) == ["default-used"]


@pytest.mark.parametrize("key", ["block_size", "mask_token_id", "aux_hidden_state_layer_ids"])
def test_absent_key_without_safe_default_is_refused(key: str) -> None:
    document = config_of()
    del document[key]
    result, findings = parse(document)
    assert result is None
    assert "key-missing" in errors(findings)


@pytest.mark.parametrize(
    "variant",
    [
        DENSE,
        FULL,
        "dense_gated_fp32",
        "dense_rnn_bf16",
        "spec_gated_reduced_1plusN_bf16",
        "spec_nomarkov_noconf_full_bf16",
    ],
)
def test_tensors_prove_what_the_config_is_silent_about(variant: str) -> None:
    draft = read_draft(variant)
    expected = parsed(draft.config)
    heads = ["markov_rank", "markov_head_type", "enable_confidence_head"]
    removed = [*heads, "confidence_head_with_markov", "dtype"]
    document = {key: value for key, value in draft.config.items() if key not in removed}
    tensors = {
        name: stored(name, *tensor.shape, dtype=tensor.dtype)
        for name, tensor in draft.tensors.items()
    }
    result, findings = parse(document, tensors, Layout.ANCHOR_FIRST)
    assert result is not None
    assert result.config == expected.model_copy(update={"layout": Layout.ANCHOR_FIRST})
    assert notes(findings) == ["key-inferred"] * 5


def test_depth_beyond_any_decoder_is_refused_without_making_a_list_of_it() -> None:
    for depth in (1025, 10**60):
        document = config_of(DENSE) | {"num_hidden_layers": depth, "layer_types": None}
        assert errors(parse(document)[1]) == ["config-invalid"]


@pytest.mark.parametrize("vocab", [None, 320])
def test_absent_draft_vocabulary_is_the_whole(vocab: int | None) -> None:
    config = parsed(config_of(DENSE) | {"draft_vocab_size": vocab})
    assert config.draft_vocab_size == config.vocab_size == 320
    assert not config.reduced_vocabulary


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layout": BONUS},
        {"draft_vocab_size": 200},
        {"draft_vocab_size": 384},
        {"target_hidden_size": 96, "num_target_layers": None},
        {
            "layer_types": ("full_attention", "sliding_attention"),
            "sliding_window": 6,
            "sliding_window_non_causal": True,
        },
        {"target_layer_ids": (-1, 3)},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e6}},
        {"markov_rank": 0, "confidence_head_with_markov": False},
        {"num_anchors": 12, "dtype": "float32"},
    ],
)
def test_rendered_dense_config_is_read_back_as_it_was(changes: dict[str, Any]) -> None:
    config = DraftConfig(**{**parsed(config_of(DENSE)).model_dump(), **changes})
    result, findings = parse(render(config, DIALECTS["dense"]))
    assert result is not None
    assert result.config == config
    assert not list(findings)
    assert whole(result.config) == whole(config)


@pytest.mark.parametrize("name", ["DFlashDraftModel", "DFlashSpeculator"])
def test_a_class_of_dflash_leaves_the_layout_open(name: str) -> None:
    document = {**config_of(DENSE), "architectures": [name]}
    for key in ("sample_from_anchor", "dspark_bonus_anchor"):
        document.pop(key, None)
    result, findings = parse(document)
    assert (result, errors(findings)) == (None, ["layout-undeclared"])
    assert name in str(findings.of("error")[0].found)
    told, _ = parse(document, layout=BONUS)
    assert told is not None
    assert told.config.layout is BONUS
    assert parsed({**document, "sample_from_anchor": False}).layout is BONUS
