"""Quantised weights that are of no known scheme: one refusal, whatever gives them away."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_convert.errors import Findings
from dspark_convert.formats.quantisation import find_scheme, refuse_quantised

from .helpers import stored

GATE = "layers.0.mlp.gate_proj"
NESTED = ("transformer_layer_config",)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (f"{GATE}.weight", "F8_E4M3"),
        (f"{GATE}.weight", "U8"),
        (f"{GATE}.weight_scale", "F32"),
        (f"{GATE}.weight_scale_inv", "F32"),
        (f"{GATE}.weight_packed", "I32"),
        (f"{GATE}.qweight", "I32"),
    ],
)
def test_stored_weights_give_it_away(name: str, dtype: str) -> None:
    findings = Findings()
    tensors = {name: stored(name, 8, 8, dtype=dtype), "norm.weight": stored("norm.weight", 8)}
    assert refuse_quantised({}, (), tensors, findings)
    (finding,) = findings
    assert (finding.code, finding.tensor, finding.key) == ("quantised-draft", name, None)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"compression_config": {}}, "compression_config"),
        (
            {"transformer_layer_config": {"quantization_config": {}}},
            "transformer_layer_config.quantization_config",
        ),
    ],
)
def test_a_config_gives_it_away(config: dict[str, Any], key: str) -> None:
    findings = Findings()
    assert not refuse_quantised(config, NESTED, {}, findings)
    (finding,) = findings
    assert (finding.code, finding.key) == ("quantised-draft", key)


def test_what_both_say_is_said_once() -> None:
    findings, name = Findings(), f"{GATE}.weight"
    tensors = {name: stored(name, 8, 8, dtype="I8")}
    assert refuse_quantised({"quantization_config": {"bits": 8}}, (), tensors, findings)
    (finding,) = findings
    assert (finding.tensor, finding.key) == (name, "quantization_config")


def test_float_weights_are_not_quantised() -> None:
    findings = Findings()
    tensors = {"norm.weight": stored("norm.weight", 8)}
    assert not refuse_quantised({"quantization_config": None}, NESTED, tensors, findings)
    assert list(findings) == []


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quantization_config": {"quant_method": "modelopt"}}, "modelopt"),
        (
            {
                "quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
                "has_embed_tokens": True,
            },
            "nemotron-nvfp4",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, None),
        ({"quantization_config": "modelopt"}, None),
    ],
)
def test_a_scheme_is_known_by_its_config(config: dict[str, Any], name: str | None) -> None:
    scheme = find_scheme(config, ())
    assert (scheme.name if scheme else None) == name
