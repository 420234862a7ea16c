"""Drafts to speculators: against a list written by hand, the target's tensors, and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import CheckpointError, DraftError, UsageError
from dspark_convert.formats.overrides import Overrides
from dspark_convert.schemas.draft import Layout
from fixtures.broken.drafts import Tensor, read_draft, read_tensors
from fixtures.broken.edits import drop, put, zeros

from .helpers import config_of, convert, tensors_of
from .reference import CONFIGS, SHAPES, dtype_of
from .speculators import (
    DENSE,
    FULL,
    REDUCED,
    SPECULATORS,
    back,
    codes,
    planned,
    refusal,
    verifier_of,
)
from .test_keys import flat

# By hand: what speculators 0.9.0 reads of dense_vanilla_bf16.
DECODER = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": 24,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 512,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 320,
}
CONFIG = {
    "architectures": ["DSparkDraftModel"],
    "aux_hidden_state_layer_ids": [1, 2, 3],
    "block_size": 7,
    "confidence_head_with_markov": True,
    "draft_vocab_size": 320,
    "dtype": "bfloat16",
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 16,
    "mask_token_id": 319,
    "num_anchors": 32,
    "num_target_layers": 4,
    "sample_from_anchor": True,
    "speculators_config": {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "accept_tolerance": 0.0,
                "proposal_type": "greedy",
                "speculative_tokens": 7,
                "verifier_accept_k": 1,
            }
        ],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "VERIFIER"},
    },
    "speculators_model_type": "dspark",
    "tie_word_embeddings": False,
    "transformer_layer_config": DECODER,
    "transformers_version": "5.19.0",
}


# Anew -----------------------------------------------------------------------------------------


def test_config_is_the_one_written_by_hand(golden: Path, tmp_path: Path) -> None:
    verifier = verifier_of(DENSE[0], golden)
    manifest = back(golden / DENSE[0] / "checkpoint", tmp_path / "out", verifier=verifier)
    CONFIG["speculators_config"]["verifier"]["name_or_path"] = verifier
    assert config_of(tmp_path / "out") == CONFIG
    assert codes(manifest) >= {"origin-unknown", "verifier-is-local"}


@pytest.mark.parametrize("variant", DENSE)
def test_tensors_are_those_of_speculators(variant: str, golden: Path, tmp_path: Path) -> None:
    source = golden / variant / "checkpoint"
    back(source, tmp_path / "out", verifier=verifier_of(variant, golden))
    result = tensors_of(tmp_path / "out")
    names = SHAPES[variant].keys() - {"embed_tokens.weight", "lm_head.weight"}
    assert {name: (dtype, shape) for name, (dtype, shape, _) in result.items()} == {
        name: (dtype_of(variant, name), SHAPES[variant][name]) for name in names
    }
    assert result.items() <= tensors_of(source).items()


@pytest.mark.parametrize(("layout", "tokens"), [("anchor_first", 7), ("bonus_anchor", 6)])
def test_number_of_tokens_follows_the_layout(layout: str, tokens: int, golden: Path) -> None:
    source = golden / "dense_vanilla_bf16" / "checkpoint"
    overrides = Overrides(layout=Layout(layout))
    plan = planned(source, verifier=verifier_of("", golden), overrides=overrides)
    (method,) = plan.config["speculators_config"]["proposal_methods"]
    assert method["speculative_tokens"] == tokens
    assert plan.config["sample_from_anchor"] is (layout == "anchor_first")


@pytest.mark.parametrize("variant", CONFIGS)
def test_account_of_a_golden_draft(variant: str, golden: Path) -> None:
    plan = planned(golden / variant / "checkpoint", verifier=verifier_of(variant, golden))
    sources = [step.source for step in plan.keys if step.source is not None]
    assert sorted(sources) == flat(read_draft(variant).config)
    reached = [name for step in plan.keys for name in step.names]
    assert set(flat(plan.config)) <= set(reached)
    assert all(bool(step.names) != (step.action == "dropped") for step in plan.keys)
    stored = [step.source for step in plan.tensors if step.source is not None]
    assert sorted(stored) == sorted(read_draft(variant).tensors)


# The target's tensors -------------------------------------------------------------------------


@pytest.mark.parametrize("variant", SPECULATORS)
def test_filled_tensors_are_left_out_again_without_the_folder(
    variant: str, golden: Path, tmp_path: Path
) -> None:
    convert(
        golden / variant / "checkpoint",
        tmp_path / "dense",
        target=Path(verifier_of(variant, golden)),
    )
    plan = planned(tmp_path / "dense", verifier="org/name")
    left = {step.source: step.reason for step in plan.tensors if step.action == "dropped"}
    names = {"embed_tokens.weight", "lm_head.weight"} - ({"lm_head.weight"} & own_head(variant))
    assert left.keys() == names
    assert all("earlier conversion" in reason for reason in left.values())
    warned = {f.tensor for f in plan.findings if f.code == "own-weights-assumed"}
    assert warned == names


def test_filled_tensors_of_another_target_are_refused(golden: Path, tmp_path: Path) -> None:
    source, target = golden / FULL / "checkpoint", golden / "verifier_fp32"
    convert(source, tmp_path / "dense", target=target)
    other = golden / "verifier_bf16"
    expected = ["own-weights-differ"] * 2
    assert refusal(tmp_path / "dense", verifier=str(other)) == expected


def own_head(variant: str) -> set[str]:
    return {"lm_head.weight"} if "reduced" in variant else set()


@pytest.mark.parametrize("verifier", ["verifier_bf16", "org/name"])
def test_own_weights_are_never_dropped_unseen(
    verifier: str, draft: Callable[..., Path], golden: Path
) -> None:
    source = draft(zeros("lm_head.weight", "BF16", 320, 64), base="dense_vanilla_bf16")
    local = verifier != "org/name"
    name = str(golden / verifier) if local else verifier
    expected = ["own-weights-differ"] if local else ["own-weights-unknown"] * 2
    assert refusal(source, verifier=name) == expected
    plan = planned(source, verifier=name, keep_verifier_weights=True)
    kept = {step.name for step in plan.tensors}
    assert kept >= {"lm_head.weight", "embed_tokens.weight"}
    warned = [finding.tensor for finding in plan.findings if finding.severity == "warning"]
    assert warned == (["lm_head.weight"] if local else ["embed_tokens.weight", "lm_head.weight"])


def test_one_changed_byte_in_the_middle_is_seen(draft: Callable[..., Path], golden: Path) -> None:
    def flip(it: Any) -> None:
        data = bytearray(it.tensors["embed_tokens.weight"].data)
        data[len(data) // 2] ^= 1
        it.tensors["embed_tokens.weight"] = Tensor("BF16", (320, 64), bytes(data))

    source = draft(flip, base="dense_vanilla_bf16")
    assert refusal(source, verifier=str(golden / "verifier_bf16")) == ["own-weights-differ"]


def test_reduced_head_is_the_drafts_own(golden: Path, tmp_path: Path) -> None:
    target = golden / "verifier_bf16"
    convert(golden / REDUCED / "checkpoint", tmp_path / "dense", target=target)
    (tmp_path / "dense" / MANIFEST_FILE).unlink()
    assert "embed_tokens.weight" in tensors_of(tmp_path / "dense")
    back(tmp_path / "dense", tmp_path / "out", verifier=str(target))
    assert tensors_of(tmp_path / "out") == tensors_of(golden / REDUCED / "checkpoint")


# Vocabulary and heads -------------------------------------------------------------------------


def test_mask_is_made_from_the_table(draft: Callable[..., Path], tmp_path: Path) -> None:
    back(draft(drop("t2d")), tmp_path / "out")
    tensors = read_tensors(tmp_path / "out" / "model.safetensors")
    ids = np.arange(200) + tensors["d2t"].array()
    assert tensors["t2d"].dtype == "BOOL"
    assert np.flatnonzero(tensors["t2d"].array()).tolist() == sorted(ids.tolist())


def test_mask_that_marks_other_ids_is_made_anew(draft: Callable[..., Path], tmp_path: Path) -> None:
    def unmark(it: Any) -> None:
        it.tensors["t2d"] = Tensor.zeros("BOOL", 320)

    manifest = back(draft(unmark), tmp_path / "out", overrides=Overrides(d2t="offsets"))
    assert read_tensors(tmp_path / "out" / "model.safetensors")["t2d"].array().sum() == 200
    steps = {(step.source, step.name): step.action for step in manifest.tensors}
    assert steps["t2d", None] == "dropped"
    assert steps[None, "t2d"] == "added"


def test_absent_bias_becomes_zero(draft: Callable[..., Path], tmp_path: Path) -> None:
    back(draft(drop("confidence_head.proj.bias")), tmp_path / "out")
    bias = tensors_of(tmp_path / "out")["confidence_head.proj.bias"]
    assert bias == ("BF16", [1], b"\0\0")


# What cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edits",
    [
        (put(target_hidden_size=32), zeros("fc.weight", "BF16", 64, 96)),
        (
            put(draft_vocab_size=330),
            zeros("lm_head.weight", "BF16", 330, 64),
            zeros("markov_head.markov_w2.weight", "BF16", 330, 16),
        ),
    ],
)
def test_what_speculators_cannot_say_is_refused(
    edits: tuple[Any, ...], draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(*edits, base="dense_vanilla_bf16")
    convert(source, tmp_path / "dense")
    options = {"verifier": "org/name", "keep_verifier_weights": True}
    assert refusal(source, **options) == ["not-expressible"]


def test_target_as_wide_as_the_draft_may_be_said(draft: Callable[..., Path]) -> None:
    source = draft(put(target_hidden_size=64), base="dense_vanilla_bf16")
    plan = planned(source, verifier="org/name", keep_verifier_weights=True)
    assert plan.config["target_hidden_size"] == 64


def test_draft_of_another_target_is_refused(draft: Callable[..., Path], golden: Path) -> None:
    source = draft(put(num_target_layers=9), base="dense_vanilla_bf16")
    assert refusal(source, verifier=str(golden / "verifier_bf16")) == ["target-depth-mismatch"]


NO_VERIFIER = ["./nowhere", "/nowhere/at/all", "a/b/c", "~/model", "", "org/", "n" * 5000, "a\0b"]


@pytest.mark.parametrize("name", NO_VERIFIER, ids=range(len(NO_VERIFIER)))
def test_verifier_that_is_neither_folder_nor_repository(name: str, golden: Path) -> None:
    with pytest.raises(UsageError) as caught:
        planned(golden / DENSE[0] / "checkpoint", verifier=name)
    assert caught.value.code == "bad-verifier"


def test_verifier_must_be_known(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftError) as caught:
        planned(golden / DENSE[0] / "checkpoint")
    assert caught.value.code == "verifier-unknown"
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError):
        planned(golden / DENSE[0] / "checkpoint", verifier=str(tmp_path / "empty"))


def test_snapshot_of_the_hub_cache_is_named_by_its_repository(golden: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--target" / "snapshots" / ("a" * 40)
    shutil.copytree(golden / "verifier_bf16", snapshot)
    plan = planned(golden / "dense_vanilla_bf16" / "checkpoint", verifier=str(snapshot))
    verifier = plan.config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "acme/target", "architectures": ["Qwen3ForCausalLM"]}
    assert "verifier-is-local" not in codes(plan)


def test_folder_whose_name_is_no_utf8_is_written_with_escapes(golden: Path, tmp_path: Path) -> None:
    verifier = tmp_path / "target-\udcff"
    shutil.copytree(golden / "verifier_bf16", verifier)
    back(golden / DENSE[0] / "checkpoint", tmp_path / "out", verifier=str(verifier))
    named = config_of(tmp_path / "out")["speculators_config"]["verifier"]["name_or_path"]
    assert named == f"{tmp_path}/target-\\xff"


def test_verifier_given_overrules_the_recorded_one(golden: Path, tmp_path: Path) -> None:
    convert(golden / FULL / "checkpoint", tmp_path / "dense")
    plan = planned(tmp_path / "dense", verifier="acme/other")
    verifier = plan.config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "acme/other", "architectures": []}


@pytest.mark.parametrize("foreign", ["{", json.dumps({"tool": "other"})])
def test_refusal_says_that_a_manifest_was_of_no_help(
    foreign: str, draft: Callable[..., Path]
) -> None:
    source = draft(base=DENSE[0])
    (source / MANIFEST_FILE).write_text(foreign)
    for verifier, code in ((None, "verifier-unknown"), ("org/name", "own-weights-unknown")):
        with pytest.raises(DraftError) as caught:
            planned(source, verifier=verifier)
        assert {finding.code for finding in caught.value.findings} == {code, "manifest-unusable"}
        assert caught.value.code == code
        assert verifier or MANIFEST_FILE in str(caught.value.findings[0].hint)


def test_expanded_head_is_no_verifiers(golden: Path, tmp_path: Path) -> None:
    target = golden / "verifier_bf16"
    expanded = plan_to_dense(golden / REDUCED / "checkpoint", expand_vocabulary=True)
    run_conversion(expanded, tmp_path / "full")
    with pytest.raises(DraftError) as caught:
        planned(tmp_path / "full", verifier=str(target))
    (finding,) = caught.value.findings
    assert (finding.code, finding.tensor) == ("own-weights-differ", "lm_head.weight")
    assert "--expand-vocab" in str(finding.hint)
    assert "--keep-verifier-weights" in str(finding.hint)
    assert "give the verifier that" not in str(finding.hint)


def test_tokens_of_a_method_follow_a_shorter_block(golden: Path, tmp_path: Path) -> None:
    convert(golden / REDUCED / "checkpoint", tmp_path / "dense")
    plan = planned(tmp_path / "dense", overrides=Overrides(fields={"block_size": 4}))
    (method,) = plan.config["speculators_config"]["proposal_methods"]
    assert (plan.config["block_size"], method["speculative_tokens"]) == (4, 4)
