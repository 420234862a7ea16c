"""The draft against numbers that speculators and DeepSpec recorded (fixtures/golden)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dspark_convert.formats.overrides import Overrides
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import load_draft
from dspark_convert.runtime.propose import BlockProposal, propose_block
from dspark_convert.schemas.draft import Layout

from .helpers import GOLDEN, VARIANTS, expected, golden_cases, golden_draft

LOGITS = ("backbone_hidden", "base_logits", "biased_logits", "confidence_logits")
IDS = ("prev_token_ids", "draft_ids", "target_ids", "predicted_position")
TOLERANCE = 1e-4
# The largest error of a bf16 logit over all golden cases is 0.095.
BF16_BOUND = 0.12


def propose(draft: DraftModel, case: dict[str, Tensor]) -> BlockProposal:
    return propose_block(draft, case["context_hidden"].to(draft.device), case["anchor_token_id"])


def largest_errors(proposal: BlockProposal, case: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: float((getattr(proposal, name).cpu().float() - case[name]).abs().max())
        for name in LOGITS
        if name in case
    }


def assert_golden(proposal: BlockProposal, case: dict[str, Tensor]) -> None:
    for name, error in largest_errors(proposal, case).items():
        assert error < TOLERANCE, name
    for name in IDS:
        assert torch.equal(getattr(proposal, name).cpu(), case[name]), name
    assert (proposal.confidence_logits is None) == ("confidence_logits" not in case)


def assert_ids_where_margin_allows(proposal: BlockProposal, case: dict[str, Tensor]) -> None:
    """A slot is judged by its own margin, while every token before it was the recorded one."""
    ids, recorded = proposal.draft_ids.cpu(), case["draft_ids"]
    same_before = torch.cat((torch.ones(1), (ids == recorded)[:-1].float())).cumprod(0).bool()
    top = case["biased_logits"].topk(2).values
    judged = same_before & (top[:, 0] - top[:, 1] > 2 * BF16_BOUND)
    judged |= recorded < 0
    assert (judged & (recorded >= 0)).any(), "a case that judges nothing shows nothing"
    assert torch.equal(ids[judged], recorded[judged])
    assert torch.equal(proposal.target_ids.cpu()[judged], case["target_ids"][judged])


@pytest.mark.parametrize("variant", VARIANTS)
def test_fp32_proposals_are_the_recorded_ones(variant: str) -> None:
    draft = golden_draft(variant)
    for case in golden_cases(variant):
        assert_golden(propose(draft, case), case)
        context_input = draft.compute_context_input(case["context_hidden"])
        assert float((context_input - case["context_kv_input"]).abs().max()) < TOLERANCE
        assert torch.equal(
            draft.build_block_input(case["anchor_token_id"])[0], case["block_input_ids"]
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_bf16_proposals_have_the_recorded_ids_where_the_margin_allows(variant: str) -> None:
    draft = golden_draft(variant, torch.bfloat16)
    for case in golden_cases(variant):
        proposal = propose(draft, case)
        first = draft.first_predicting_slot
        assert largest_errors(proposal, case)["base_logits"] < BF16_BOUND
        assert float(
            (proposal.biased_logits[first].float() - case["biased_logits"][first]).abs().max()
        ) < (BF16_BOUND)
        assert_ids_where_margin_allows(proposal, case)
        if proposal.confidence_logits is not None:
            assert proposal.confidence_logits.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_padded_batch_agrees_with_single_sequences(variant: str, dtype: torch.dtype) -> None:
    cases = golden_cases(variant)
    draft = golden_draft(variant, dtype)
    lengths = torch.tensor([len(case["context_hidden"]) for case in cases])
    assert len(set(lengths.tolist())) > 1, "the point is in different lengths"
    padded = torch.nn.utils.rnn.pad_sequence(
        [case["context_hidden"] for case in cases], batch_first=True, padding_value=1e3
    )
    anchors = torch.cat([case["anchor_token_id"] for case in cases])
    batch = propose_block(draft, padded, anchors, lengths=lengths)
    for row, case in enumerate(cases):
        if dtype is torch.float32:
            assert_golden(batch.row(row), case)
        else:
            assert_ids_where_margin_allows(batch.row(row), case)


def test_absent_layout_key_has_both_readings() -> None:
    variant = "spec_vanilla_reduced_legacykey_bf16"
    draft = load_draft(
        GOLDEN / variant / "checkpoint",
        dtype=torch.float32,
        target=GOLDEN / expected(variant)["verifier"],
        overrides=Overrides(layout=Layout.ANCHOR_FIRST),
    )
    prefix = "alt_anchor_first."
    for case in golden_cases(variant):
        other = {name.removeprefix(prefix): case[name] for name in case if name.startswith(prefix)}
        assert not torch.equal(other["target_ids"], case["target_ids"])
        proposal = propose(draft, case)
        for name in set(IDS) & other.keys():
            assert torch.equal(getattr(proposal, name), other[name]), name
        for name in set(LOGITS) & other.keys():
            assert float((getattr(proposal, name) - other[name]).abs().max()) < TOLERANCE, name


def test_dense_config_without_draft_vocab_size_is_a_full_vocabulary(tmp_path: Path) -> None:
    variant = "dense_vanilla_bf16"
    folder = tmp_path / "draft"
    shutil.copytree(GOLDEN / variant / "checkpoint", folder)
    assert "draft_vocab_size" not in json.loads((folder / "config.json").read_text())
    draft = load_draft(folder, dtype=torch.float32)
    assert draft.config.draft_vocab_size == draft.config.vocab_size
    assert draft.vocabulary.draft_id_to_target_id is None


def test_proposal_logits_are_the_biased_ones_in_target_ids() -> None:
    for variant in VARIANTS:
        draft, case = golden_draft(variant), golden_cases(variant)[0]
        proposal = propose(draft, case)
        config, first = draft.config, draft.first_predicting_slot
        assert proposal.proposal_logits.shape == (config.num_speculative_tokens, config.vocab_size)
        assert torch.equal(proposal.proposal_logits.argmax(-1), proposal.target_ids[first:])
        reachable = draft.map_draft_to_target(torch.arange(config.draft_vocab_size))
        assert torch.equal(proposal.proposal_logits[:, reachable], proposal.biased_logits[first:])
        assert proposal.proposal_logits.isfinite().sum() == proposal.biased_logits[first:].numel()


@pytest.mark.parametrize(
    ("variant", "change"),
    [
        ("spec_gated_reduced_1plusN_bf16", {"layout": Layout.ANCHOR_FIRST}),
        ("spec_swa_default_reduced_bf16", {"sliding_window_non_causal": True}),
        ("spec_swa_default_reduced_bf16", {"sliding_window": 5}),
        ("dense_vanilla_bf16", {"mask_token_id": 0}),
    ],
)
def test_another_reading_of_the_config_does_not_pass(
    variant: str, change: dict[str, object]
) -> None:
    draft = load_draft(
        GOLDEN / variant / "checkpoint",
        dtype=torch.float32,
        target=GOLDEN / expected(variant)["verifier"],
    )
    draft.config = draft.config.model_copy(update=change)
    failures = 0
    for case in golden_cases(variant):
        try:
            assert_golden(propose(draft, case), case)
        except AssertionError:
            failures += 1
    assert failures
