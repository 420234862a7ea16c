"""Stored tensors against implied ones: every way to differ has its own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.errors import MAX_OF_A_KIND, Findings
from dspark_convert.formats.dialects.shared import from_aux_ids, to_aux_ids
from dspark_convert.formats.rules import Place
from dspark_convert.formats.validate_tensors import validate_tensors

from .helpers import DENSE, REDUCED, config_of, errors, parsed, stored, whole

Tensors = dict[str, StoredTensor]
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
GATE = "layers.0.mlp.gate_proj.weight"


def judged(
    change: Callable[[Tensors], object], variant: str = DENSE, **keys: Any
) -> tuple[list[str], Findings]:
    config = parsed(config_of(variant))
    tensors = whole(config)
    change(tensors)
    findings = Findings()
    validate_tensors(config.model_copy(update=keys), tensors, findings)
    return errors(findings), findings


def put(name: str, *shape: int, dtype: str = "BF16") -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: stored(name, *shape, dtype=dtype)})


def drop(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def rename(old: str, new: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def nothing(tensors: Tensors) -> None:
    pass


@pytest.mark.parametrize("variant", [DENSE, REDUCED, "spec_gated_reduced_1plusN_bf16"])
@pytest.mark.parametrize(
    "change",
    [nothing, drop("embed_tokens.weight"), drop("confidence_head.proj.bias")],
)
def test_whole_draft_and_its_optional_tensors(
    variant: str, change: Callable[[Tensors], object]
) -> None:
    assert judged(change, variant)[0] == []


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_float_dtypes_may_be_mixed(dtype: str) -> None:
    assert judged(put("norm.weight", 64, dtype=dtype))[0] == []


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (drop("norm.weight"), ["tensor-missing"]),
        (drop("fc.weight", "norm.weight"), ["tensor-missing", "tensor-missing"]),
        (rename("hidden_norm.weight", "hiden_norm.weight"), ["tensor-misspelt", "tensor-missing"]),
        (put("adapter.weight", 4), ["tensor-unknown"]),
        (put("layers.2.input_layernorm.weight", 64), ["tensor-unknown"]),
        (put("layers.0.self_attn.q_proj.bias", 96), ["tensor-unknown"]),
        (put("layers.0.self_attn.qkv_proj.weight", 192, 64), ["tensor-fused"]),
        (put("layers.0.mlp.gate_up_proj.weight", 192, 64), ["tensor-fused"]),
        (put("layers.0.self_attn.kv_proj.weight", 96, 64), ["tensor-fused"]),
        (put("fc.weight", 192, 64), ["tensor-transposed"]),
        (put(W1, 16, 320), ["tensor-transposed"]),
        (put("confidence_head.proj.weight", 80, 1), ["tensor-transposed"]),
        (put("fc.weight", 64, 128), ["fc-width-mismatch"]),
        (put("fc.weight", 32, 128), ["tensor-shape"]),
        (put("norm.weight", 65), ["tensor-shape"]),
        (put("norm.weight", 64, 1), ["tensor-shape"]),
        (put("norm.weight", 64, dtype="I32"), ["tensor-dtype"]),
        (put("norm.weight", 64, dtype="F64"), ["tensor-dtype"]),
    ],
)
def test_difference_has_its_code(change: Callable[[Tensors], object], codes: list[str]) -> None:
    assert judged(change)[0] == codes


def test_reduced_vocabulary_wants_its_own_head() -> None:
    assert judged(drop("lm_head.weight"), REDUCED)[0] == ["lm-head-missing"]
    assert judged(drop("lm_head.weight"), DENSE)[0] == []


def test_feature_width_names_both_numbers_and_how_they_come_about() -> None:
    _, findings = judged(put("fc.weight", 64, 128))
    (finding,) = findings
    assert (finding.expected, finding.found) == ("[64, 192]", "[64, 128]")
    for number in ("128 columns", "3 target layer ids", "hidden size 64", "192"):
        assert number in finding.message


def test_misspelt_name_is_told_with_the_name_that_is_missing() -> None:
    _, findings = judged(rename("hidden_norm.weight", "hiden_norm.weight"))
    finding = next(iter(findings))
    assert (finding.found, finding.expected) == ("hiden_norm.weight", "hidden_norm.weight")


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({"markov_rank": 0, "confidence_head_with_markov": False}, nothing),
        ({"markov_rank": 8}, nothing),
        ({"markov_head_type": "gated"}, nothing),
        ({"markov_head_type": "rnn"}, nothing),
        ({}, put("markov_head.gate_proj.weight", 16, 80)),
        ({}, put("markov_head.joint_proj.bias", 48)),
        ({}, drop(W1, W2)),
        ({"enable_confidence_head": False}, nothing),
        ({"confidence_head_with_markov": False}, nothing),
        ({}, put("confidence_head.proj.weight", 1, 64)),
        ({}, drop("confidence_head.proj.weight", "confidence_head.proj.bias")),
    ],
)
def test_heads_and_flags_that_disagree_get_one_kind_of_answer(
    keys: dict[str, Any], change: Callable[[Tensors], object]
) -> None:
    codes, findings = judged(change, **keys)
    assert set(codes) == {"head-flag-mismatch"}
    assert all("--set" in str(finding.hint) for finding in findings)


def test_confidence_cannot_read_a_markov_head_that_is_off() -> None:
    codes, _ = judged(drop(W1, W2), markov_rank=0)
    assert set(codes) == {"head-flag-mismatch"}


def extra_layer(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith("layers.1.")]:
        tensors[name.replace("layers.1.", "layers.2.")] = tensors[name]


def biases(*projections: str) -> Callable[[Tensors], object]:
    names = [f"layers.{layer}.self_attn.{x}_proj.bias" for layer in (0, 1) for x in projections]
    return lambda tensors: tensors.update(
        {name: stored(name, 64 if "q_" in name or "o_" in name else 32) for name in names}
    )


@pytest.mark.parametrize(
    ("change", "keys", "code", "setting"),
    [
        (nothing, {"num_hidden_layers": 40}, "layer-count-mismatch", "num_hidden_layers=2"),
        (nothing, {"num_hidden_layers": 1}, "layer-count-mismatch", "num_hidden_layers=2"),
        (extra_layer, {}, "layer-count-mismatch", "num_hidden_layers=3"),
        (nothing, {"attention_bias": True}, "attention-bias-mismatch", "attention_bias=false"),
        (biases(*"qkvo"), {}, "attention-bias-mismatch", "attention_bias=true"),
    ],
)
def test_config_that_is_wrong_about_layers_is_told_once(
    change: Callable[[Tensors], object], keys: dict[str, Any], code: str, setting: str
) -> None:
    _, findings = judged(change, **keys)
    (finding,) = [finding for finding in findings if finding.code != "tensor-shape"]
    assert finding.code == code
    assert f"--set {setting};" in str(finding.hint)


def test_some_biases_are_no_reason_to_doubt_the_config() -> None:
    assert judged(biases(*"qkv"))[0] == ["tensor-unknown"] * 6


def test_feature_width_names_the_ids_as_the_file_spells_them() -> None:
    config = parsed(config_of())
    tensors = {**whole(config), "fc.weight": stored("fc.weight", 64, 128)}
    findings = Findings()
    place = Place(("aux_hidden_state_layer_ids",), from_aux_ids, to_aux_ids)
    validate_tensors(config, tensors, findings, layer_ids=place)
    (finding,) = findings.of("error")
    assert "aux_hidden_state_layer_ids [1, 2, 3]" in finding.message
    assert "count decoder layers from 0" in str(finding.hint)


def test_more_layers_than_any_decoder_has_are_not_believed() -> None:
    def flood(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("layers.")]:
            del tensors[name]
        for layer in range(1025):
            put(f"layers.{layer}.input_layernorm.weight", 64)(tensors)

    assert "layer-count-mismatch" not in judged(flood)[0]


@pytest.mark.parametrize("bare", ["markov_w1.weight", "markov_w2.weight"])
def test_a_head_without_its_prefix_is_named_as_such(bare: str) -> None:
    codes, findings = judged(rename(f"markov_head.{bare}", bare))
    assert codes == ["head-prefix-missing"]
    (finding,) = findings.of("error")
    assert finding.expected == f"markov_head.{bare}"


def test_raw_names_of_both_heads_are_one_fault() -> None:
    def unprefix(tensors: Tensors) -> None:
        rename(W1, "markov_w1.weight")(tensors)
        rename(W2, "markov_w2.weight")(tensors)
        rename("confidence_head.proj.weight", "confidence_proj.weight")(tensors)
        rename("confidence_head.proj.bias", "confidence_proj.bias")(tensors)

    codes, findings = judged(unprefix)
    assert codes == ["head-prefix-missing"]
    (finding,) = findings.of("error")
    assert str(finding.expected).split(", ")[0] == "confidence_head.proj.bias"
    assert len(str(finding.found).split(", ")) == 4


def test_thousands_of_tensors_that_do_not_belong_are_counted() -> None:
    def fill(tensors: Tensors) -> None:
        for number in range(48_000):
            put(f"model.layers.{number}.mlp.gate_pr0j.weight", 1)(tensors)
        rename(GATE, "layers.0.mlp.gate_porj.weight")(tensors)

    codes, findings = judged(fill)
    assert set(codes) == {"tensor-unknown", "tensor-misspelt", "tensor-missing"}
    assert codes.count("tensor-unknown") == MAX_OF_A_KIND + 1
    (misspelt,) = [x for x in findings.of("error") if x.code == "tensor-misspelt"]
    assert (misspelt.found, misspelt.expected) == ("layers.0.mlp.gate_porj.weight", GATE)
    assert any(x.message == "and 47,980 more of this kind" for x in findings)
