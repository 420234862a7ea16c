"""Names of tensors, and the tensors that a config implies against a list written by hand."""

from __future__ import annotations

import pytest

from dspark_convert.errors import Findings
from dspark_convert.formats.tensors import canonical_name, expected_tensors, name_tensors

from .helpers import DENSE, REDUCED, config_of, errors, notes, parsed, stored


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("fc.weight", "fc.weight"),
        ("model.fc.weight", "fc.weight"),
        ("encoder.fc.weight", "fc.weight"),
        ("model.encoder.fc.weight", "fc.weight"),
        ("encoder.output_norm_enc.weight", "hidden_norm.weight"),
        ("d2t", "draft_id_to_target_id"),
        ("model.d2t", "draft_id_to_target_id"),
        ("draft_id_to_target_id", "draft_id_to_target_id"),
        ("d2t.weight", "d2t.weight"),
        ("models.fc.weight", "models.fc.weight"),
        ("layers.0.model.weight", "layers.0.model.weight"),
    ],
)
def test_canonical_name(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


def test_names_are_normalised_once_and_said_once() -> None:
    findings = Findings()
    named = name_tensors([stored("model.norm.weight", 4), stored("model.fc.weight", 4)], findings)
    assert named.kept.keys() == {"norm.weight", "fc.weight"}
    assert notes(findings) == ["prefix-normalised"]
    assert not errors(findings)


@pytest.mark.parametrize(
    "name",
    ["t2d", "mask_embedding", "verifier_norm.weight", "verifier_lm_head.weight", "model.t2d"],
)
def test_tensors_of_training_and_target_are_set_apart(name: str) -> None:
    named = name_tensors([stored(name, 4)], Findings())
    assert not named.kept
    assert [tensor.name for tensor in named.dropped.values()] == [name]


@pytest.mark.parametrize(
    "names",
    [
        ["fc.weight", "model.fc.weight"],
        ["fc.weight", "encoder.fc.weight"],
        ["t2d", "model.t2d"],
        ["d2t", "draft_id_to_target_id", "model.d2t"],
    ],
)
def test_two_tensors_of_one_name_are_refused(names: list[str]) -> None:
    findings = Findings()
    name_tensors([stored(name, 4) for name in names], findings)
    assert errors(findings) == ["tensor-duplicate"]


def test_both_names_of_the_table_are_kept_for_comparison() -> None:
    findings = Findings()
    named = name_tensors([stored("draft_id_to_target_id", 4), stored("d2t", 4)], findings)
    assert named.kept["draft_id_to_target_id"].name == "d2t"
    assert named.second_table is not None
    assert named.second_table.name == "draft_id_to_target_id"
    assert not list(findings)


LAYER = {
    "self_attn.q_proj.weight": (96, 64),
    "self_attn.k_proj.weight": (48, 64),
    "self_attn.v_proj.weight": (48, 64),
    "self_attn.o_proj.weight": (64, 96),
    "self_attn.q_norm.weight": (24,),
    "self_attn.k_norm.weight": (24,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
    "input_layernorm.weight": (64,),
    "post_attention_layernorm.weight": (64,),
}
BIASES = {
    "self_attn.q_proj.bias": (96,),
    "self_attn.k_proj.bias": (48,),
    "self_attn.v_proj.bias": (48,),
    "self_attn.o_proj.bias": (64,),
}
BODY = {
    "embed_tokens.weight": (320, 64),
    "fc.weight": (64, 192),
    "hidden_norm.weight": (64,),
    "norm.weight": (64,),
    "confidence_head.proj.weight": (1, 80),
    "confidence_head.proj.bias": (1,),
}
HEADS = {
    "vanilla": {},
    "gated": {
        "markov_head.gate_proj.weight": (16, 80),
        "markov_head.gate_proj.bias": (16,),
    },
    "rnn": {
        "markov_head.joint_proj.weight": (48, 96),
        "markov_head.joint_proj.bias": (48,),
    },
}


def layers(parts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"layers.{i}.{name}": shape for i in range(2) for name, shape in parts.items()}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_tensors_that_a_config_implies(kind: str, reduced: bool, bias: bool) -> None:
    document = config_of(REDUCED if reduced else DENSE) | {"markov_head_type": kind}
    document.get("transformer_layer_config", document)["attention_bias"] = bias
    rows = 200 if reduced else 320
    by_hand = BODY | layers(LAYER | (BIASES if bias else {})) | HEADS[kind]
    by_hand["lm_head.weight"] = (rows, 64)
    by_hand["markov_head.markov_w1.weight"] = (320, 16)
    by_hand["markov_head.markov_w2.weight"] = (rows, 16)
    if reduced:
        by_hand["draft_id_to_target_id"] = (200,)
    specs = expected_tensors(parsed(document))
    assert {name: spec.shape for name, spec in specs.items()} == by_hand
    optional = {name for name, spec in specs.items() if not spec.required}
    shared = set() if reduced else {"lm_head.weight"}
    assert optional == {"embed_tokens.weight", "confidence_head.proj.bias"} | shared
    integers = {name for name, spec in specs.items() if "I64" in spec.dtypes}
    assert integers == ({"draft_id_to_target_id"} if reduced else set())


def test_heads_that_are_off_imply_nothing() -> None:
    off = {"markov_rank": 0, "enable_confidence_head": False}
    names = expected_tensors(parsed(config_of(DENSE) | off)).keys()
    assert not [name for name in names if "head." in name and name != "lm_head.weight"]


def test_feature_columns_count_the_width_of_the_target() -> None:
    wide = config_of(DENSE) | {"target_hidden_size": 96, "target_layer_ids": [0, 2]}
    assert expected_tensors(parsed(wide))["fc.weight"].shape == (64, 192)
    narrow = parsed(config_of(DENSE) | {"confidence_head_with_markov": False})
    assert expected_tensors(narrow)["confidence_head.proj.weight"].shape == (1, 64)
