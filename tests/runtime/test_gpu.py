"""The runtime on CUDA: golden numbers, the scatter buffer, the tiny pair end to end, and waits.

Run with ``python -m pytest -m gpu tests/runtime``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest
import torch
from transformers import AutoTokenizer

from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.decode import decode, decode_plain
from dspark_convert.runtime.load import load_draft
from dspark_convert.runtime.load_target import load_target
from dspark_convert.runtime.propose import propose_block
from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Observation
from dspark_convert.runtime.sampling import draw_gumbel, scale_logits
from dspark_convert.runtime.vocabulary import ProposalBuffer

from .helpers import (
    GOLDEN,
    VARIANTS,
    bigram_pair,
    golden_cases,
    golden_draft,
    golden_target,
    random_prompts,
)
from .test_golden import TOLERANCE, assert_golden, assert_ids_where_margin_allows, propose

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DEVICE = "cuda"
DTYPES = [torch.float32, torch.bfloat16]
REDUCED = "spec_gated_reduced_1plusN_bf16"
TINY = GOLDEN.parent / "tiny"
TINY_DRAFTS = ("draft_1plusN_reduced", "draft_anchor_reduced", "draft_dense_full")
TINY_OPTIONS = DecodeOptions(max_new_tokens=64, stop_token_ids=frozenset({0}))
# Uploads of anchors, positions, padding and moves, and the results: nothing for each layer.
MOST_WAITS = 8


@pytest.fixture(autouse=True)
def whole_fp32_products() -> Iterator[None]:
    """No TF32, whose products are off by more than the tolerance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer PyTorch has another spelling, older has only this
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        yield
        torch.set_float32_matmul_precision(before)


# Golden numbers


@pytest.mark.parametrize("variant", VARIANTS)
def test_fp32_proposals_are_the_recorded_ones(variant: str) -> None:
    draft = golden_draft(variant, torch.float32, DEVICE)
    for case in golden_cases(variant):
        proposal = propose(draft, case)
        assert proposal.target_ids.device.type == DEVICE
        assert_golden(proposal, case)
        context_input = draft.compute_context_input(case["context_hidden"].to(DEVICE)).cpu()
        assert float((context_input - case["context_kv_input"]).abs().max()) < TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
def test_bf16_proposals_have_the_recorded_ids_where_the_margin_allows(variant: str) -> None:
    draft = golden_draft(variant, torch.bfloat16, DEVICE)
    for case in golden_cases(variant):
        assert_ids_where_margin_allows(propose(draft, case), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_padded_batch_are_the_recorded_proposals(
    variant: str, dtype: torch.dtype
) -> None:
    cases = golden_cases(variant)
    draft = golden_draft(variant, dtype, DEVICE)
    lengths = torch.tensor([len(case["context_hidden"]) for case in cases])
    padded = torch.nn.utils.rnn.pad_sequence(
        [case["context_hidden"] for case in cases], batch_first=True, padding_value=1e3
    )
    anchors = torch.cat([case["anchor_token_id"] for case in cases])
    batch = propose_block(draft, padded, anchors, lengths=lengths)
    check = assert_golden if dtype is torch.float32 else assert_ids_where_margin_allows
    for row, case in enumerate(cases):
        check(batch.row(row), case)


# The scatter buffer


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_columns_are_still_minus_infinity_after_a_thousand_steps(dtype: torch.dtype) -> None:
    vocabulary = golden_draft(REDUCED, dtype, DEVICE).vocabulary
    others = vocabulary.draft_ids < 0
    assert bool(others.any())
    buffer = ProposalBuffer(vocabulary, rows=3, num_tokens=2, dtype=dtype)
    generator = torch.Generator(DEVICE).manual_seed(0)
    outside = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for step in range(1000):
        shape = (1 + step % 3, vocabulary.draft_size)
        logits = torch.randn(shape, generator=generator, device=DEVICE).to(dtype)
        wide = buffer.write(step % 2, logits)
        drawn = draw_gumbel(scale_logits(wide, 10.0 ** -(step % 5)), generator)
        outside += others[drawn].sum()
    assert int(outside) == 0
    assert bool((buffer.logits[..., others] == float("-inf")).all())
    assert bool(buffer.logits[..., ~others].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_q_of_a_sampled_run_is_a_law_over_the_draft_vocabulary(dtype: torch.dtype) -> None:
    draft = golden_draft(REDUCED, dtype, DEVICE)
    others = draft.vocabulary.draft_ids < 0
    rounds = 0

    def observe(observation: Observation) -> None:
        nonlocal rounds
        p, q = observation.target_probabilities, observation.draft_probabilities
        assert p is not None
        assert q is not None
        rounds += q.shape[1] > 0
        assert not q[..., others].any()
        for law in (p, q):
            assert torch.allclose(law.sum(-1), law.new_ones(()), atol=1e-5)
            assert bool((law >= 0).all())

    options = DecodeOptions(max_new_tokens=20, temperature=1.0)
    generator = torch.Generator(DEVICE).manual_seed(0)
    target, prompts = golden_target(dtype, DEVICE), random_prompts(320, (4, 9, 1))
    decode(target, draft, prompts, options, generator=generator, observer=observe)
    assert rounds > 1


# The tiny pair


@cache
def tiny_target(device: str) -> CausalTarget:
    return load_target(TINY / "target", device=device, dtype=torch.float32)


@cache
def tiny_prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    return [list(tokenizer(json.loads(line)["prompt"]).input_ids) for line in lines]


@cache
def tiny_plain_output() -> list[tuple[int, ...]]:
    target = tiny_target(DEVICE)
    return [decode_plain(target, prompt, TINY_OPTIONS) for prompt in tiny_prompts()]


def decode_tiny(name: str, device: str) -> tuple[DecodeResult, ...]:
    draft = load_draft(TINY / name, device=device, dtype=torch.float32, target=TINY / "target")
    return decode(tiny_target(device), draft, tiny_prompts(), TINY_OPTIONS)


def rounds_without_confidence(results: tuple[DecodeResult, ...]) -> list[list[tuple[object, ...]]]:
    return [
        [(r.anchor_position, r.proposed_ids, r.accepted, r.committed_ids) for r in result.rounds]
        for result in results
    ]


@pytest.mark.parametrize("name", TINY_DRAFTS)
def test_tiny_pair_end_to_end(name: str) -> None:
    if not (TINY / name).is_dir() or not (TINY / "target").is_dir():
        pytest.skip(
            f"fixtures/tiny/{name} or its target is absent; fixtures/tiny/train.py makes it"
        )
    results = decode_tiny(name, DEVICE)
    assert [result.token_ids for result in results] == tiny_plain_output()
    rounds = sum(len(result.rounds) for result in results)
    assert sum(result.committed for result in results) / rounds >= 2.0
    on_cpu = decode_tiny(name, "cpu")
    assert rounds_without_confidence(results) == rounds_without_confidence(on_cpu)


# Waits


def test_waits_of_a_round_do_not_grow_with_the_layers() -> None:
    target, draft = bigram_pair()
    target.model.to(DEVICE)
    draft.to(DEVICE)
    prompts = random_prompts(64, (5, 5, 5, 5, 5, 5))
    seen: list[tuple[int, int]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def observe(observation: Observation) -> None:
            waits = sum("called a synchronizing" in str(item.message) for item in caught)
            seen.append((waits, len(observation.prompts)))

        torch.cuda.set_sync_debug_mode("warn")
        try:
            decode(target, draft, prompts, DecodeOptions(max_new_tokens=40), observer=observe)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    whole = [waits for waits, running in seen if running == len(prompts)]
    waits = [after - before for before, after in pairwise(whole)]
    assert min(waits) > 0, "the results of a round have to be waited for"
    assert max(waits) <= MOST_WAITS
