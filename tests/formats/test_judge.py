"""Values that no draft can have."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_convert.errors import Findings
from dspark_convert.formats.judge import judge_config
from dspark_convert.schemas.draft import Layout

from .helpers import DENSE, config_of, errors, parsed


def judged(document: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    config = parsed(config_of(DENSE)).model_copy(update=keys)
    findings = Findings()
    judge_config(config, document or config_of(DENSE), findings)
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
        ({"quantization_config": {"bits": 4}}, "quantised-draft"),
        ({"transformer_layer_config": {"quantization_config": {}}}, "quantised-draft"),
        ({"compression_config": {}}, "quantised-draft"),
        ({"model_type": "llama"}, "decoder-unsupported"),
        ({"transformer_layer_config": {"model_type": "gemma4"}}, "decoder-unsupported"),
        ({"is_causal": True}, "causal-full-attention"),
        ({"transformer_layer_config": {"is_causal": True}}, "causal-full-attention"),
        ({"dflash_config": {"causal": True}}, "causal-full-attention"),
    ],
)
def test_document_is_refused(document: dict[str, Any], code: str) -> None:
    assert judged(document) == [code]
