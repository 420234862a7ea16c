"""Which dialect a config is of: told by exact names, refused by name, never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_convert.errors import DialectError
from dspark_convert.formats.detect import detect
from fixtures.broken.drafts import read_draft

from .helpers import DENSE, REDUCED, config_of


def refusal(config: dict[str, Any], *tensors: str) -> tuple[str, str]:
    with pytest.raises(DialectError) as caught:
        detect(config, tensors)
    (finding,) = caught.value.findings
    assert finding.hint
    return finding.code, finding.message


@pytest.mark.parametrize(("variant", "name"), [(REDUCED, "speculators"), (DENSE, "dense")])
def test_golden_configs_are_told_with_evidence(variant: str, name: str) -> None:
    detection = detect(config_of(variant), ())
    assert detection.dialect.name == name
    assert len(detection.evidence) == 2


@pytest.mark.parametrize(
    ("config", "dialect"),
    [
        ({"transformer_layer_config": {}}, "speculators"),
        ({"architectures": ["Qwen3DSparkModel"]}, "dense"),
        ({"architectures": ["DSparkDraftModel"]}, "dense"),
        ({"markov_rank": 0, "target_layer_ids": [1]}, "dense"),
        ({"architectures": ["DSparkDraftModel"], "transformer_layer_config": {}}, "speculators"),
        ({"dflash_config": {"projector_type": "dspark"}}, "specforge"),
        ({"dflash_config": {"markov_rank": 256}}, "specforge"),
    ],
)
def test_least_evidence_that_tells_a_dialect(config: dict[str, Any], dialect: str) -> None:
    assert detect(config, ()).dialect.name == dialect


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("eagle", "EAGLE"),
        ("eagle3", "EAGLE-3"),
        ("dflash", "DFlash"),
        ("mtp", "MTP"),
        ("peagle", "P-EAGLE"),
        ("mlp", "MLP"),
        ("brand-new", "brand-new"),
    ],
)
def test_other_draft_of_speculators_is_refused_by_name(kind: str, name: str) -> None:
    code, message = refusal({**config_of(), "speculators_model_type": kind})
    assert code == "unsupported-draft"
    assert name in message


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("LlamaForCausalLMEagle3", "EAGLE-3"),
        ("Eagle3DraftModel", "EAGLE-3"),
        ("EagleSpeculator", "EAGLE"),
        ("DFlashDraftModel", "DFlash"),
        ("MTPDraftModel", "MTP"),
    ],
)
def test_other_draft_is_refused_by_its_architecture(architecture: str, name: str) -> None:
    code, message = refusal({"architectures": [architecture], "model_type": "qwen3"})
    assert code == "unsupported-draft"
    assert name in message


@pytest.mark.parametrize(
    ("architecture", "dialect"),
    [
        ("Gemma4DSparkModel", "gemma4"),
        ("K3DSparkModel", "kimi-k3"),
        ("Lfm2DSparkDraftModel", "lfm2"),
        ("DSparkMiniMaxDraftModel", "minimax-m3"),
        ("MuseSparkDSparkModel", "muse-spark"),
        ("Qwen3OmniDSparkModel", "qwen3-omni"),
        ("DeepseekV4ForCausalLMDSpark", "deepseek-v4"),
    ],
)
def test_recognised_dialect_is_refused_by_name(architecture: str, dialect: str) -> None:
    code, message = refusal({**config_of(DENSE), "architectures": [architecture]})
    assert code == "unsupported-dialect"
    assert dialect in message


@pytest.mark.parametrize(
    ("config", "tensors", "dialect"),
    [
        ({"dspark_target_layer_ids": [40, 41, 42]}, (), "deepseek-v4"),
        ({"model_type": "deepseek_v4"}, ("mtp.0.main_proj.weight",), "deepseek-v4"),
        ({"quantization_config": {"quant_method": "modelopt"}}, (), "modelopt"),
        (
            {
                "architectures": ["Qwen3DSparkModel"],
                "has_embed_tokens": True,
                "quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
            },
            (),
            "nemotron-nvfp4",
        ),
        ({"architectures": ["DSparkDraftModel"], "model_type": "qwen3_dspark"}, (), "torchspec"),
        ({**config_of(DENSE), "markov_head_type": "classical"}, (), "torchspec"),
        ({"model_type": "k3_dspark"}, (), "kimi-k3"),
        ({}, ("language_model.model.dspark.fc.weight",), "minimax-m3"),
    ],
)
def test_recognised_structure_is_refused_by_name(
    config: dict[str, Any], tensors: tuple[str, ...], dialect: str
) -> None:
    code, message = refusal(config, *tensors)
    assert code == "unsupported-dialect"
    assert dialect in message


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        {"architectures": ["MyQwen3DSparkModelV2"]},  # a name that merely contains ours
        {"architectures": "Qwen3DSparkModel"},
        {"architectures": [None, 3]},
        {"transformer_layer_config": "text", "dflash_config": [1]},
    ],
)
def test_anything_else_is_unknown(config: dict[str, Any]) -> None:
    assert refusal(config)[0] == "unknown-dialect"


def names_without(*parts: str) -> set[str]:
    """The tensors of a golden draft, but for those of some parts."""
    names = set(read_draft(DENSE).tensors)
    return {name for name in names if not any(f".{part}." in name for part in parts)}


LATENT = {"layers.0.self_attn.q_a_proj.weight", "layers.0.self_attn.kv_a_proj_with_mqa.weight"}
EXPERTS = {"layers.0.mlp.gate.weight", "layers.0.mlp.experts.gate_up_proj"}
LINEAR = {"layers.0.self_attn.A_log", "layers.0.self_attn.q_conv1d.weight"}


@pytest.mark.parametrize(
    ("keys", "names", "name"),
    [
        ({}, names_without("self_attn") | LATENT, "latent-attention"),
        ({"q_lora_rank": 16, "kv_lora_rank": 16}, names_without("self_attn"), "latent-attention"),
        ({"dflash_config": {"attention_mode": "mla"}}, set(), "latent-attention"),
        ({}, names_without("mlp") | EXPERTS, "mixture-of-experts"),
        ({"n_routed_experts": 4}, names_without("mlp"), "mixture-of-experts"),
        ({}, names_without() | LINEAR, "linear-attention"),
        ({"attention_modes": ["kda", "gqa"]}, names_without(), "linear-attention"),
        ({"draft_layer_types": ["kda_attention"]}, names_without(), "linear-attention"),
        ({"architectures": ["Qwen35DSparkModel"]}, names_without(), "qwen3.5-gated"),
    ],
)
def test_another_decoder_is_named_once(keys: dict[str, Any], names: set[str], name: str) -> None:
    with pytest.raises(DialectError) as caught:
        detect({**config_of(DENSE), **keys}, names)
    (finding,) = caught.value.findings
    assert (finding.code, finding.found) == ("unsupported-dialect", name)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_experts": 128, "n_routed_experts": 64},
        {"q_lora_rank": 1536, "kv_lora_rank": 512},
        {"linear_attn_config": {"kda_layers": [1]}},
        {"attention_modes": ["gqa", "gqa"], "draft_layer_types": ["full_attention"]},
        {"q_lora_rank": None, "num_experts": 0},
    ],
)
def test_leftovers_of_the_target_name_no_decoder(keys: dict[str, Any]) -> None:
    assert detect({**config_of(DENSE), **keys}, names_without()).dialect.name == "dense"
    assert detect({**config_of(DENSE), **keys}, ()).dialect.name == "dense"
