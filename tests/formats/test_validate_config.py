"""Values that no draft can have."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_convert.errors import Findings
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.dialects.shared import from_aux_ids, to_aux_ids
from dspark_convert.formats.rules import Place
from dspark_convert.formats.validate_config import validate_config
from dspark_convert.schemas.draft import Layout

from .helpers import DENSE, config_of, errors, parsed


def judged(document: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    config = parsed(config_of(DENSE)).model_copy(update=keys)
    findings = Findings()
    document = document or config_of(DENSE)
    nested = "transformer_layer_config" in document
    validate_config(config, document, DIALECTS["speculators" if nested else "dense"], findings)
    return errors(findings)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"target_layer_ids": ()}, "layer-ids-invalid"),
        ({"target_layer_ids": (1, 1)}, "layer-ids-invalid"),
        ({"target_layer_ids": (2, 1)}, "layer-ids-invalid"),
        ({"target_layer_ids": (-2, 1)}, "layer-ids-invalid"),
        ({"target_layer_ids": (1, 4)}, "layer-ids-invalid"),
        ({"mask_token_id": 320}, "mask-token-out-of-range"),
        ({"layout": Layout.BONUS_ANCHOR, "block_size": 1}, "block-too-short"),
        ({"num_attention_heads": 3}, "heads-invalid"),
        ({"rope_parameters": {"rope_theta": 0.0}}, "config-invalid"),
        ({"rope_parameters": {"rope_theta": -1e6}}, "config-invalid"),
    ],
)
def test_value_is_refused(keys: dict[str, Any], code: str) -> None:
    assert judged(**keys) == [code]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"target_layer_ids": (-1, 0, 3)},
        {"target_layer_ids": (1, 99), "num_target_layers": None},
        {"mask_token_id": 0},
        {"mask_token_id": 319},
        {"block_size": 1},
    ],
)
def test_value_at_the_edge_is_accepted(keys: dict[str, Any]) -> None:
    assert judged(**keys) == []


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"model_type": "llama"}, "decoder-unsupported"),
        ({"transformer_layer_config": {"model_type": "gemma4"}}, "decoder-unsupported"),
        ({"is_causal": True}, "causal-full-attention"),
        ({"transformer_layer_config": {"is_causal": True}}, "causal-full-attention"),
        ({"dflash_config": {"causal": True}}, "causal-full-attention"),
    ],
)
def test_document_is_refused(document: dict[str, Any], code: str) -> None:
    assert judged(document) == [code]


def methods(*tokens: int) -> dict[str, Any]:
    counts = [{"speculative_tokens": count} for count in tokens]
    return {"speculators_config": {"proposal_methods": counts}}


@pytest.mark.parametrize(("tokens", "faults"), [((1, 7), 0), ((7, 8), 1), ((0, -1, 10**30), 3)])
def test_tokens_of_every_method_must_come_from_a_block(
    tokens: tuple[int, ...], faults: int
) -> None:
    assert judged(methods(*tokens)) == ["speculative-tokens-invalid"] * faults


@pytest.mark.parametrize("keys", [{"target_layer_ids": (2, 1, 0)}, {"target_layer_ids": (1, 4)}])
def test_layer_ids_are_told_as_the_file_spells_them(keys: dict[str, Any]) -> None:
    config = parsed(config_of(DENSE)).model_copy(update=keys)
    findings = Findings()
    place = Place(("aux_hidden_state_layer_ids",), from_aux_ids, to_aux_ids)
    validate_config(config, config_of(DENSE), DIALECTS["dense"], findings, layer_ids=place)
    (finding,) = findings
    assert finding.key == "aux_hidden_state_layer_ids"
    assert finding.found in ("[3, 2, 1]", "[5]")
    assert "one less than aux_hidden_state_layer_ids" in str(finding.hint)


def taps(**keys: Any) -> Findings:
    document = {**config_of(DENSE), "target_layer_ids": [1, 38, 75], **keys}
    document.pop("eagle_aux_hidden_state_layer_ids", None)
    config = parsed(document)
    findings = Findings()
    validate_config(config, document, DIALECTS["dense"], findings)
    return findings


@pytest.mark.parametrize(
    ("keys", "expected", "setting"),
    [
        ({"target_num_hidden_layers": 78}, "target_num_hidden_layers = 78", "=78"),
        (
            {"dflash_config": {"target_num_hidden_layers": 78}},
            "dflash_config.target_num_hidden_layers = 78",
            "=78",
        ),
        ({}, "the depth of the target", "=N"),
    ],
)
def test_a_depth_that_counts_the_taps_is_the_wrong_key(
    keys: dict[str, Any], expected: str, setting: str
) -> None:
    (finding,) = taps(num_target_layers=3, **keys)
    assert (finding.code, finding.key) == ("target-depth-counts-taps", "num_target_layers")
    assert (finding.expected, finding.found) == (expected, "3")
    assert f"--set num_target_layers{setting}" in str(finding.hint)


def test_a_depth_that_is_too_small_is_not_a_count_of_taps() -> None:
    assert errors(taps(num_target_layers=40)) == ["layer-ids-invalid"]
    assert errors(taps(num_target_layers=78, target_num_hidden_layers=78)) == []
