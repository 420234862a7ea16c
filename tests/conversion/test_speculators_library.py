"""What we write for speculators, loaded by speculators 0.9.0 itself: the recorded numbers.

Needs the environment of ``fixtures/tiny/train.py``; elsewhere it is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.formats.overrides import Overrides
from dspark_convert.schemas.draft import Layout

from .reference import CONFIGS

torch = pytest.importorskip("torch")
dspark = pytest.importorskip("speculators.models.dspark")
load_file = pytest.importorskip("safetensors.torch").load_file

pytestmark = pytest.mark.filterwarnings("default")

TOLERANCE = 1e-4  # fixtures/golden/README.md
SLIDING, ONE_PLUS_N = "spec_swa_default_reduced_bf16", "spec_gated_reduced_1plusN_bf16"


def speculators_folder(variant: str, verifier: Path, golden: Path, work: Path) -> Path:
    """The golden draft as we write it: dense ones directly, the others by way of dense."""
    source = golden / variant / "checkpoint"
    if variant.startswith("spec_"):
        run_conversion(plan_to_dense(source), work / "dense")
        source = work / "dense"
    plan = plan_to_speculators(source, verifier=str(verifier))
    run_conversion(plan, work / "speculators")
    return work / "speculators"


def load(folder: Path) -> Any:
    draft = dspark.DSparkDraftModel.from_pretrained(folder).float().eval()
    draft.config.transformer_layer_config._attn_implementation = "eager"
    return draft


def mask_of(draft: Any, layer: int, context: int) -> Any:
    """What a block after ``context`` tokens sees, additive [1, 1, B, context + B]."""
    block = draft.block_size
    seen = torch.ones(block, context + block, dtype=torch.bool)
    if layer in draft.sliding_window_indices:
        seen[:, : max(0, context - draft.sliding_window)] = False
        if not draft.sliding_window_non_causal:
            seen[:, context:] = torch.ones(block, block).tril().bool()
    return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None]


def run_backbone(draft: Any, context_hidden: Any, block_ids: Any) -> Any:
    """The final hidden states [1, B, H] of one block after ``context_hidden`` [T, A*H]."""
    context = draft.hidden_norm(draft.fc(context_hidden[None]))
    count = len(context_hidden)
    positions = torch.arange(count + draft.block_size)[None]
    hidden = draft.embed_tokens(block_ids[None])
    for index, layer in enumerate(draft.layers):
        hidden = layer(
            target_hidden=context,
            hidden_states=hidden,
            attention_mask=mask_of(draft, index, count),
            position_embeddings=draft.rotary_emb(hidden, positions),
        )
    return draft.norm(hidden)


@torch.no_grad()
def greedy_block(draft: Any, context_hidden: Any, anchor: int) -> dict[str, Any]:
    """One greedy block, named as in fixtures/golden/README.md; int64 and float32 [B, ...]."""
    first = 0 if draft.config.sample_from_anchor else 1
    block_ids = torch.full((draft.block_size,), draft.mask_token_id)
    block_ids[0] = anchor
    hidden = run_backbone(draft, context_hidden, block_ids)
    logits = draft.lm_head(hidden)[0]
    offsets = draft.d2t if draft.d2t is not None else torch.zeros(len(logits[0])).long()
    previous, biased, chosen, targets = [], [], [], []
    for slot in range(draft.block_size):
        previous.append(targets[slot - 1] if slot > first else anchor)
        bias = 0
        if draft.markov_head is not None:
            ids = torch.tensor([previous])
            rows = hidden[:, : slot + 1]
            bias = draft.markov_head.block_bias(prev_token_ids=ids, hidden_states=rows)[0, slot]
        biased.append(logits[slot] + bias)
        choice = int(biased[slot].argmax())
        chosen.append(choice if slot >= first else -1)
        targets.append(choice + int(offsets[choice]) if slot >= first else -1)
    block = {"biased_logits": torch.stack(biased), "draft_ids": torch.tensor(chosen)}
    block["target_ids"] = torch.tensor(targets)
    if draft.confidence_head is not None:
        block["confidence_logits"] = confidence(draft, hidden, torch.tensor([previous]))
    return block


def confidence(draft: Any, hidden: Any, previous: Any) -> Any:
    features = hidden
    if draft.config.confidence_head_with_markov:
        embedded = draft.markov_head.prev_embeddings(previous)
        features = torch.cat([hidden, embedded], dim=-1)
    return draft.confidence_head(features)[0]


@pytest.mark.parametrize("variant", CONFIGS)
def test_library_computes_the_recorded_numbers(variant: str, golden: Path, tmp_path: Path) -> None:
    expected = json.loads((golden / variant / "expected.json").read_text())
    recorded = load_file(golden / variant / "expected.safetensors")
    verifier = golden / expected["verifier"]
    draft = load(speculators_folder(variant, verifier, golden, tmp_path))
    assert len(expected["cases"]) >= 2
    for case in expected["cases"]:
        name = f"case{case['case']}."
        anchor = int(recorded[name + "anchor_token_id"])
        block = greedy_block(draft, recorded[name + "context_hidden"], anchor)
        assert block["draft_ids"].tolist() == recorded[name + "draft_ids"].tolist()
        assert block["target_ids"].tolist() == recorded[name + "target_ids"].tolist()
        for numbers in ("biased_logits", "confidence_logits"):
            assert (numbers in block) == (name + numbers in recorded)
            if numbers in block:
                error = (block[numbers] - recorded[name + numbers]).abs().max()
                assert error < TOLERANCE, f"{name}{numbers}: {error}"


def test_a_wrong_layout_does_not(golden: Path, tmp_path: Path) -> None:
    """The numbers above tell a right conversion from a wrong one."""
    recorded = load_file(golden / ONE_PLUS_N / "expected.safetensors")
    overrides = Overrides(layout=Layout.ANCHOR_FIRST)
    verifier = str(golden / "verifier_bf16")
    plan = plan_to_speculators(
        golden / ONE_PLUS_N / "checkpoint", verifier=verifier, overrides=overrides
    )
    run_conversion(plan, tmp_path / "wrong")
    draft = load(tmp_path / "wrong")
    anchor = int(recorded["case0.anchor_token_id"])
    block = greedy_block(draft, recorded["case0.context_hidden"], anchor)
    assert block["draft_ids"].tolist() != recorded["case0.draft_ids"].tolist()


def test_lost_window_does_not_either(golden: Path, tmp_path: Path) -> None:
    recorded = load_file(golden / SLIDING / "expected.safetensors")
    draft = load(speculators_folder(SLIDING, golden / "verifier_bf16", golden, tmp_path))
    draft.sliding_window_indices = []
    anchor = int(recorded["case0.anchor_token_id"])
    block = greedy_block(draft, recorded["case0.context_hidden"], anchor)
    error = (block["biased_logits"] - recorded["case0.biased_logits"]).abs().max()
    assert error > 100 * TOLERANCE
