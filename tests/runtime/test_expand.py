"""``--expand-vocab``: the full-vocabulary draft proposes what the reduced one proposes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import DraftError
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.parse import render
from dspark_convert.runtime.load import load_draft
from dspark_convert.runtime.propose import propose_block
from dspark_convert.schemas.draft import DraftConfig

from .helpers import make_config, make_draft

KINDS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gated": {"markov_head_type": "gated"},
    "rnn": {"markov_head_type": "rnn"},
    "none": {"markov_rank": 0, "confidence_head_with_markov": False},
    "confidence apart": {"markov_head_type": "rnn", "confidence_head_with_markov": False},
    "no confidence": {"enable_confidence_head": False, "confidence_head_with_markov": False},
}
LAYOUTS = ("anchor_first", "bonus_anchor")
TARGETS = (0, 3, 4, 9, 10, 17, 30)
UNSORTED = (9, 3, 30, 0, 17, 4, 10)
STORED = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def save_draft(
    folder: Path, config: DraftConfig, targets: tuple[int, ...], dtype: torch.dtype
) -> Path:
    table = torch.tensor(targets) - torch.arange(len(targets))
    weights = {k: v.to(dtype) for k, v in make_draft(config, table.tolist()).state_dict().items()}
    folder.mkdir()
    save_file({**weights, "d2t": table}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(render(config, DIALECTS["dense"])))
    return folder


def reduced_config(kind: str, layout: str = "anchor_first", **changes: Any) -> DraftConfig:
    sizes = {"vocab_size": 32, "draft_vocab_size": len(TARGETS), "mask_token_id": 31}
    return make_config(**sizes, **KINDS[kind], layout=layout, **changes)


def expand(source: Path, output: Path) -> Path:
    conversion = plan_to_dense(source, expand_vocabulary=True)
    run_conversion(conversion, output, verify_bytes=True)
    return output


def proposals(folder: Path, dtype: torch.dtype) -> list[Any]:
    draft = load_draft(folder, dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(6, 5, draft.config.feature_size, generator=generator).to(dtype)
    anchors = [0, 1, 9, 17, 30, 31]  # in the draft vocabulary and outside it
    return [
        propose_block(draft, row, anchor) for row, anchor in zip(features, anchors, strict=True)
    ]


def ulps(one: Tensor, other: Tensor) -> Tensor:
    """The distance of bf16 values, in steps of the smaller one."""
    exponent = torch.minimum(one.abs(), other.abs()).float().clamp(min=2.0**-20).log2().floor()
    return (one.float() - other.float()).abs() / 2.0 ** (exponent - 7)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("targets", [TARGETS, UNSORTED])
@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens_logits_and_confidence(
    kind: str, targets: tuple[int, ...], layout: str, tmp_path: Path
) -> None:
    config = reduced_config(kind, layout, dtype="bfloat16")
    source = save_draft(tmp_path / "reduced", config, targets, torch.bfloat16)
    full = expand(source, tmp_path / "full")
    absent = sorted(set(range(32)) - set(targets))
    for before, after in zip(
        proposals(source, torch.float32), proposals(full, torch.float32), strict=True
    ):
        assert torch.equal(before.target_ids, after.target_ids)
        known, widened = before.proposal_logits, after.proposal_logits
        assert (known[:, targets] - widened[:, targets]).abs().max() < 1e-5
        mass = widened.softmax(-1)
        assert mass[:, absent].sum() == 0
        assert (mass - known.softmax(-1)).abs().max() < 1e-5
        if before.confidence_logits is not None:
            sampled = slice(layout == "bonus_anchor", None)
            difference = before.confidence_logits - after.confidence_logits
            assert difference[sampled].abs().max() < 1e-5
    for before, after in zip(
        proposals(source, torch.bfloat16), proposals(full, torch.bfloat16), strict=True
    ):
        assert torch.equal(before.target_ids, after.target_ids)
        known, widened = before.proposal_logits, after.proposal_logits
        assert ulps(known[:, targets], widened[:, targets]).max() <= 1
        assert widened.softmax(-1)[:, absent].sum() == 0


@pytest.mark.parametrize("dtype", STORED)
def test_every_stored_dtype_silences_absent_tokens(dtype: torch.dtype, tmp_path: Path) -> None:
    config = reduced_config("gated", dtype=STORED[dtype])
    source = save_draft(tmp_path / "reduced", config, TARGETS, dtype)
    full = expand(source, tmp_path / "full")
    draft = load_draft(full)
    assert draft.dtype == dtype
    for proposal in proposals(full, torch.float32):
        assert set(proposal.target_ids.tolist()) - {-1} <= set(TARGETS)


def test_config_table_and_account(tmp_path: Path) -> None:
    source = save_draft(tmp_path / "reduced", reduced_config("none"), TARGETS, torch.float32)
    conversion = plan_to_dense(source, expand_vocabulary=True)
    manifest = run_conversion(conversion, tmp_path / "full")
    config = json.loads((tmp_path / "full/config.json").read_text())
    assert "draft_vocab_size" not in config
    assert (config["markov_rank"], config["markov_head_type"]) == (1, "vanilla")
    assert config["confidence_head_with_markov"] is False
    assert manifest.vocabulary_expanded
    actions = {step.name or step.source: step.action for step in manifest.tensors}
    assert actions["d2t"] == "dropped"
    assert actions["lm_head.weight"] == "transformed"
    assert actions["markov_head.markov_w2.weight"] == "added"
    assert actions["confidence_head.proj.weight"] == "copied"
    reasons = {step.source: step.reason for step in manifest.keys}
    assert reasons["draft_vocab_size"] == "changed by --expand-vocab"
    assert manifest.source_config["draft_vocab_size"] == len(TARGETS)


def test_full_vocabulary_has_nothing_to_expand(tmp_path: Path) -> None:
    config = make_config()
    folder = tmp_path / "full"
    folder.mkdir()
    save_file(make_draft(config).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(render(config, DIALECTS["dense"])))
    with pytest.raises(DraftError) as caught:
        plan_to_dense(folder, expand_vocabulary=True)
    assert caught.value.code == "vocabulary-not-reduced"
