"""The speculative loop at a temperature: its text follows the law of the target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from dspark_convert.runtime.decode import decode, decode_plain
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Observation
from dspark_convert.runtime.rejection import compute_acceptance, compute_residual
from tests.conftest import mostly_slow

from .helpers import (
    ChainTarget,
    accepted_counts,
    bigram_pair,
    chain_pair,
    golden_draft,
    golden_target,
    make_config,
    make_draft,
    random_prompts,
)


def random_pair(head: str, layout: str, reduced: bool) -> tuple[ChainTarget, DraftModel]:
    """A chain over four tokens and a random draft for it."""
    target, _ = chain_pair(4, seed=2)
    config = make_config(
        vocab_size=4,
        draft_vocab_size=3 if reduced else 4,
        mask_token_id=0,
        target_hidden_size=4,
        markov_head_type=head,
        markov_rank=3,
        layout=layout,
        block_size=3,
    )
    return target, make_draft(config, table=[0, 1, 1] if reduced else None)


def chain_law(target: ChainTarget, prompt: int, temperature: float, length: int) -> torch.Tensor:
    """P(first ``length`` tokens), [V, ..., V]."""
    p = (target.logits / temperature).softmax(-1)
    law = p[prompt]
    for _ in range(length - 1):
        law = law[..., None] * p
    return law


def statistic_of(results: Sequence[DecodeResult], law: torch.Tensor) -> tuple[float, float]:
    """Chi-square of the first tokens against a law, and five standard deviations above its mean."""
    counts = torch.zeros_like(law)
    for result in results:
        counts[result.token_ids[: law.dim()]] += 1
    wanted = len(results) * law
    freedom = law.numel() - 1
    return (
        float(((counts - wanted) ** 2 / wanted).sum()),
        freedom + 5 * math.sqrt(2 * freedom),
    )


PAIRS = [
    ("vanilla", "anchor_first", False),
    ("gated", "bonus_anchor", False),
    ("rnn", "bonus_anchor", True),
    ("rnn", "anchor_first", False),
]
SAMPLED = [(*pair, sampling) for pair in PAIRS for sampling in ("sample", "greedy")]
SAMPLED_BY_DEFAULT = [
    ("vanilla", "anchor_first", False, "sample"),
    ("gated", "bonus_anchor", False, "greedy"),
    ("rnn", "bonus_anchor", True, "sample"),
]


@pytest.mark.parametrize(
    ("head", "layout", "reduced", "draft_sampling"),
    mostly_slow(SAMPLED, fast=SAMPLED_BY_DEFAULT),
)
def test_sampled_text_follows_the_target(
    head: str, layout: str, reduced: bool, draft_sampling: str
) -> None:
    target, draft = random_pair(head, layout, reduced)
    options = DecodeOptions(max_new_tokens=3, temperature=1.5, draft_sampling=draft_sampling)  # type: ignore[arg-type]
    results = decode(
        target, draft, [[1]] * 3000, options, generator=torch.Generator().manual_seed(7)
    )
    law = chain_law(target, 1, 1.5, 3)
    statistic, limit = statistic_of(results, law)
    assert statistic < limit
    colder, limit = statistic_of(results, chain_law(target, 1, 1.2, 3))
    assert colder > limit
    accepted = [count for counts in accepted_counts(results) for count in counts]
    assert 0 < sum(accepted) < draft.config.num_speculative_tokens * len(accepted)


def test_confidence_cuts_leave_the_sampled_law_alone() -> None:
    target, draft = random_pair("vanilla", "anchor_first", False)
    assert draft.confidence_head is not None
    draft.confidence_head.proj.bias.add_(1.0)
    options = DecodeOptions(max_new_tokens=3, temperature=1.5, confidence_threshold=0.5)
    results = decode(
        target, draft, [[1]] * 3000, options, generator=torch.Generator().manual_seed(8)
    )
    statistic, limit = statistic_of(results, chain_law(target, 1, 1.5, 3))
    assert statistic < limit
    assert len({len(r.proposed_ids) for result in results for r in result.rounds}) > 1


@pytest.mark.parametrize("draft_sampling", ["sample", "greedy"])
@pytest.mark.parametrize("variant", ["spec_gated_reduced_1plusN_bf16", "dense_rnn_bf16"])
def test_observer_sees_the_p_and_q_that_decided(variant: str, draft_sampling: str) -> None:
    target, draft = golden_target(), golden_draft(variant)
    observations: list[Observation] = []
    options = DecodeOptions(
        max_new_tokens=10,
        temperature=0.8,
        top_k=40,
        top_p=0.9,
        draft_sampling=draft_sampling,  # type: ignore[arg-type]
    )
    prompts = random_prompts(320, (4, 9))
    results = decode(
        target,
        draft,
        prompts,
        options,
        generator=torch.Generator().manual_seed(0),
        observer=observations.append,
    )
    assert observations[0].draft_ids.shape == (2, 0)
    assert observations[0].anchor_positions == (3, 8)
    assert observations[0].next_token_ids.tolist() == [r.token_ids[0] for r in results]
    rounds = 0
    for observation in observations[1:]:
        p, q = observation.target_probabilities, observation.draft_probabilities
        assert p is not None
        assert q is not None
        rounds += len(observation.prompts)
        reachable = torch.zeros(320, dtype=torch.bool)
        reachable[draft.vocabulary.target_ids] = True
        assert bool((q[..., ~reachable] == 0).all())
        assert bool(((p > 0).sum(-1) <= 40).all())
        chance = q.gather(-1, observation.draft_ids[..., None])
        assert bool((chance > 0).all())
        p_at, q_at = p[:, :-1].double(), q.double()
        stands = q_at * compute_acceptance(p_at, q_at)
        residual = compute_residual(p_at, q_at)
        law = stands + (1 - stands.sum(-1, keepdim=True)) * residual / residual.sum(
            -1, keepdim=True
        )
        assert float((law - p_at).abs().max()) < 1e-6
    assert rounds == sum(len(result.rounds) for result in results)


def test_results_repeat_with_the_seed() -> None:
    target, draft = bigram_pair()
    prompts = random_prompts(64, (5, 2))
    options = DecodeOptions(max_new_tokens=20, temperature=0.7)
    runs = [
        decode(target, draft, prompts, options, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert len(runs[0][0].token_ids) == 20


def test_plain_sampling_follows_the_target() -> None:
    target, _ = chain_pair(4, seed=2)
    options = DecodeOptions(max_new_tokens=2, temperature=1.5)
    generator = torch.Generator().manual_seed(0)
    results = [
        DecodeResult(decode_plain(target, [1], options, generator=generator), ())
        for _ in range(2000)
    ]
    statistic, limit = statistic_of(results, chain_law(target, 1, 1.5, 2))
    assert statistic < limit


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_sampling_runs_with_a_cuda_generator(dtype: torch.dtype) -> None:
    target = golden_target(dtype, "cuda")
    draft = golden_draft("spec_gated_reduced_1plusN_bf16", dtype, "cuda")
    prompts = random_prompts(320, (4, 9))
    options = DecodeOptions(max_new_tokens=20, temperature=1.0, top_p=0.9)
    runs = [
        decode(target, draft, prompts, options, generator=torch.Generator("cuda").manual_seed(seed))
        for seed in (1, 1)
    ]
    assert runs[0] == runs[1]
    assert [len(result.token_ids) for result in runs[0]] == [20, 20]
