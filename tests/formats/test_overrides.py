"""``--set``, ``--layout`` and ``--d2t``: parsed by type, applied over every spelling."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dspark_convert.errors import Findings, UsageError
from dspark_convert.formats.dialects import DENSE as DENSE_DIALECT
from dspark_convert.formats.dialects import DIALECTS, SPECULATORS
from dspark_convert.formats.overrides import (
    Overrides,
    apply_overrides,
    overridden_paths,
    parse_settings,
    settable_fields,
)
from dspark_convert.formats.rules import Document, read_field
from dspark_convert.schemas.draft import DraftConfig, Layout

from .helpers import DENSE, REDUCED, config_of, errors

SAMPLES: dict[str, tuple[str, Any]] = {
    "attention_bias": ("true", True),
    "confidence_head_with_markov": ("false", False),
    "dtype": ("float16", "float16"),
    "enable_confidence_head": ("false", False),
    "hidden_act": ("gelu", "gelu"),
    "layer_types": ('["full_attention"]', ["full_attention"]),
    "markov_head_type": ("rnn", "rnn"),
    "rms_norm_eps": ("1e-5", 1e-5),
    "rope_scaling": ('{"rope_type": "yarn"}', {"rope_type": "yarn"}),
    "rope_theta": ("5e6", 5e6),
    "sliding_window_non_causal": ("true", True),
    "target_layer_ids": ("[0, 2, 5]", [0, 2, 5]),
    "use_swa": ("true", True),
}


@pytest.mark.parametrize("name", settable_fields())
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_every_field_can_be_set_and_is_read_back(name: str, dialect: Any) -> None:
    text, value = SAMPLES.get(name, ("17", 17))
    settings = parse_settings([f"{name}={text}"])
    assert settings == {name: value}
    document = config_of(DENSE if dialect is DENSE_DIALECT else REDUCED)
    edited = apply_overrides(document, dialect, Overrides(fields=settings))
    rule, findings = dialect.rule(name), Findings()
    assert read_field(rule, edited, "f", findings).value == value
    assert not list(findings)


def test_settable_are_the_fields_and_the_parts_of_rope() -> None:
    joined = {"layout", "rope_parameters", "decoder", "decoder_parameters"}
    assert set(settable_fields()) == set(DraftConfig.model_fields) - joined | {
        "rope_theta",
        "rope_scaling",
        "use_swa",
    }


@pytest.mark.parametrize(
    "pairs",
    [
        ["mask_token_id"],
        ["=5"],
        ["nonsense=5"],
        ["layout=anchor_first"],
        ["rope_parameters={}"],
        ["mask_token_id=-1"],
        ["mask_token_id=1.5"],
        ['mask_token_id="5"'],
        ["mask_token_id=true"],
        ["markov_head_type=\ud812"],
        ["mask_token_id=\udcff"],
        ["mask_token_id=null"],
        ["attention_bias=1"],
        ["target_layer_ids=5"],
        ["target_layer_ids=[1.5]"],
        ["markov_head_type=fancy"],
        ["layer_types=[]x"],
        ["num_hidden_layers=100000"],
        ["rope_theta=0"],
        ["rope_theta=NaN"],
        ["rope_theta=Infinity"],
        ["rope_theta=1e999"],
        ['rope_scaling={"factor": NaN}'],
        ["rope_theta=" + "[" * 100_000],
        ["rope_theta=" + "9" * 5000],
        ["mask_token_id=5", "mask_token_id=6"],
        ["\udcff=5"],
    ],
)
def test_setting_that_cannot_be_meant_is_wrong_usage(pairs: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_settings(pairs)
    assert caught.value.code == "bad-setting"
    assert caught.value.exit_code == 2


CONFLICTS: list[tuple[str, Any, Document]] = [
    ("target_layer_ids", [0, 2], {"eagle_aux_hidden_state_layer_ids": [9, 10]}),
    ("target_layer_ids", [0, 2], {"dflash_config": {"target_layer_ids": [7, 8]}}),
    ("mask_token_id", 5, {"dflash_config": {"mask_token_id": 6}}),
    ("mask_token_id", 5, {"dflash_config": None}),
    ("rope_theta", 5e6, {"rope_theta": 1.0, "rope_scaling": {"rope_theta": 2.0}}),
    ("rope_scaling", {"rope_type": "yarn"}, {"rope_scaling": {"type": "linear"}}),
    ("sliding_window_non_causal", True, {"is_causal": True, "dflash_config": {"causal": True}}),
]


@pytest.mark.parametrize(("name", "value", "keys"), CONFLICTS)
@pytest.mark.parametrize("dialect", [DENSE_DIALECT, SPECULATORS], ids=lambda d: d.name)
def test_override_wins_over_every_other_spelling(
    dialect: Any, name: str, value: Any, keys: Document
) -> None:
    document = {**config_of(DENSE if dialect is DENSE_DIALECT else REDUCED), **keys}
    before = copy.deepcopy(document)
    edited = apply_overrides(document, dialect, Overrides(fields={name: value}))
    assert document == before
    findings = Findings()
    assert read_field(dialect.rule(name), edited, "f", findings).value == value
    if name == "rope_scaling":  # the base stays as it was
        assert read_field(dialect.rule("rope_theta"), edited, "f", findings).value == 1e6
    assert not errors(findings)


@pytest.mark.parametrize("layout", Layout)
def test_layout_replaces_both_keys(layout: Layout) -> None:
    document = {**config_of(DENSE), "sample_from_anchor": True, "dspark_bonus_anchor": True}
    overrides = Overrides(layout=layout)
    edited = apply_overrides(document, DENSE_DIALECT, overrides)
    assert edited["sample_from_anchor"] is (layout is Layout.ANCHOR_FIRST)
    assert "dspark_bonus_anchor" not in edited
    told = {("sample_from_anchor",), ("dspark_bonus_anchor",)}
    assert overridden_paths(document, DENSE_DIALECT, overrides).keys() == told


def test_overridden_paths_include_nulls_and_whole_objects() -> None:
    document = {**config_of(REDUCED), "mask_token_id": None}
    overrides = Overrides(fields={"mask_token_id": 5, "rope_theta": 5e6})
    told = overridden_paths(document, SPECULATORS, overrides)
    assert told[("mask_token_id",)] == "mask_token_id"
    assert told[("transformer_layer_config", "rope_parameters")] == "rope_theta"


def test_record_names_every_override() -> None:
    overrides = Overrides({"mask_token_id": 5}, Layout.BONUS_ANCHOR, "absolute")
    record = {"mask_token_id": 5, "layout": "bonus_anchor", "d2t": "absolute"}
    assert overrides.as_document() == record
    assert Overrides().as_document() == {}
