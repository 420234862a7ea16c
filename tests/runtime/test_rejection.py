"""Rejection sampling, by exact enumeration of the very function that decodes."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark_convert.runtime.rejection import (
    Uniforms,
    compute_acceptance,
    compute_residual,
    verify_greedy,
    verify_sampled,
)

DOUBLE = torch.float64
TINY = 1e-14


def law(*weights: float) -> Tensor:
    p = torch.tensor(weights, dtype=DOUBLE)
    return p / p.sum()


PAIRS = {
    "different": (law(3, 1, 4, 2), law(1, 5, 2, 2)),
    "equal": (law(3, 1, 4, 2), law(3, 1, 4, 2)),
    "disjoint": (law(1, 2, 0, 0), law(0, 0, 3, 1)),
    "one-hot target": (law(0, 1, 0, 0), law(1, 2, 3, 4)),
    "one-hot draft": (law(1, 2, 3, 4), law(0, 0, 1, 0)),
    "both one-hot, same": (law(0, 1, 0, 0), law(0, 1, 0, 0)),
    "both one-hot, other": (law(0, 1, 0, 0), law(0, 0, 0, 1)),
    "reduced vocabulary": (law(1, 2, 3, 4), law(0, 5, 0, 1)),
    "nearly equal": (law(3, 1, 4, 2), law(3, 1 + TINY, 4, 2)),
    "rejected once in 10^9": (law(3, 1, 4, 2), law(3, 1 + 1e-8, 4, 2)),
    "nearly no mass": (law(1, TINY, TINY, 1), law(TINY, 1, TINY, TINY)),
}


def enumerate_round(
    p: Tensor, q: Tensor, draft_ids: tuple[int, ...]
) -> dict[tuple[int, ...], float]:
    """The law of a round's committed tokens, given its drafted ones.

    ``verify_sampled`` is piecewise constant in its uniforms, so it is evaluated once inside each
    piece, weighted with the length of the piece.
    """
    ids = torch.tensor([draft_ids])
    length = torch.tensor([len(draft_ids)])
    outcomes: dict[tuple[int, ...], float] = {}
    edges = []
    for k, token in enumerate(draft_ids):
        accept = float((p[k, token] / q[k, token]).clamp(max=1))
        edges.append([0.0, accept, 1.0])
    for pieces in itertools.product(*(itertools.pairwise(e) for e in edges)):
        weight = 1.0
        for low, high in pieces:
            weight *= high - low
        if weight == 0:
            continue
        accepts = torch.tensor([[(low + high) / 2 for low, high in pieces]], dtype=DOUBLE)
        accepts = accepts.reshape(1, len(draft_ids))
        for token, share in next_token_law(p, q, ids, length, accepts).items():
            outcomes[token] = outcomes.get(token, 0.0) + weight * share
    return outcomes


def next_token_law(
    p: Tensor, q: Tensor, ids: Tensor, length: Tensor, accepts: Tensor
) -> dict[tuple[int, ...], float]:
    """Outcomes for given acceptance numbers, over the pieces of the next token's number."""
    # Every running sum that the next token can be drawn from: residuals of each position, and p.
    padded = torch.cat((q, torch.zeros_like(p[:1])))
    sums = {0.0, 1.0}
    for row in compute_residual(p, padded):
        mass = row.cumsum(0)
        sums |= set((mass / mass[-1]).tolist())
    outcomes: dict[tuple[int, ...], float] = {}
    for low, high in itertools.pairwise(sorted(s for s in sums if s <= 1.0)):
        uniforms = Uniforms(accepts, torch.tensor([(low + high) / 2], dtype=DOUBLE))
        verdict = verify_sampled(p[None], q[None], ids, length, uniforms)
        accepted = int(verdict.accepted)
        tokens = (*ids[0, :accepted].tolist(), int(verdict.next_token_ids))
        outcomes[tokens] = outcomes.get(tokens, 0.0) + high - low
    return outcomes


@pytest.mark.parametrize("name", PAIRS)
def test_one_drafted_token_leaves_the_target_law_untouched(name: str) -> None:
    p_first, q = PAIRS[name]
    vocab = len(p_first)
    p = torch.stack((p_first, law(1, 2, 3, 4)))
    committed = torch.zeros(vocab, dtype=DOUBLE)
    for token in range(vocab):
        if q[token] > 0:
            for tokens, share in enumerate_round(p, q[None], (token,)).items():
                committed[tokens[0]] += float(q[token]) * share
    assert float((committed - p_first).abs().max()) < 1e-12


def test_a_longer_block_leaves_the_joint_law_untouched() -> None:
    """Two drafted tokens and a bonus, p and q depending on the token before."""
    generator = torch.Generator().manual_seed(0)
    vocab = 3
    p = torch.rand(vocab + 1, vocab, dtype=DOUBLE, generator=generator)
    q = torch.rand(vocab + 1, vocab, dtype=DOUBLE, generator=generator)
    p[1, 2] = q[0, 1] = 0.0
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    joint: dict[tuple[int, ...], float] = {}
    for first, second in itertools.product(range(vocab), repeat=2):
        drafted = float(q[-1, first] * q[first, second])
        if drafted == 0:
            continue
        p_block = torch.stack((p[-1], p[first], p[second]))
        q_block = torch.stack((q[-1], q[first]))
        for tokens, share in enumerate_round(p_block, q_block, (first, second)).items():
            joint[tokens] = joint.get(tokens, 0.0) + drafted * share
    # P(text starts with tokens) = sum over rounds that committed a beginning of it, times p after.
    for text in itertools.product(range(vocab), repeat=3):
        reached = 0.0
        for length in (1, 2, 3):
            rest = 1.0
            for before, token in itertools.pairwise(text[length - 1 :]):
                rest *= float(p[before, token])
            reached += joint.get(text[:length], 0.0) * rest
        wanted = float(p[-1, text[0]] * p[text[0], text[1]] * p[text[1], text[2]])
        assert reached == pytest.approx(wanted, abs=1e-12)
    assert any(len(tokens) == 1 for tokens in joint)
    assert any(len(tokens) == 3 for tokens in joint)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), st.integers(0, 2))
@settings(max_examples=50)
def test_identity_of_acceptance_and_residual(weights: list[int], hot: int) -> None:
    p = law(*weights)
    for q in (law(1, 1, 2), torch.eye(3, dtype=DOUBLE)[hot]):
        stands = q * compute_acceptance(p, q)
        residual = compute_residual(p, q)
        rejected = 1 - stands.sum()
        assert torch.allclose(stands + rejected * residual / residual.sum(), p, atol=1e-12)


def test_a_rejection_without_residual_draws_from_p() -> None:
    p = law(3, 1, 4)
    assert torch.equal(compute_residual(p, p), p)
    smaller = p * (1 - 1e-16)
    assert torch.equal(compute_residual(smaller, p), smaller)
    assert float(compute_residual(law(1, 1, 0), law(0, 0, 1)).sum()) == pytest.approx(1)


def test_a_token_that_the_target_never_puts_out_is_never_accepted() -> None:
    p = law(0, 1, 1).expand(1, 2, 3)
    zeros = Uniforms(torch.zeros(1, 1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))
    q = law(1, 1, 1).expand(1, 1, 3)
    verdict = verify_sampled(p, q, torch.tensor([[0]]), torch.tensor([1]), zeros)
    assert (int(verdict.accepted), int(verdict.next_token_ids)) == (0, 1)


def random_rounds(rows: int, tokens: int, vocab: int) -> tuple[Tensor, Tensor, Tensor, Uniforms]:
    generator = torch.Generator().manual_seed(3)
    p = torch.randn(rows, tokens + 1, vocab, generator=generator).softmax(-1)
    q = torch.randn(rows, tokens, vocab, generator=generator).softmax(-1)
    ids = torch.randint(0, vocab, (rows, tokens), generator=generator)
    return p, q, ids, Uniforms.draw(rows, tokens, generator)


def test_lengths_end_a_proposal_and_the_bonus_comes_from_p() -> None:
    p, q, ids, uniforms = random_rounds(400, 4, 5)
    always = Uniforms(torch.zeros_like(uniforms.accept), uniforms.next_token)
    lengths = torch.arange(400) % 5
    verdict = verify_sampled(p, q, ids, lengths, always)
    assert torch.equal(verdict.accepted, lengths)
    for row in (0, 1, 2, 3, 4, 203):
        at = int(lengths[row])
        mass = p[row, at].double().cumsum(0)
        wanted = int((mass <= always.next_token[row] * mass[-1]).sum())
        assert int(verdict.next_token_ids[row]) == wanted


def test_batch_rows_are_independent() -> None:
    p, q, ids, uniforms = random_rounds(50, 3, 6)
    lengths = torch.arange(50) % 4
    batch = verify_sampled(p, q, ids, lengths, uniforms)
    assert len(set(batch.accepted.tolist())) == 4
    for row in range(50):
        r = slice(row, row + 1)
        one = verify_sampled(
            p[r], q[r], ids[r], lengths[r], Uniforms(uniforms.accept[r], uniforms.next_token[r])
        )
        assert int(one.accepted) == int(batch.accepted[row])
        assert int(one.next_token_ids) == int(batch.next_token_ids[row])


def test_greedy_verdict_is_the_sampled_one_on_one_hot_laws() -> None:
    generator = torch.Generator().manual_seed(0)
    target_ids = torch.randint(0, 3, (200, 4), generator=generator)
    ids = torch.randint(0, 3, (200, 3), generator=generator)
    lengths = torch.randint(0, 4, (200,), generator=generator)
    greedy = verify_greedy(target_ids, ids, lengths)
    sampled = verify_sampled(
        torch.eye(3)[target_ids], torch.eye(3)[ids], ids, lengths, Uniforms.draw(200, 3, generator)
    )
    assert torch.equal(greedy.accepted, sampled.accepted)
    assert torch.equal(greedy.next_token_ids, sampled.next_token_ids)
    assert set(greedy.accepted.tolist()) == {0, 1, 2, 3}


def test_nothing_drafted_is_plain_sampling() -> None:
    p, _, _, uniforms = random_rounds(100, 0, 5)
    ids, lengths = torch.zeros(100, 0, dtype=torch.int64), torch.zeros(100, dtype=torch.int64)
    verdict = verify_sampled(p, p[:, :0], ids, lengths, uniforms)
    assert verdict.accepted.tolist() == [0] * 100
    assert len(set(verdict.next_token_ids.tolist())) == 5
    assert torch.equal(verify_greedy(p.argmax(-1), ids, lengths).next_token_ids, p[:, 0].argmax(-1))
