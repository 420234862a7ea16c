"""The steps of a replay on a GPU against the plain ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import replay_rate
from dspark_convert.diagnosis.readings import reread
from dspark_convert.errors import DialectError
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.replay import FastSteps, choose_steps, why_plain
from dspark_convert.runtime.replay import (
    PLAIN,
    BlockScores,
    compute_text_context,
    compute_text_input,
    score_blocks,
)
from dspark_convert.runtime.replay_steps import ReplaySteps
from tests.runtime.helpers import make_config, make_draft

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LENGTH, FIRST = 400, 3
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "block_size": 5,
    "vocab_size": 3_000,
    "mask_token_id": 2_999,
    "target_layer_ids": (0, 2),
}
DRAFTS: dict[str, dict[str, Any]] = {
    "full vocabulary, vanilla": {"draft_vocab_size": 3_000},
    "reduced, gated, 1+N": {
        "draft_vocab_size": 700,
        "markov_head_type": "gated",
        "layout": "bonus_anchor",
    },
    "rnn, sliding": {
        "draft_vocab_size": 3_000,
        "markov_head_type": "rnn",
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 37,
    },
    "no markov, sliding, sees its whole block": {
        "draft_vocab_size": 3_000,
        "markov_rank": 0,
        "confidence_head_with_markov": False,
        "layer_types": ("sliding_attention", "sliding_attention"),
        "sliding_window": 130,
        "sliding_window_non_causal": True,
    },
}


def half_precision_draft(name: str, device: str) -> DraftModel:
    config = make_config(**SIZES, **DRAFTS[name])
    ids = range(config.draft_vocab_size)
    table = [i * config.vocab_size // len(ids) - i for i in ids]
    draft = make_draft(config, table if config.reduced_vocabulary else None)
    for parameter in draft.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)  # rotary frequencies stay fp32
    return draft.to(device)


def score(draft: DraftModel, steps: ReplaySteps, anchors: range, **options: Any) -> BlockScores:
    return score_all([draft], steps, anchors, **options)[0]


def score_all(
    readings: list[DraftModel], steps: ReplaySteps, anchors: range, **options: Any
) -> list[BlockScores]:
    draft = readings[0]
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(LENGTH, draft.config.feature_size, generator=generator)
    tokens = torch.randint(draft.config.vocab_size, (LENGTH,), generator=generator)
    inputs = compute_text_input(draft, features.bfloat16().tensor_split(2, 1), steps=steps)
    context = compute_text_context(draft, inputs, steps=steps)
    options = {"target_vocab_size": draft.config.vocab_size, **options}
    return score_blocks(readings, context, tokens, anchors, **options, steps=steps)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("anchors", [range(FIRST, LENGTH), range(0, LENGTH, 11)])
@pytest.mark.parametrize("budget", [None, 2_000_000])
@pytest.mark.parametrize("name", DRAFTS)
def test_scores_are_those_of_the_plain_steps(
    name: str, budget: int | None, anchors: range, device: str
) -> None:
    draft = half_precision_draft(name, device)
    exact = half_precision_draft(name, device).float()
    candidates = torch.arange(40).expand(len(anchors), -1)
    options: Any = {"temperature": 0.8, "candidate_ids_MC": candidates}
    steps, plain_steps = FastSteps(memory_budget=budget), ReplaySteps(memory_budget=budget)
    fast = score(draft, steps, anchors, **options)
    plain = score(draft, plain_steps, anchors, **options)
    truth = score(exact, plain_steps, anchors, **options)
    for field in ("log_q", "candidate_log_q", "confidence"):
        ours, theirs, right = (getattr(each, field) for each in (fast, plain, truth))
        assert torch.equal(ours.isinf(), right.isinf())
        seen = ~right.isinf()
        errors = [(each - right)[seen].float().square().mean().sqrt() for each in (ours, theirs)]
        # As far from fp32 as the plain steps in bf16 are, give or take the luck of rounding.
        assert errors[0] < 1.3 * errors[1] + 1e-6, (field, errors)
    greedy = score(draft, steps, anchors)
    assert greedy.log_q is None
    assert torch.equal(greedy.greedy_ids, fast.greedy_ids)
    assert (fast.greedy_ids == truth.greedy_ids).float().mean() > 0.95


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("name", DRAFTS)
def test_blocks_that_run_side_by_side_are_those_that_run_alone(name: str, device: str) -> None:
    """Three at a time, in chunks of a few anchors and all at once."""
    draft = half_precision_draft(name, device)
    readings = [draft, reread(draft, {"mask_token_id": 7}), reread(draft, {"mask_token_id": 8})]
    anchors = range(FIRST, LENGTH, 3)
    alone = [score(reading, FastSteps(), anchors, temperature=0.8) for reading in readings]
    assert not torch.equal(alone[0].log_q, alone[1].log_q)
    for budget in (None, 3_000_000):
        steps = FastSteps(memory_budget=budget)
        together = score_all(readings, steps, anchors, temperature=0.8)
        for ours, theirs in zip(together, alone, strict=True):
            seen = ~theirs.log_q.isinf()
            assert torch.equal(seen, ~ours.log_q.isinf())
            # Products of other shapes round otherwise, by a few units in the last place of bf16.
            differences = (ours.log_q - theirs.log_q)[seen]
            assert differences.abs().mean() < 0.01
            assert (ours.greedy_ids == theirs.greedy_ids).float().mean() > 0.97


def test_the_plain_steps_are_chosen_where_the_fast_ones_cannot_be() -> None:
    draft = make_draft(make_config())
    assert choose_steps(draft, "plain") is PLAIN
    assert PLAIN.reason is None
    steps = choose_steps(draft, "auto")
    assert steps.name == "plain"
    assert steps.reason == why_plain(draft) == "the device is cpu"
    with pytest.raises(DialectError, match="device is cpu") as refused:
        choose_steps(draft, "fast")
    assert refused.value.code == "draft-not-fast"


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
def test_drafts_that_the_kernels_do_not_know_are_replayed_in_plain_steps(device: str) -> None:
    assert why_plain(half_precision_draft("rnn, sliding", device)) is None
    single = make_draft(make_config(**SIZES, draft_vocab_size=3_000)).to(device)
    assert "half precision" in str(why_plain(single))
    odd = make_draft(make_config(head_dim=16, num_attention_heads=4)).to(device).bfloat16()
    assert "heads of 64" in str(why_plain(odd))


def test_rates_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "figures"
    arguments = ["--tiny", "--anchors", "32", "--plain-anchors", "16", "--json", str(output)]
    replay_rate.main(arguments)
    figures = json.loads(output.read_text())["settings"]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(figures)
    assert len({row.count("|") for row in rows}) == 1
    assert all(0 < each["fastest"] <= each["median"] <= each["slowest"] for each in figures)


def test_products_are_counted_one_by_one() -> None:
    """Against a count of the multiplications that PyTorch is asked for."""
    from torch.utils.flop_counter import FlopCounterMode

    draft = make_draft(make_config())
    counter = FlopCounterMode(display=False)
    with counter:
        score(draft, PLAIN, range(FIRST, FIRST + 1))
    ours = replay_rate.count_flop(draft, FIRST, 1)
    # The context of all positions, and the confidence head, which is not counted.
    more = replay_rate.count_flop(draft, LENGTH, 0) - replay_rate.count_flop(draft, FIRST + 1, 0)
    config = draft.config
    confidence = 2 * config.block_size * (config.hidden_size + config.markov_rank)
    assert counter.get_total_flops() == ours + more + confidence
