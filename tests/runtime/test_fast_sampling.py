"""Drawing and rejecting a block as a whole, against the functions that say what is meant."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import sampling_step
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.rounds import MOST_SHAPES
from dspark_convert.runtime.fast.sampling import (
    BlockSampler,
    draw_token,
    find_largest,
    to_exponential,
)
from dspark_convert.runtime.propose import Chain, run_chain
from dspark_convert.runtime.rejection import compute_residual
from dspark_convert.runtime.sampling import scale_logits
from tests.conftest import mostly_slow
from tests.runtime.helpers import make_config, make_draft

absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, absent])]
TEMPERATURE = 0.7


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """On a GPU all is compiled, for each draft anew, as in ``Rounds``."""
    limit = torch._dynamo.config.patch(recompile_limit=MOST_SHAPES)
    with limit, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield str(request.param)


DRAFTS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gated, 1+N": {"markov_head_type": "gated", "layout": "bonus_anchor"},
    "rnn, 1+N": {"markov_head_type": "rnn", "layout": "bonus_anchor"},
    "no markov": {"markov_rank": 0, "confidence_head_with_markov": False},
}


def build(name: str, draft_size: int, device: str, target_size: int = 300) -> DraftModel:
    """A draft in bf16; a reduced vocabulary is spread over the target's."""
    config = make_config(
        hidden_size=32,
        vocab_size=target_size,
        draft_vocab_size=draft_size,
        mask_token_id=target_size - 1,
        **DRAFTS[name],
    )
    table = [i * target_size // draft_size - i for i in range(draft_size)]
    draft = make_draft(config, table if draft_size < target_size else None)
    for parameter in draft.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return draft.to(device)


def run(
    draft: DraftModel, rows: int | None = None, seed: int = 1
) -> tuple[BlockSampler, Chain, Chain]:
    """A chain drawn from equal hidden states, and the plain chain of the same tokens."""
    device = draft.device
    rows = rows or (40_000 if device.type == "cuda" else 10_000)
    generator = torch.Generator(device).manual_seed(seed)
    config = draft.config
    tokens = config.num_speculative_tokens
    sampler = BlockSampler(
        draft, draft.vocabulary, TEMPERATURE, generator, rows=rows, num_tokens=tokens
    )
    hidden = torch.randn(1, config.block_size, 32, device=device, generator=generator)
    hidden = hidden.to(draft.dtype).expand(rows, -1, -1).contiguous()
    anchors = torch.full((rows,), 7, device=device)
    drawn = sampler.draw(hidden, anchors)
    forced = run_chain(draft, hidden, anchors, lambda token, _: drawn.target_ids[:, token])
    return sampler, drawn, forced


def probabilities(draft: DraftModel, logits: Tensor) -> Tensor:
    """q over the target's vocabulary, through the plain scatter formulation."""
    return draft.vocabulary.scatter_probabilities(scale_logits(logits, TEMPERATURE).softmax(-1))


def chi_square(counts: Tensor, law: Tensor) -> float:
    """Pearson's statistic per degree of freedom; what has no probability must not occur."""
    assert not counts[law == 0].any()
    wanted = law[law > 0].double() * counts.sum()
    return float(((counts[law > 0] - wanted) ** 2 / wanted).sum() / (len(wanted) - 1))


# Smaller than the target's vocabulary of 300, equal, and padded beyond it.
DRAFTED = [(name, size) for name in DRAFTS for size in (90, 300, 320)]
DRAFTED_BY_DEFAULT = [
    ("vanilla", 300),
    ("gated, 1+N", 90),
    ("rnn, 1+N", 320),
    ("no markov", 90),
]


@pytest.mark.parametrize(("name", "draft_size"), mostly_slow(DRAFTED, fast=DRAFTED_BY_DEFAULT))
def test_drafted_tokens_follow_q(name: str, draft_size: int, device: str) -> None:
    draft = build(name, draft_size, device)
    sampler, drawn, forced = run(draft)
    first = draft.first_predicting_slot
    assert torch.equal(drawn.previous_ids, forced.previous_ids)
    ours, theirs = (chain.biased_logits[:, first:].float() for chain in (drawn, forced))
    # The same roundings; a sum in another order may fall on the other side of one.
    near = (ours - theirs).abs() <= theirs.abs().clamp(min=1.0) * 2**-7
    assert (near | (ours == theirs)).all()
    assert (ours == theirs).float().mean() > 0.99
    # Drawn from what is kept, not from what it was before it was rounded.
    kept_bits = zip(ours.unbind(1), sampler.draft_bits, strict=True)
    again = [draw_token(logits, bits, sampler.temperature) for logits, bits in kept_bits]
    again_ids = draft.vocabulary.map_draft_to_target(torch.stack(again, 1))
    assert (again_ids == drawn.target_ids).float().mean() > 0.9999
    law = probabilities(draft, ours[:1, 0].to(draft.dtype))[0]
    counts = drawn.target_ids[:, 0].bincount(minlength=300)
    assert 0.6 < chi_square(counts, law) < 1.5
    # The second token, given the likeliest first one.
    kept = drawn.target_ids[:, 0] == counts.argmax()
    law = probabilities(draft, ours[kept][:1, 1].to(draft.dtype))[0]
    counts = drawn.target_ids[kept, 1].bincount(minlength=300)
    enough = law * counts.sum() > 5
    assert chi_square(counts[enough], law[enough] / law[enough].sum()) < 1.7


def test_a_large_vocabulary_is_drawn_from_by_its_law(device: str) -> None:
    draft = build("vanilla", 3_000, device, 9_000)
    _, drawn, _ = run(draft, rows=60_000 if device == "cuda" else 5_000)
    law = probabilities(draft, drawn.biased_logits[:1, 0])[0]
    counts = drawn.target_ids[:, 0].bincount(minlength=9_000)
    assert 0.8 < chi_square(counts, law) < 1.2


@pytest.mark.parametrize("draft_size", [90, 300])
def test_committed_tokens_follow_the_target(draft_size: int, device: str) -> None:
    draft = build("vanilla", draft_size, device)
    sampler, drawn, _ = run(draft)
    tokens = draft.config.num_speculative_tokens
    p_logits = torch.randn(1, tokens + 1, 300, generator=torch.Generator().manual_seed(0))
    p_logits = p_logits.to(device, draft.dtype)
    rows = len(drawn.target_ids)
    lengths = torch.full((rows,), tokens, device=device)
    lengths[: rows // 2] = 1
    every = p_logits.expand(rows, -1, -1).contiguous()
    verdict = sampler.verify(every, drawn, lengths)
    p = scale_logits(p_logits[0], TEMPERATURE).softmax(-1)
    committed = torch.where(verdict.accepted > 0, drawn.target_ids[:, 0], verdict.next_token_ids)
    assert 0.6 < chi_square(committed.bincount(minlength=300), p[0]) < 1.5
    # Of what was rejected at once, the residual; after full acceptance p itself.
    q = probabilities(draft, drawn.biased_logits[:1, 0])[0]
    residual = compute_residual(p[0], q)
    rejected = verdict.next_token_ids[verdict.accepted == 0]
    assert 0.6 < chi_square(rejected.bincount(minlength=300), residual / residual.sum()) < 1.6
    whole = verdict.next_token_ids[: rows // 2][verdict.accepted[: rows // 2] == 1]
    assert 0.6 < chi_square(whole.bincount(minlength=300), p[1]) < 1.6
    share = (verdict.accepted > 0).float().mean()
    assert float(share) == pytest.approx(float(torch.minimum(p[0], q).sum()), abs=0.01)


def test_where_p_is_q_a_rejection_draws_from_p(device: str) -> None:
    draft = build("no markov", 300, device)
    sampler, drawn, _ = run(draft)
    tokens = draft.config.num_speculative_tokens
    logits = torch.cat((drawn.biased_logits, drawn.biased_logits[:, :1]), 1)
    lengths = torch.full((len(logits),), tokens, device=device)
    verdict = sampler.verify(logits, drawn, lengths)
    assert (verdict.accepted == tokens).float().mean() > 0.999
    assert ((verdict.next_token_ids >= 0) & (verdict.next_token_ids < 300)).all()


def test_a_seed_repeats_and_another_does_not(device: str) -> None:
    draft = build("vanilla", 300, device)
    one, again, other = (run(draft, rows=50, seed=seed)[1].target_ids for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_largest_is_the_first_of_the_largest() -> None:
    x = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    x[0], x[1] = float("-inf"), -x[1].abs()
    x[2, 7] = x[2, 300] = 9.0
    assert torch.equal(find_largest(x), x.argmax(-1))


def test_small_exponential_numbers_keep_their_digits() -> None:
    bits = torch.tensor([0, 1, 1000, 2**30], dtype=torch.int32)
    wanted = -torch.log1p(-(bits.double() + 0.5) / 2**31)
    assert torch.allclose(to_exponential(bits).double(), wanted, rtol=1e-6)


@pytest.mark.gpu
@absent
def test_a_step_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sampling_step.main(["--json", str(tmp_path / "figures")])
    figures = json.loads((tmp_path / "figures").read_text())["settings"]
    assert all(each["read"] > 0 and each["step"] > 0 for each in figures)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(figures)
