"""The fast path: tokens and rounds of the plain path, the law of rejection sampling, no waits."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import decode_fast as decode_fast_benchmark
from dspark_convert.runtime.attention import compute_visibility
from dspark_convert.runtime.decode import decode
from dspark_convert.runtime.fast import decode_fast, layers
from dspark_convert.runtime.fast.layers import LayerCache, see_block, see_causally
from dspark_convert.runtime.fast.rounds import Rounds
from dspark_convert.runtime.fast.sampling import NarrowChoice, verify_narrow
from dspark_convert.runtime.records import DecodeOptions, DecodeResult
from dspark_convert.runtime.rejection import Uniforms, compute_residual, verify_sampled
from dspark_convert.runtime.sampling import SamplingOptions, compute_probabilities
from dspark_convert.runtime.vocabulary import DraftVocabulary
from dspark_convert.schemas.draft import LayerType
from tests.conftest import mostly_slow

from .helpers import (
    VARIANTS,
    bigram_pair,
    golden_draft,
    golden_target,
    kernel_pair,
    make_config,
    make_draft,
    random_prompts,
)

LAYOUTS = ("anchor_first", "bonus_anchor")
PROMPTS = random_prompts(64, (1, 4, 9, 20, 13))
OPTIONS = [
    DecodeOptions(max_new_tokens=30),
    DecodeOptions(max_new_tokens=20, num_speculative_tokens=2),
    DecodeOptions(
        max_new_tokens=30, confidence_threshold=0.6, stop_token_ids=frozenset({5, 6, 7, 30})
    ),
]
absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, absent])]


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.gpu(absent(test))


@pytest.fixture(autouse=True)
def whole_fp32_products() -> Iterator[None]:
    """No TF32; PyTorch's compiler recommends it with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        yield
        torch.set_float32_matmul_precision(before)


def rounds_of(results: Sequence[DecodeResult]) -> list[object]:
    """All but confidences, which differ in the last bits."""
    return [
        (r.token_ids, [replace(round_, confidence=None) for round_ in r.rounds]) for r in results
    ]


# Equal to the plain path


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("layout", "sliding_window"),
    mostly_slow(product(LAYOUTS, [None, 6]), fast=[("anchor_first", 6), ("bonus_anchor", None)]),
)
def test_rounds_are_those_of_the_plain_path(
    layout: str, sliding_window: int | None, device: str
) -> None:
    target, draft = bigram_pair(layout=layout, sliding_window=sliding_window)
    target.model.to(device)
    draft.to(device)
    for options in OPTIONS:
        plain = rounds_of(decode(target, draft, PROMPTS, options))
        assert rounds_of(decode_fast(target, draft, PROMPTS, options)) == plain
        assert rounds_of(decode_fast(target, draft, PROMPTS, options, rows=2)) == plain


@pytest.mark.parametrize(
    ("variant", "device"),
    [
        *((variant, "cpu") for variant in VARIANTS),
        # One of them on a GPU, where each is compiled anew.
        pytest.param(VARIANTS[2], "cuda", marks=[pytest.mark.gpu, absent]),
    ],
)
def test_rounds_of_golden_drafts_are_those_of_the_plain_path(variant: str, device: str) -> None:
    draft = golden_draft(variant, device=device)
    target, prompts = golden_target(device=device), random_prompts(320, (3, 8, 1))
    options = DecodeOptions(max_new_tokens=8)
    fast = decode_fast(target, draft, prompts, options, rows=2)
    assert rounds_of(fast) == rounds_of(decode(target, draft, prompts, options))


def test_confidences_are_those_of_the_plain_path() -> None:
    target, draft = bigram_pair()
    plain, fast = (f(target, draft, PROMPTS[:2], OPTIONS[0]) for f in (decode, decode_fast))
    for one, other in zip(plain, fast, strict=True):
        for expected, found in zip(one.rounds, other.rounds, strict=True):
            assert expected.confidence is not None
            assert found.confidence == pytest.approx(expected.confidence, abs=1e-5)


def test_a_prompt_that_its_first_token_ends_makes_room_at_once() -> None:
    target, draft = bigram_pair()
    (first,) = decode(target, draft, [PROMPTS[0]], DecodeOptions(max_new_tokens=1))
    options = DecodeOptions(max_new_tokens=12, stop_token_ids=frozenset(first.token_ids[:1]))
    results = decode_fast(target, draft, PROMPTS, options, rows=1)
    assert results[0].rounds == ()
    assert rounds_of(results) == rounds_of(decode(target, draft, PROMPTS, options))


@pytest.mark.parametrize("non_causal", [False, True])
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_a_block_sees_what_it_sees_on_the_plain_path(kind: LayerType, non_causal: bool) -> None:
    config = make_config(sliding_window=3, sliding_window_non_causal=non_causal, block_size=4)
    anchors, columns = torch.tensor([0, 1, 7, 12]), 16
    causal = kind == "sliding_attention" and not non_causal
    window = config.sliding_window if kind == "sliding_attention" else None
    seen = see_block(anchors[:, None] + torch.arange(4), columns, window, causal=causal)
    plain = compute_visibility(config, kind, anchors[:, None], columns)[:, 0]
    for row, anchor in enumerate(anchors.tolist()):
        block = slice(anchor, anchor + 4)
        # The plain path holds the block beside the context, here it follows the context.
        assert torch.equal(seen[row, :, block], plain[row, :, columns:])
        context = plain[row, :, :columns].clone()
        context[:, block] = seen[row, :, block]
        assert torch.equal(seen[row], context)
    # The kernels read masks as they lie in memory.
    assert seen.is_contiguous()


# The law above temperature 0


def reduced(draft_size: int = 6, target_size: int = 11) -> DraftVocabulary:
    ids = torch.arange(draft_size)
    return DraftVocabulary(draft_size, target_size, ids * target_size // draft_size - ids)


def random_laws(rows: int, vocabulary: DraftVocabulary) -> tuple[Tensor, Tensor, Tensor]:
    """p [R, 4, V], q [R, 3, D] and tokens [R, 3] drawn from q, in target ids."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(rows, 4, vocabulary.target_size, generator=generator).softmax(-1)
    q = torch.randn(rows, 3, vocabulary.draft_size, generator=generator).mul(2).softmax(-1)
    drawn = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(rows, 3)
    return p, q, vocabulary.map_draft_to_target(drawn)


@pytest.mark.parametrize("one_hot_draft", [False, True])
def test_the_same_tokens_stand_as_with_q_scattered(one_hot_draft: bool) -> None:
    vocabulary, generator = reduced(), torch.Generator().manual_seed(1)
    p, q, ids = random_laws(500, vocabulary)
    lengths = torch.randint(0, 4, (500,), generator=generator)
    uniforms = Uniforms.draw(500, 3, generator)
    wide = vocabulary.scatter_probabilities(q)
    if one_hot_draft:
        wide = torch.nn.functional.one_hot(ids, vocabulary.target_size).float()
    narrow = None if one_hot_draft else q
    verdict = verify_narrow(p, narrow, ids, lengths, vocabulary, uniforms, generator)
    expected = verify_sampled(p, wide, ids, lengths, uniforms)
    assert verdict.accepted.tolist() == expected.accepted.tolist()
    assert {0, 1, 2} <= set(verdict.accepted.tolist())


def chi_square(counts: Tensor, law: Tensor) -> float:
    """Pearson's statistic per degree of freedom; what has no probability must not occur."""
    assert not counts[law == 0].any()
    wanted = law[law > 0] * counts.sum()
    return float(((counts[law > 0] - wanted) ** 2 / wanted).sum() / (len(wanted) - 1))


def test_the_next_token_follows_the_residual() -> None:
    vocabulary, draws = reduced(), 40_000
    p, q, ids = (x[:1] for x in random_laws(1, vocabulary))
    every = [x.expand(draws, *x.shape[1:]) for x in (p, q, ids)]
    # The uniform numbers reject the second drafted token of every row.
    uniforms = Uniforms(torch.tensor([0.0, 1e9, 0.0]).expand(draws, 3), torch.zeros(draws))
    lengths, generator = torch.full((draws,), 3), torch.Generator().manual_seed(2)
    verdict = verify_narrow(*every, lengths, vocabulary, uniforms, generator)
    assert set(verdict.accepted.tolist()) == {1}
    weights = compute_residual(p[0, 1], vocabulary.scatter_probabilities(q[0, 1]))
    counts = verdict.next_token_ids.bincount(minlength=vocabulary.target_size)
    # Fewer than 1 in 10,000 samples of 5 or more degrees of freedom lie above 5.
    assert chi_square(counts.double(), (weights / weights.sum()).double()) < 5


@pytest.mark.parametrize("thousands", mostly_slow([20, 60], fast=[20]))
def test_drafted_tokens_follow_q_over_a_large_vocabulary(thousands: int) -> None:
    vocabulary = reduced(2_000, 9_000)
    logits = torch.randn(2_000, generator=torch.Generator().manual_seed(3))
    choose = NarrowChoice(vocabulary, 0.7, torch.Generator().manual_seed(4))
    draws = torch.cat([choose(0, logits.expand(1_000, -1)) for _ in range(thousands)])
    law = vocabulary.scatter_probabilities((logits / 0.7).softmax(-1))
    counts = draws.bincount(minlength=9_000)
    # Its standard deviation is below 0.04, also of 20,000: 1.2 is five of them away, or more.
    assert 0.8 < chi_square(counts.double(), law.double()) < 1.2


def test_sampled_output_follows_the_target() -> None:
    """The law of the second token, exact by enumeration of the first."""
    target, draft = bigram_pair()
    options = DecodeOptions(max_new_tokens=2, temperature=1.0)
    generator = torch.Generator().manual_seed(5)
    results = decode_fast(target, draft, [[7, 3]] * 800, options, generator=generator, rows=100)
    pairs = torch.tensor([[7, 3, token] for token in range(64)])
    logits = target.model(input_ids=pairs).logits
    p = compute_probabilities(logits, SamplingOptions(temperature=1.0))
    law = (p[0, 1, :, None] * p[:, 2]).sum(0)
    # The rarest tokens share a class, so that every class is expected often enough.
    kept = law.topk(12).indices
    classes = torch.full((64,), 12).scatter(0, kept, torch.arange(12))
    counts = classes[torch.tensor([r.token_ids[1] for r in results])].bincount(minlength=13)
    grouped = torch.zeros(13).index_add(0, classes, law)
    assert chi_square(counts.double(), grouped.double()) < 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_the_target_lacks_is_never_drafted(temperature: float) -> None:
    """The draft's embedding and head are padded beyond the target's."""
    target, _ = bigram_pair()
    wider = make_config(
        vocab_size=96,
        draft_vocab_size=96,
        mask_token_id=95,
        target_hidden_size=32,
        target_layer_ids=(-1, 0, 2),
    )
    options = DecodeOptions(max_new_tokens=40, temperature=temperature)
    generator = torch.Generator().manual_seed(0)
    results = decode_fast(target, make_draft(wider), PROMPTS, options, generator=generator)
    drafted = {i for r in results for round_ in r.rounds for i in round_.proposed_ids}
    assert 32 < max(drafted) < 64


@pytest.mark.parametrize("device", DEVICES)
def test_sampled_runs_repeat_with_their_seed(device: str) -> None:
    target, draft = bigram_pair()
    target.model.to(device)
    draft.to(device)
    options = DecodeOptions(max_new_tokens=20, temperature=1.0)

    def run(seed: int) -> list[object]:
        generator = torch.Generator(device).manual_seed(seed)
        results = decode_fast(target, draft, PROMPTS, options, generator=generator, rows=3)
        return rounds_of(results)

    assert run(1) == run(1)
    assert run(1) != run(2)


# The benchmark


def test_rounds_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    decode_fast_benchmark.main(["--tiny", "--rounds", "1", "--json", str(tmp_path / "figures")])
    figures = json.loads((tmp_path / "figures").read_text())["settings"]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(figures)
    assert len({row.count("|") for row in rows}) == 1
    assert all(0 < each["fastest"] <= each["median"] <= each["slowest"] for each in figures)
    assert all(each["accepted_length"] >= 1 for each in figures)


# On a GPU


@on_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second CUDA device")
def test_a_gpu_that_is_not_the_current_one_decodes_too() -> None:
    target, draft = bigram_pair()
    target.model.to("cuda:1")
    draft.to("cuda:1")
    plain = rounds_of(decode(target, draft, PROMPTS, OPTIONS[0]))
    assert rounds_of(decode_fast(target, draft, PROMPTS, OPTIONS[0])) == plain


@on_gpu
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_kernels_compute_what_the_plain_layer_computes(rows: int, causal: bool) -> None:
    from dspark_convert.runtime.fast.runners import FusedRunner, choose_runner

    _, draft = kernel_pair()
    layer, columns = draft.layers[0], 300
    x = torch.randn(rows, 4, 256, device="cuda", dtype=torch.bfloat16)
    first = torch.randint(0, columns - 4, (rows, 1), device="cuda")
    positions = first + torch.arange(4, device="cuda")
    see = see_causally(positions, columns, 70)
    visible = see if causal else see_block(positions, columns, None, causal=False)
    caches = [LayerCache.allocate(rows, 2, columns, 64, x) for _ in range(2)]
    for name in ("keys", "values"):
        getattr(caches[0], name).normal_()
        getattr(caches[1], name).copy_(getattr(caches[0], name))
    angles = draft.rotary(positions, torch.bfloat16)
    runner = choose_runner([layer], caches[0], "silu")
    assert isinstance(runner, FusedRunner)
    arguments = [(layer, x, angles, each.keys, each.values, positions, visible) for each in caches]
    fused = [runner.run_layer(*arguments[0]) for _ in range(3)]
    plain = layers.run_layer(*arguments[1])
    assert all(torch.equal(each, fused[0]) for each in fused)
    pairs = [(fused[0], plain)]
    pairs += [(getattr(caches[0], name), getattr(caches[1], name)) for name in ("keys", "values")]
    for found, expected in pairs:
        # bf16 keeps 8 bits; a few roundings lie between.
        scale = float(expected.abs().max())
        assert float((found.float() - expected.float()).abs().max()) < scale * 2**-6


@on_gpu
@pytest.mark.parametrize("rows", [1, 9])
@torch.no_grad()
def test_bf16_tokens_are_the_targets_but_for_near_ties(rows: int) -> None:
    target, draft = kernel_pair()
    prompts = random_prompts(640, (5, 17, 40, 3, 9, 12, 21, 8, 30))
    results = decode_fast(target, draft, prompts, DecodeOptions(max_new_tokens=24), rows=rows)
    for prompt, result in zip(prompts, results, strict=True):
        text = torch.tensor([[*prompt, *result.token_ids]], device="cuda")
        logits = target.model(input_ids=text).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, text[0, len(prompt) :, None]).squeeze(1)
        best = logits.amax(1)
        # Four units in the last place of the largest logit.
        assert bool((best - chosen <= best.abs() * 2**-6).all())


@on_gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@torch.no_grad()
def test_a_round_neither_waits_nor_allocates(temperature: float) -> None:
    target, draft = kernel_pair()
    options = DecodeOptions(max_new_tokens=60, temperature=temperature)
    generator = torch.Generator("cuda").manual_seed(0)
    rounds = Rounds(target, draft, options, rows=2, longest=8, generator=generator)
    for row in range(2):
        rounds.admit(row, PROMPTS[1])
    rounds.start_round().wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = [rounds.start_round() for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_allocated() == before
    assert all(len(each.wait()) == 2 for each in pending)
