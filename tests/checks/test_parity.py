"""Parity of a conversion: bit-equal, equal at the shared tokens when expanded, or named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - the modules below need PyTorch
from safetensors.torch import load_file, save_file

from dspark_convert.checkpoint.folder import open_checkpoint
from dspark_convert.checks.parity import check_parity, read_original
from dspark_convert.checks.run import VerifyOptions, verify
from dspark_convert.conversion import plan_to_dense, run_conversion
from dspark_convert.errors import DraftError, UsageError
from dspark_convert.formats.identity import identify_weights
from dspark_convert.formats.read import read_draft
from dspark_convert.runtime import load_draft
from dspark_convert.runtime.load import load_source
from dspark_convert.runtime.machine import Machine
from dspark_convert.schemas.numbers import ParityNumbers
from dspark_convert.schemas.report import CheckResult

REDUCED = "spec_vanilla_reduced_anchor_bf16"
WEIGHTS = "model.safetensors"


def convert(source: Path, output: Path, *, expand: bool = False) -> Path:
    run_conversion(plan_to_dense(source, expand_vocabulary=expand), output)
    return output


def compare(original: Path, converted: Path) -> CheckResult:
    sources = read_original(original, converted), read_draft(converted)
    return check_parity(*sources, load_source, target=None, seed=0)


def scale(folder: Path, name: str, factor: float) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[name] = tensors[name] * factor
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "name", [REDUCED, "spec_gated_reduced_1plusN_bf16", "spec_rnn_full_anchor_sharded_bf16"]
)
def test_a_conversion_is_bit_equal(golden: Path, tmp_path: Path, name: str) -> None:
    source = golden / name / "checkpoint"
    result = compare(source, convert(source, tmp_path / "out"))
    assert result.verdict == "pass", result.reason


@pytest.mark.parametrize("name", [REDUCED, "spec_gated_reduced_1plusN_bf16"])
def test_an_expanded_vocabulary_is_compared_at_the_shared_tokens(
    golden: Path, tmp_path: Path, name: str
) -> None:
    source = golden / name / "checkpoint"
    output = convert(source, tmp_path / "out", expand=True)
    assert compare(source, output).verdict == "pass"
    scale(output, "lm_head.weight", 1.02)
    assert compare(source, output).verdict == "fail"


@pytest.mark.parametrize("name", ["norm.weight", "markov_head.markov_w2.weight", "lm_head.weight"])
def test_a_changed_tensor_is_found(golden: Path, tmp_path: Path, name: str) -> None:
    source = golden / REDUCED / "checkpoint"
    output = convert(source, tmp_path / "out")
    scale(output, name, 1.01)
    result = compare(source, output)
    assert result.verdict == "fail"
    assert isinstance(result.numbers, ParityNumbers)
    assert result.numbers.max_abs_difference


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(
    golden: Path, tmp_path: Path, value: float
) -> None:
    output = convert(golden / REDUCED / "checkpoint", tmp_path / "out")
    scale(output, "norm.weight", value)
    with pytest.raises(DraftError) as caught:
        load_draft(output, target=golden / "verifier_bf16")
    assert caught.value.code == "weights-not-finite"
    assert "norm.weight" in str(caught.value)


@pytest.mark.parametrize("where", ["itself", "a link", "a copy", "other shards"])
def test_a_draft_compared_with_itself_shows_nothing(
    golden: Path, tmp_path: Path, where: str
) -> None:
    draft = convert(golden / REDUCED / "checkpoint", tmp_path / "out")
    source = draft if where == "itself" else tmp_path / "source"
    if where == "a link":
        source.symlink_to(draft)
    elif where == "a copy":
        shutil.copytree(draft, source)
    elif where == "other shards":
        run_conversion(plan_to_dense(golden / REDUCED / "checkpoint"), source)
        (source / WEIGHTS).rename(source / "model-00001-of-00001.safetensors")
        names = load_file(draft / WEIGHTS)
        index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
        (source / "model.safetensors.index.json").write_text(json.dumps(index))
    report = verify(VerifyOptions(draft=draft, source=source, machine=Machine(device="cpu")))
    parity = next(check for check in report.checks if check.id == "parity")
    assert (parity.verdict, parity.numbers) == ("inconclusive", None)
    assert parity.reason.startswith("--source is the draft itself")
    assert report.verdict == "inconclusive"


def test_another_draft_of_the_same_config_is_compared(golden: Path, tmp_path: Path) -> None:
    draft = convert(golden / REDUCED / "checkpoint", tmp_path / "out")
    source = shutil.copytree(draft, tmp_path / "source")
    scale(source, "norm.weight", 1.01)
    report = verify(VerifyOptions(draft=draft, source=source, machine=Machine(device="cpu")))
    assert report.verdict == "fail"
    weights = identify_weights(open_checkpoint(draft))
    assert report.draft.weights == weights != identify_weights(open_checkpoint(source))
    assert report.draft.weights.method == "all-bytes"
    assert report.target is None


@pytest.mark.parametrize(
    "options",
    [{"min_accepted_length": x} for x in (float("nan"), float("inf"), -1.0)]
    + [{"min_acceptance": (0.5, x)} for x in (float("nan"), float("inf"), -0.1, 1.1)],
)
def test_a_threshold_that_nothing_can_be_compared_with_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        VerifyOptions(draft=Path("a"), source=Path("b"), **options).check()
    assert refused.value.code == "option-out-of-range"
