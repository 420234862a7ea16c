"""``--for ENGINE``: what is written for each, and what each makes us refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.inspection import inspect_draft
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import written_for
from dspark_convert.errors import DraftError, UsageError
from fixtures.broken.drafts import Draft
from fixtures.broken.edits import Edit, drop, put, store_target_weights

from .helpers import config_of, tensors_of
from .reference import CONFIGS, SHAPES

FULL, REDUCED = "spec_vanilla_full_anchor_fp32", "spec_vanilla_reduced_anchor_bf16"
GATED, RNN = "spec_gated_reduced_1plusN_bf16", "spec_rnn_full_anchor_sharded_bf16"
SLIDING, DENSE = "spec_swa_default_reduced_bf16", "dense_vanilla_bf16"


def write(source: Path, output: Path, engine: str, **options: Any) -> Path:
    run_conversion(plan_to_dense(source, written_for=engine, **options), output, verify_bytes=True)
    return output


def refused(source: Path, engine: str, **options: Any) -> dict[str, str | None]:
    """Codes and hints of the refusal."""
    with pytest.raises(DraftError) as caught:
        plan_to_dense(source, written_for=engine, **options)
    return {finding.code: finding.hint for finding in caught.value.findings}


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_table_keeps_the_name_that_the_engine_reads(
    engine: str, golden: Path, tmp_path: Path
) -> None:
    source = golden / REDUCED / "checkpoint"
    result = tensors_of(write(source, tmp_path / "out", engine))
    assert result["d2t"] == tensors_of(source)["d2t"]
    assert set(result) == set(SHAPES[REDUCED]) - {"draft_id_to_target_id"} | {"d2t"}


@pytest.mark.parametrize("engine", written_for())
def test_every_spelling_means_the_same_draft(engine: str, golden: Path, tmp_path: Path) -> None:
    source, target = golden / FULL / "checkpoint", golden / "verifier_fp32"
    reference = run_conversion(plan_to_dense(source, target=target), tmp_path / "reference")
    out = write(source, tmp_path / "out", engine, target=target)
    assert inspect_draft(out).draft == inspect_draft(tmp_path / "reference").draft
    assert tensors_of(out) == tensors_of(tmp_path / "reference")
    again = plan_to_dense(out, target=target)
    assert not [step for step in again.plan.keys if step.action == "dropped"]
    assert reference.written_for == "reference"


def test_sglang_gets_its_blocks_and_the_lifted_keys(golden: Path, tmp_path: Path) -> None:
    config = config_of(write(golden / FULL / "checkpoint", tmp_path / "out", "sglang"))
    plain = CONFIGS[FULL]
    assert config["dflash_config"] == {
        "block_size": plain["block_size"],
        "mask_token_id": plain["mask_token_id"],
        "target_layer_ids": plain["target_layer_ids"],
    }
    assert config["dspark_config"] == {
        "mask_token_id": plain["mask_token_id"],
        "markov_rank": plain["markov_rank"],
        "markov_head_type": plain["markov_head_type"],
    }
    rest = {key: value for key, value in config.items() if key not in BLOCKS}
    assert rest == plain


BLOCKS = {"dflash_config", "dspark_config"}


def test_block_of_llama_cpp_does_not_hide_what_the_top_level_says(
    golden: Path, tmp_path: Path
) -> None:
    config = config_of(write(golden / SLIDING / "checkpoint", tmp_path / "out", "llama.cpp"))
    assert config["is_causal"] is True
    assert set(config["dflash_config"]) == {"block_size", "mask_token_id", "target_layer_ids"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_bidirectional_window_is_spelled_as_engines_read_it(
    engine: str, draft: Callable[..., Path]
) -> None:
    sliding = {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}
    source = draft(
        put(sliding_window_non_causal=True, sliding_window=6, num_hidden_layers=2, **sliding),
        drop("embed_tokens.weight", "lm_head.weight"),
        base=DENSE,
    )
    codes = {note.code for note in plan_to_dense(source).plan.engines}
    assert "causality-misread" in codes
    assert plan_to_dense(source, written_for=engine).plan.config["is_causal"] is False


def test_vllm_gets_a_zero_for_an_absent_confidence_bias(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(drop("confidence_head.proj.bias"), base=DENSE)
    plan = plan_to_dense(source).plan
    assert "confidence-bias-uninitialised" in {note.code for note in plan.engines}
    out = write(source, tmp_path / "out", "vllm")
    assert tensors_of(out)["confidence_head.proj.bias"] == ("BF16", [1], b"\0\0")
    (added,) = [s for s in plan_to_dense(source, written_for="vllm").plan.tensors if not s.source]
    assert (added.action, added.name) == ("added", "confidence_head.proj.bias")


@pytest.mark.parametrize(
    ("variant", "engine", "code", "way_out"),
    [
        (GATED, "vllm", "markov-head-unsupported", "none of these engines"),
        (RNN, "vllm", "markov-head-unsupported", "SGLang"),
        (REDUCED, "sglang", "vocabulary-unsupported", "vLLM"),
        (REDUCED, "deepspec", "vocabulary-unsupported", "--expand-vocab"),
        (GATED, "deepspec", "layout-unsupported", "none of these engines"),
        (SLIDING, "deepspec", "window-unsupported", "vLLM"),
        (FULL, "deepspec", "embedding-missing", "--target"),
        (RNN, "llama.cpp", "markov-head-unsupported", "SGLang"),
        ("spec_nomarkov_noconf_full_bf16", "sglang", "markov-head-missing", "vLLM"),
    ],
)
def test_what_an_engine_cannot_run_is_refused_with_the_way_out(
    variant: str, engine: str, code: str, way_out: str, golden: Path
) -> None:
    hints = refused(golden / variant / "checkpoint", engine)
    assert way_out in str(hints[code])


def test_number_of_tokens_is_no_reason_to_refuse(draft: Callable[..., Path]) -> None:
    source = draft(put(sample_from_anchor=False), base=DENSE)
    notes = plan_to_dense(source, written_for="vllm").plan.engines
    (note,) = [note for note in notes if note.engine == "vLLM"]
    assert (note.code, note.avoided_by_launch) == ("extra-slot", True)


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp"])
def test_own_head_must_be_the_targets_where_the_engine_takes_the_targets(
    engine: str, draft: Callable[..., Path], golden: Path
) -> None:
    source = draft(store_target_weights, base=DENSE)
    assert "--target" in str(refused(source, engine)["own-head-ignored"])
    plan_to_dense(source, written_for=engine, target=golden / "verifier_fp32")
    assert set(refused(source, engine, target=golden / "verifier_bf16")) == {"own-head-ignored"}
    other = draft(store_target_weights, change_last_byte("lm_head.weight"), base=DENSE)
    hints = refused(other, engine, target=golden / "verifier_fp32")
    assert "vLLM" in str(hints["own-head-ignored"])


def change_last_byte(name: str) -> Edit:
    def edit(draft: Draft) -> None:
        tensor = draft.tensors[name]
        changed = bytes([*tensor.data[:-1], tensor.data[-1] ^ 1])
        draft.tensors[name] = replace(tensor, data=changed)

    return edit


def test_unknown_engine_is_wrong_usage(golden: Path) -> None:
    with pytest.raises(UsageError) as caught:
        plan_to_dense(golden / FULL / "checkpoint", written_for="other")
    assert caught.value.code == "unknown-engine"
