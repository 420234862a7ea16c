"""Speculators drafts to dense and back: what they were, but for what was changed on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.formats.overrides import Overrides
from dspark_convert.schemas.draft import Layout
from fixtures.broken.drafts import write_json
from fixtures.broken.edits import cut, proposes, put, sharded

from .helpers import config_of, convert, digest, tensors_of
from .speculators import (
    DENSE,
    FULL,
    LEGACY,
    REDUCED,
    SLIDING,
    SPECULATORS,
    back,
    codes,
    planned,
    verifier_of,
)


def edit_config(folder: Path, **values: Any) -> None:
    write_json(folder / "config.json", config_of(folder) | values)


def assert_identity(source: Path, result: Path) -> None:
    """Bytes of tensors; key for key the config, but for the pointer at code and a silent layout."""
    before, after = config_of(source), config_of(result)
    before.pop("auto_map")
    if "sample_from_anchor" not in before:
        assert after.pop("sample_from_anchor") is False
    assert after == before
    assert tensors_of(result) == tensors_of(source)


@pytest.mark.parametrize("variant", SPECULATORS)
@pytest.mark.parametrize("detour", ["dense", "filled", "dense twice", "both ways twice"])
def test_way_back_is_the_identity(variant: str, detour: str, golden: Path, tmp_path: Path) -> None:
    source = golden / variant / "checkpoint"
    target = Path(verifier_of(variant, golden)) if detour == "filled" else None
    convert(source, tmp_path / "dense", target=target)
    last = tmp_path / "dense"
    if detour == "dense twice":
        convert(last, last := tmp_path / "dense-2")
    elif detour == "both ways twice":
        back(last, tmp_path / "speculators-1")
        convert(tmp_path / "speculators-1", last := tmp_path / "dense-2")
    before = digest(last)
    plan = planned(last)
    run_conversion(plan_to_speculators(last), tmp_path / "speculators")
    assert_identity(source, tmp_path / "speculators")
    assert "verifier-restored" in codes(plan)
    assert "origin-unknown" not in codes(plan)
    assert digest(last) == before


@pytest.mark.parametrize("variant", [REDUCED, SLIDING, FULL])
@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_way_back_from_the_spelling_of_an_engine(
    variant: str, engine: str, golden: Path, tmp_path: Path
) -> None:
    source = golden / variant / "checkpoint"
    run_conversion(plan_to_dense(source, written_for=engine), tmp_path / "dense")
    back(tmp_path / "dense", tmp_path / "speculators")
    assert_identity(source, tmp_path / "speculators")


@pytest.mark.parametrize("variant", SPECULATORS)
def test_without_the_manifest_the_losses_are_said(
    variant: str, golden: Path, tmp_path: Path
) -> None:
    source = golden / variant / "checkpoint"
    convert(source, tmp_path / "dense")
    (tmp_path / "dense" / MANIFEST_FILE).unlink()
    manifest = back(tmp_path / "dense", tmp_path / "out", verifier="verifier_bf16")
    assert codes(manifest) >= {"origin-unknown", "verifier-not-read"}
    assert tensors_of(tmp_path / "out") == tensors_of(source)
    before, after = config_of(source), config_of(tmp_path / "out")
    different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    allowed = {"auto_map", "num_anchors", "speculators_version", "speculators_config"}
    allowed |= {"sliding_window_non_causal", "transformer_layer_config"}
    assert different <= allowed | ({"sample_from_anchor"} if variant == LEGACY else set())
    decoder, kept = before["transformer_layer_config"], after["transformer_layer_config"]
    assert decoder.keys() - kept.keys() <= {"sliding_window", "tie_word_embeddings"}
    assert kept.items() <= decoder.items()


def test_edits_between_the_ways_are_kept(draft: Callable[..., Path], tmp_path: Path) -> None:
    convert(draft(put(transformer_layer_config__mine=1)), tmp_path / "dense")
    edit_config(tmp_path / "dense", mask_token_id=7, theirs={"a": 1}, rope_theta=5e5, use_cache=0)
    edit_config(tmp_path / "dense", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    config = planned(tmp_path / "dense").config
    decoder = config["transformer_layer_config"]
    assert (config["mask_token_id"], config["theirs"]) == (7, {"a": 1})
    assert decoder["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e5}
    assert (decoder["use_cache"], decoder["mine"]) == (0, 1)
    assert config["speculators_version"] == "0.9.0"


@pytest.mark.parametrize("tokens", [7, 6, 4])
def test_layout_changed_between_the_ways_changes_the_tokens(
    tokens: int, draft: Callable[..., Path], tmp_path: Path
) -> None:
    """A count that tells a layout must tell the draft's; a smaller one is a choice, and stays."""
    source = draft(proposes(tokens), put(sample_from_anchor=tokens != 6))
    convert(source, tmp_path / "dense")
    other = Layout.BONUS_ANCHOR if tokens != 6 else Layout.ANCHOR_FIRST
    config = planned(tmp_path / "dense", overrides=Overrides(layout=other)).config
    (method,) = config["speculators_config"]["proposal_methods"]
    assert method["speculative_tokens"] == {7: 6, 6: 7, 4: 4}[tokens]
    assert config["sample_from_anchor"] is (other is Layout.ANCHOR_FIRST)
    assert config["speculators_version"] == "0.9.0"


def test_contradiction_that_was_overruled_does_not_come_back(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(proposes(6))
    convert(source, tmp_path / "dense", overrides=Overrides(layout=Layout.ANCHOR_FIRST))
    config = planned(tmp_path / "dense").config
    assert config["sample_from_anchor"] is True
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7
    assert config["speculators_version"] == "0.9.0"


@pytest.mark.parametrize(("given", "kept"), [({}, None), ({"num_anchors": 7}, 7)])
def test_what_dense_made_up_is_left_behind_and_what_was_given_is_not(
    given: dict[str, int], kept: int | None, golden: Path, tmp_path: Path
) -> None:
    convert(golden / REDUCED / "checkpoint", tmp_path / "dense", overrides=Overrides(fields=given))
    assert config_of(tmp_path / "dense")["num_anchors"] == (kept or 512)
    assert planned(tmp_path / "dense").config.get("num_anchors") == kept


def test_value_that_was_overruled_does_not_come_back(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(put(target_hidden_size=32))
    convert(source, tmp_path / "dense", overrides=Overrides(fields={"target_hidden_size": None}))
    config = planned(tmp_path / "dense").config
    assert config.get("target_hidden_size") is None
    assert config["speculators_version"] == "0.9.0"


def test_manifest_of_other_weights_is_left_aside(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    convert(draft(), tmp_path / "dense")
    other = draft(base=DENSE[0])
    shutil.copy(tmp_path / "dense" / MANIFEST_FILE, other)
    plan = planned(other, verifier="org/name", keep_verifier_weights=True)
    assert codes(plan) >= {"manifest-unusable", "origin-unknown"}
    assert "speculators_version" not in plan.config


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: "[" * 100_000,
        lambda text: json.dumps({"tool": "other"}),
        lambda text: text.replace('"speculators"', '"unheard-of"'),
        lambda text: text.replace('"algorithm": "dspark"', '"algorithm": 3'),
        lambda text: text.replace('"target_hidden_size": null', '"target_hidden_size": 32'),
        lambda text: text.replace('"unchanged"', '"half of a pair: \\ud800"', 1),
        lambda text: text.replace('"unchanged"', '"a", "reason": "b"', 1),
        lambda text: text.replace('"history": []', f'"history": {"[" * 70}{"]" * 70}'),
    ],
)
def test_damaged_manifest_is_no_evidence(
    damage: Callable[[str], str], draft: Callable[..., Path], tmp_path: Path
) -> None:
    convert(draft(), tmp_path / "dense")
    path = tmp_path / "dense" / MANIFEST_FILE
    changed = damage(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    plan = planned(tmp_path / "dense", verifier="org/name")
    assert "origin-unknown" in codes(plan)


def test_repair_of_a_speculators_draft_keeps_its_spelling(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(cut("sample_from_anchor"), put(transformer_layer_config__mine=1))
    plan = planned(source)
    before = config_of(source)
    before.pop("auto_map")
    assert plan.config == before | {"sample_from_anchor": True}
    assert "origin-unknown" not in codes(plan)


def test_model_type_at_the_top_would_make_it_dense(draft: Callable[..., Path]) -> None:
    plan = planned(draft(put(model_type="qwen3")))
    assert "model_type" not in plan.config
    assert plan.config["transformer_layer_config"]["model_type"] == "qwen3"
    (step,) = [step for step in plan.keys if step.source == "model_type"]
    assert step.action == "dropped"
    assert plan.source_config["model_type"] == "qwen3"


def test_history_survives_in_the_manifest(golden: Path, tmp_path: Path) -> None:
    convert(golden / REDUCED / "checkpoint", tmp_path / "dense")
    convert(tmp_path / "dense", tmp_path / "dense-2")
    manifest = back(tmp_path / "dense-2", tmp_path / "out")
    assert [earlier.dialect for earlier in manifest.history] == ["dense", "speculators"]
    assert manifest.history[1].source_config["speculators_version"] == "0.9.0"
    assert (manifest.dialect, manifest.output_dialect) == ("dense", "speculators")


def test_shards_of_the_source_are_kept(golden: Path, tmp_path: Path) -> None:
    variant = "spec_rnn_full_anchor_sharded_bf16"
    convert(golden / variant / "checkpoint", tmp_path / "dense")
    back(tmp_path / "dense", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 6


def test_sharded_reduced_draft(draft: Callable[..., Path], tmp_path: Path) -> None:
    source = draft(sharded)
    convert(source, tmp_path / "dense")
    back(tmp_path / "dense", tmp_path / "out")
    assert_identity(source, tmp_path / "out")


@pytest.mark.parametrize(
    "key", ["is_causal", "dflash_config__causal", "transformer_layer_config__is_causal"]
)
def test_causality_is_kept_in_the_spelling_that_an_engine_reads(
    key: str, draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(put(sliding_window_non_causal=True, **{key: False}), base=SLIDING)
    convert(source, tmp_path / "dense")
    back(tmp_path / "dense", tmp_path / "out")
    assert_identity(source, tmp_path / "out")
