"""Acceptance cases of tensors (H4 to H7, H9 to H13, H15), each a table for its whole kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.errors import DSparkError
from dspark_convert.formats.overrides import Overrides
from fixtures.broken.drafts import GOLDEN
from fixtures.broken.edits import (
    absolute,
    all_zero,
    d2t,
    drop,
    point,
    prefix_all,
    put,
    remove,
    rename,
    resize,
    sharded,
    unchanged,
)

from .acceptance import (
    DENSE,
    DENSE_GATED,
    DENSE_RNN,
    FULL,
    GATED,
    REDUCED,
    RNN,
    Build,
    codes,
    plan,
    refused,
    verdicts,
)
from .helpers import config_of, convert, tensors_of

# H4: columns of fc ----------------------------------------------------------------------------


@pytest.mark.parametrize("base", [REDUCED, FULL, DENSE])
@pytest.mark.parametrize(
    ("columns", "target_hidden", "wanted"),
    [(128, None, 192), (256, None, 192), (191, None, 192), (192, 96, 288), (288, None, 192)],
)
def test_h4_columns_of_fc(
    draft: Build, base: str, columns: int, target_hidden: int | None, wanted: int
) -> None:
    source = draft(
        resize("fc.weight", 64, columns), put(target_hidden_size=target_hidden), base=base
    )
    (finding,) = refused(source)
    assert finding.code == "fc-width-mismatch"
    assert str(columns) in finding.message
    assert str(wanted) in finding.message


def test_h4_wider_target(draft: Build) -> None:
    source = draft(resize("fc.weight", 64, 288), put(target_hidden_size=96))
    planned = plan(source)
    assert planned.config["target_hidden_size"] == 96
    assert ("llama.cpp", "refuses") in verdicts(planned)


# H5, H6: the table ----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [[], [drop("t2d")]])
@pytest.mark.parametrize("base", [REDUCED, GATED])
def test_h5_reduced_vocabulary_without_table(draft: Build, base: str, mask: list[Any]) -> None:
    assert codes(refused(draft(drop("d2t"), *mask, base=base))) == ["d2t-missing"]


def test_h5_reduced_vocabulary_without_head(draft: Build) -> None:
    assert codes(refused(draft(drop("lm_head.weight")))) == ["lm-head-missing"]


@pytest.mark.parametrize("mask", [[], [drop("t2d")]])
@pytest.mark.parametrize("name", ["d2t", "draft_id_to_target_id"])
@pytest.mark.parametrize("dtype", ["I64", "I32"])
def test_h6_absolute_ids(
    draft: Build, tmp_path: Path, name: str, mask: list[Any], dtype: str
) -> None:
    source = draft(d2t(absolute, dtype), rename("d2t", "table"), rename("table", name), *mask)
    (finding,) = [f for f in refused(source) if f.severity == "error"]
    assert finding.code == "d2t-absolute"
    assert "--d2t absolute" in str(finding.hint)
    manifest = convert(source, tmp_path / "out", overrides=Overrides(d2t="absolute"))
    written = tensors_of(tmp_path / "out")["draft_id_to_target_id"]
    assert written == tensors_of(GOLDEN / REDUCED / "checkpoint")["d2t"]
    (step,) = [step for step in manifest.tensors if step.source == name]
    assert step.action == "transformed"
    assert manifest.overrides == {"d2t": "absolute"}


def test_h6_int32_is_widened(draft: Build, tmp_path: Path) -> None:
    convert(draft(d2t(unchanged, "I32")), tmp_path / "out")
    written = tensors_of(tmp_path / "out")["draft_id_to_target_id"]
    assert written == tensors_of(GOLDEN / REDUCED / "checkpoint")["d2t"]


def test_h6_zero_table_given_as_offsets(draft: Build, tmp_path: Path) -> None:
    source = draft(d2t(all_zero), drop("t2d"))
    assert codes(refused(source)) == ["d2t-all-zero"]
    convert(source, tmp_path / "out", overrides=Overrides(d2t="offsets"))
    data = tensors_of(tmp_path / "out")["draft_id_to_target_id"][2]
    assert not np.frombuffer(data, "<i8").any()


@pytest.mark.parametrize("ids", [(0, -1), (199, 320), (199, 2**40)])
def test_h6_given_reading_does_not_excuse_bad_ids(draft: Build, ids: tuple[int, int]) -> None:
    source = draft(d2t(point(*ids)), drop("t2d"))
    assert codes(refused(source, Overrides(d2t="offsets"))) == ["d2t-out-of-range"]


# H7: padded vocabulary ------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [321, 384, 1024])
def test_h7_padded_vocabulary(draft: Build, tmp_path: Path, rows: int) -> None:
    source = draft(
        put(draft_vocab_size=rows),
        resize("lm_head.weight", rows, 64),
        resize("markov_head.markov_w2.weight", rows, 16),
        base=DENSE,
    )
    manifest = convert(source, tmp_path / "out")
    assert config_of(tmp_path / "out")["draft_vocab_size"] == rows
    assert "draft_id_to_target_id" not in tensors_of(tmp_path / "out")
    assert tensors_of(tmp_path / "out") == tensors_of(source)
    assert not [finding for finding in manifest.findings if finding.severity != "note"]


# H9, H10: names -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [REDUCED, FULL, DENSE, GATED, RNN])
def test_h9_prefix_is_taken_off_and_said(draft: Build, tmp_path: Path, base: str) -> None:
    manifest = convert(draft(prefix_all("model."), base=base), tmp_path / "out")
    convert(draft(base=base), tmp_path / "plain")
    assert tensors_of(tmp_path / "out") == tensors_of(tmp_path / "plain")
    assert "prefix-normalised" in codes(manifest.findings)
    renamed = [step for step in manifest.tensors if step.action == "renamed"]
    assert len(renamed) == len([step for step in manifest.tensors if step.name])


@pytest.mark.parametrize("base", [REDUCED, DENSE])
def test_h10_misspelt_and_missing_are_both_listed(draft: Build, base: str) -> None:
    source = draft(
        rename("hidden_norm.weight", "hidden_nrom.weight"),
        rename("layers.0.mlp.up_proj.weight", "layers.0.mlp.up_porj.weight"),
        drop("norm.weight"),
        base=base,
    )
    found = {(finding.code, finding.tensor) for finding in refused(source)}
    assert found == {
        ("tensor-misspelt", "hidden_nrom.weight"),
        ("tensor-misspelt", "layers.0.mlp.up_porj.weight"),
        ("tensor-missing", "hidden_norm.weight"),
        ("tensor-missing", "layers.0.mlp.up_proj.weight"),
        ("tensor-missing", "norm.weight"),
    }


# H11: neither embedding nor head --------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "edits", "target", "filled"),
    [
        (FULL, [], "verifier_fp32", {"embed_tokens.weight", "lm_head.weight"}),
        (REDUCED, [], "verifier_bf16", {"embed_tokens.weight"}),
        (DENSE, [drop("embed_tokens.weight")], "verifier_bf16", {"embed_tokens.weight"}),
        (DENSE, [drop("lm_head.weight")], "verifier_bf16", {"lm_head.weight"}),
        (DENSE, [], "verifier_bf16", set()),
    ],
)
def test_h11_absent_weights(
    draft: Build, tmp_path: Path, base: str, edits: list[Any], target: str, filled: set[str]
) -> None:
    source = draft(*edits, base=base)
    manifest = convert(source, tmp_path / "out")
    assert ("tensors-absent" in codes(manifest.findings)) == bool(filled)
    assert not filled & tensors_of(tmp_path / "out").keys()
    with_target = convert(source, tmp_path / "filled", target=GOLDEN / target)
    assert "tensors-absent" not in codes(with_target.findings)
    assert {step.name for step in with_target.tensors if step.action == "filled"} == filled


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (put(target_hidden_size=96), "target-hidden-size-mismatch"),
        (put(num_target_layers=5), "target-depth-mismatch"),
        (put(aux_hidden_state_layer_ids=[1, 2, 5]), "layer-ids-invalid"),
    ],
)
def test_h11_target_that_does_not_fit(draft: Build, edit: Any, code: str) -> None:
    widen = [resize("fc.weight", 64, 288)] if code == "target-hidden-size-mismatch" else []
    source = draft(edit, *widen)
    assert plan(source)
    with pytest.raises(DSparkError) as caught:
        plan_to_dense(source, target=GOLDEN / "verifier_bf16")
    assert caught.value.code == code


def test_h11_target_with_other_rows_cannot_stand_in(draft: Build) -> None:
    source = draft(
        put(transformer_layer_config__vocab_size=400),
        resize("markov_head.markov_w1.weight", 400, 16),
        drop("t2d"),
    )
    with pytest.raises(DSparkError) as caught:
        plan_to_dense(source, target=GOLDEN / "verifier_bf16")
    assert caught.value.code == "target-rows-mismatch"


# H12, H13: heads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "kind"),
    [(GATED, "gated"), (DENSE_GATED, "gated"), (RNN, "rnn"), (DENSE_RNN, "rnn")],
)
def test_h12_markov_head_keeps_its_type(draft: Build, base: str, kind: str) -> None:
    planned = plan(draft(base=base))
    assert planned.config["markov_head_type"] == kind
    part = {"gated": "gate_proj", "rnn": "joint_proj"}[kind]
    copied = {step.name for step in planned.tensors if step.action == "copied"}
    assert {f"markov_head.{part}.weight", f"markov_head.{part}.bias"} <= copied
    said = [(note.engine, note.verdict, note.reason) for note in planned.engines]
    assert ("vLLM", "refuses", f"it has no {kind} Markov head") in said
    assert any(engine == "llama.cpp" and "vanilla" in reason for engine, _, reason in said)


@pytest.mark.parametrize("base", [REDUCED, FULL, DENSE, DENSE_GATED])
def test_h13_no_bias_is_invented(draft: Build, tmp_path: Path, base: str) -> None:
    source = draft(drop("confidence_head.proj.bias"), base=base)
    convert(source, tmp_path / "out")
    assert "confidence_head.proj.bias" not in tensors_of(tmp_path / "out")
    assert config_of(tmp_path / "out")["enable_confidence_head"] is True
    notes = plan(source).engines
    assert any(note.engine == "vLLM" and "bias" in note.reason for note in notes)


# H15: shards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", [1, 2, 3])
@pytest.mark.parametrize("base", [REDUCED, DENSE])
def test_h15_missing_shard_is_named(draft: Build, base: str, shard: int) -> None:
    name = f"model-{shard:05}-of-00003.safetensors"
    (finding,) = refused(draft(sharded, remove(name), base=base))
    assert (finding.code, finding.file) == ("shard-missing", name)
