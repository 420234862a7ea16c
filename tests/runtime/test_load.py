"""Loading: where weights come from, and what is refused before one is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark_convert.errors import DraftError, DSparkError
from dspark_convert.runtime.load import load_draft

from .helpers import GOLDEN, VARIANTS, expected, golden_draft

SPECULATORS = GOLDEN / "spec_vanilla_full_anchor_fp32" / "checkpoint"
DENSE = GOLDEN / "dense_gated_fp32" / "checkpoint"
VERIFIER = GOLDEN / "verifier_fp32"


def edit(source: Path, folder: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of a single-file checkpoint with tensors replaced, or removed with None."""
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        if (source / name).exists():
            (folder / name).write_bytes((source / name).read_bytes())
    tensors = load_file(source / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    return folder


def codes(caught: pytest.ExceptionInfo[DSparkError]) -> list[str]:
    return [finding.code for finding in caught.value.findings]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_weight_is_the_stored_one(variant: str, dtype: torch.dtype) -> None:
    stored = {}
    for file in sorted((GOLDEN / variant / "checkpoint").glob("*.safetensors")):
        stored |= load_file(file)
    verifier = load_file(GOLDEN / expected(variant)["verifier"] / "model.safetensors")
    for name, weight in golden_draft(variant, dtype).state_dict().items():
        source = stored.get(name, verifier.get(f"model.{name}", verifier.get(name)))
        assert source is not None
        assert weight.dtype == dtype
        assert torch.equal(weight, source.to(dtype)), name


def test_dtype_of_the_config_is_the_default() -> None:
    assert load_draft(SPECULATORS, target=VERIFIER).dtype == torch.float32
    assert load_draft(GOLDEN / "dense_rnn_bf16" / "checkpoint").dtype == torch.bfloat16


def test_weights_are_frozen_copies_that_outlive_the_file(tmp_path: Path) -> None:
    folder = edit(DENSE, tmp_path / "draft")
    draft = load_draft(folder)
    before = draft.fc.weight.clone()
    (folder / "model.safetensors").write_bytes(b"")
    assert torch.equal(draft.fc.weight, before)
    assert not any(parameter.requires_grad for parameter in draft.parameters())
    assert not draft.training


def test_absent_embedding_and_head_need_a_target() -> None:
    with pytest.raises(DraftError) as caught:
        load_draft(SPECULATORS)
    assert codes(caught) == ["tensor-borrowed-missing"] * 2
    assert {finding.tensor for finding in caught.value.findings} == {
        "embed_tokens.weight",
        "lm_head.weight",
    }


def test_a_missing_weight_is_an_error_and_never_random(tmp_path: Path) -> None:
    folder = edit(DENSE, tmp_path / "draft", **{"layers.1.mlp.up_proj.weight": None})
    with pytest.raises(DraftError) as caught:
        load_draft(folder, target=VERIFIER)
    assert codes(caught) == ["tensor-missing"]


def test_a_target_of_another_shape_is_refused(tmp_path: Path) -> None:
    other = edit(
        VERIFIER, tmp_path / "other", **{"model.embed_tokens.weight": torch.zeros(321, 64)}
    )
    with pytest.raises(DraftError) as caught:
        load_draft(SPECULATORS, target=other)
    assert codes(caught) == ["target-tensor-shape"]


def test_own_tensors_win_and_a_difference_is_noted(tmp_path: Path) -> None:
    own = load_file(DENSE / "model.safetensors")
    assert not load_notes(DENSE, VERIFIER)
    changed = own["lm_head.weight"].clone()
    changed[-1, -1] += 1
    folder = edit(DENSE, tmp_path / "draft", **{"lm_head.weight": changed})
    draft = load_draft(folder, target=VERIFIER)
    assert torch.equal(draft.lm_head.weight, changed)
    assert load_notes(folder, VERIFIER) == ["lm_head.weight"]
    assert load_notes(folder, None) == []
    other = edit(
        VERIFIER, tmp_path / "other", **{"model.embed_tokens.weight": torch.zeros(321, 64)}
    )
    assert load_notes(folder, other) == ["embed_tokens.weight", "lm_head.weight"]


def load_notes(folder: Path, target: Path | None) -> list[str | None]:
    findings = load_draft(folder, target=target).findings
    return [finding.tensor for finding in findings if finding.code == "own-tensor-differs"]


def test_a_reduced_head_is_not_compared_with_the_targets() -> None:
    variant = "spec_vanilla_reduced_anchor_bf16"
    findings = golden_draft(variant).findings
    assert "own-tensor-differs" not in {finding.code for finding in findings}


def test_an_absent_confidence_bias_is_zero_and_said(tmp_path: Path) -> None:
    folder = edit(DENSE, tmp_path / "draft", **{"confidence_head.proj.bias": None})
    draft = load_draft(folder)
    assert draft.confidence_head is not None
    assert draft.confidence_head.proj.bias.tolist() == [0.0]
    assert "confidence-bias-absent" in {finding.code for finding in draft.findings}


def test_findings_of_reading_are_kept() -> None:
    findings = golden_draft("spec_vanilla_reduced_legacykey_bf16").findings
    assert "layout-inferred" in {finding.code for finding in findings}


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_arrive_on_the_gpu(variant: str) -> None:
    draft = golden_draft(variant, torch.bfloat16, "cuda")
    here = golden_draft(variant, torch.bfloat16)
    assert {buffer.device.type for buffer in draft.buffers()} == {"cuda"}
    for name, weight in draft.state_dict().items():
        assert weight.device.type == "cuda"
        assert torch.equal(weight.cpu(), here.state_dict()[name])
