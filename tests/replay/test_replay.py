"""Replay against the decode loop: round by round at temperature 0, in the mean above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark_convert.errors import UsageError
from dspark_convert.replay.replay import (
    Replay,
    ReplayOptions,
    bound_overlap,
    cut_text,
    measure_agreement,
    replay_sequence,
)
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.decode import decode
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import propose_block
from dspark_convert.runtime.records import DecodeOptions, DecodeResult
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.runtime.sampling import compute_probabilities
from dspark_convert.traces.trace import TraceSequence
from tests.conftest import mostly_slow
from tests.runtime.helpers import (
    VARIANTS,
    bigram_pair,
    golden_draft,
    golden_target,
    random_prompts,
)

QUANTILE_99 = 2.576

Pair = tuple[CausalTarget, DraftModel]


def pair(name: str) -> Pair:
    """A golden draft with the fp32 verifier, or the bigram pair in a layout."""
    if name in VARIANTS:
        return golden_target(), golden_draft(name)
    return bigram_pair(layout=name)


def read_texts(
    target: CausalTarget, texts: Sequence[Sequence[int]]
) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits [R, T, V] and residual streams of all layers; padding at the ends changes nothing."""
    width = max(map(len, texts))
    padded = torch.tensor([[*text, *([0] * (width - len(text)))] for text in texts])
    with torch.no_grad(), target.tap(range(-1, target.num_hidden_layers)) as tapped:
        return target.model(input_ids=padded).logits.float(), tapped


def record(
    target: CausalTarget,
    texts: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    top: int = 4,
) -> list[TraceSequence]:
    """Traces of texts, from one forward pass of the target."""
    logits, tapped = read_texts(target, texts)
    sequences = []
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        tokens, first = torch.tensor(text), len(prompt)
        raw = logits[row, first - 1 : len(text) - 1]
        p = compute_probabilities(raw, options.sampling)
        largest = (raw.softmax(-1) if options.sampling.greedy else p).topk(top, dim=-1)
        sequences.append(
            TraceSequence(
                id=str(row),
                token_ids=tokens,
                first_generated=first,
                layer_ids=tuple(tapped),
                features=torch.stack([layer[row, : len(text)] for layer in tapped.values()], 1),
                log_probs=p.gather(1, tokens[first:, None])[:, 0].log(),
                top_ids=largest.indices.int(),
                top_log_probs=largest.values.log(),
                tail_mass=1 - largest.values.sum(-1),
                argmax_ids=raw.argmax(-1),
                top2_gap=-raw.topk(2, dim=-1).values.diff(dim=-1)[:, 0],
            )
        )
    return sequences


def committed_text(prompt: Sequence[int], result: DecodeResult) -> list[int]:
    """Prompt, the prefill's token, and all that the rounds committed, past the limit too."""
    rounds = [token for round_ in result.rounds for token in round_.committed_ids]
    return [*prompt, result.token_ids[0], *rounds]


def complete(
    target: CausalTarget,
    texts: list[list[int]],
    lengths: Sequence[int],
    options: DecodeOptions,
    generator: torch.Generator,
) -> None:
    """Let the target write each text on up to its length, unless a stop token ended it."""
    while rows := [
        row
        for row, text in enumerate(texts)
        if len(text) < lengths[row] and text[-1] not in options.stop_token_ids
    ]:
        logits = read_texts(target, [texts[row] for row in rows])[0]
        last = torch.stack([logits[i, len(texts[row]) - 1] for i, row in enumerate(rows)])
        p = compute_probabilities(last, options.sampling)
        for row, token in zip(rows, torch.multinomial(p, 1, generator=generator), strict=True):
            texts[row].append(int(token))


def decode_texts(
    pair: Pair, prompts: list[list[int]], options: DecodeOptions, *, seed: int = 0
) -> tuple[tuple[DecodeResult, ...], list[list[int]]]:
    """Decode prompts; results, and the texts that were committed, with all that a trace keeps."""
    target, draft = pair
    generator = torch.Generator().manual_seed(seed)
    results = decode(target, draft, prompts, options, generator=generator)
    texts = [committed_text(*both) for both in zip(prompts, results, strict=True)]
    beyond = options.max_new_tokens + draft.config.num_speculative_tokens + 1
    complete(target, texts, [len(prompt) + beyond for prompt in prompts], options, generator)
    return results, texts


def run_both(
    pair: Pair, prompts: list[list[int]], options: DecodeOptions, *, seed: int = 0
) -> tuple[tuple[DecodeResult, ...], list[Replay]]:
    """Decode prompts, and replay the very texts that were committed."""
    target, draft = pair
    results, texts = decode_texts(pair, prompts, options, seed=seed)
    settings = ReplayOptions(decode=options, target_vocab_size=target.vocab_size)
    sequences = record(target, texts, prompts, options)
    return results, [replay_sequence(draft, sequence, settings) for sequence in sequences]


def assert_same_rounds(
    prompts: list[list[int]], results: Sequence[DecodeResult], replays: Sequence[Replay]
) -> None:
    for prompt, result, replayed in zip(prompts, results, replays, strict=True):
        decoded = [(r.anchor_position - len(prompt), r.accepted) for r in result.rounds]
        assert replayed.expectation.certain_rounds() == tuple(decoded)
        assert replayed.expectation.committed == result.committed


GREEDY: list[dict[str, Any]] = [
    {},
    {"num_speculative_tokens": 2},
    {"confidence_threshold": 0.5},
    {"stop_token_ids": frozenset(range(0, 64, 5))},
    {"max_new_tokens": 1},
]


@pytest.mark.parametrize("changes", GREEDY, ids=str)
@pytest.mark.parametrize("layout", ["anchor_first", "bonus_anchor"])
def test_greedy_rounds_equal_those_of_the_loop(layout: str, changes: dict[str, Any]) -> None:
    prompts = random_prompts(64, [3, 9, 5, 14, 1, 7])
    options = DecodeOptions(**{"max_new_tokens": 24, **changes})
    results, replays = run_both(pair(layout), prompts, options)
    assert_same_rounds(prompts, results, replays)
    if not changes:
        assert len({round_.accepted for result in results for round_ in result.rounds}) >= 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_rounds_of_every_head(variant: str) -> None:
    prompts = random_prompts(320, [4, 11])
    results, replays = run_both(pair(variant), prompts, DecodeOptions(max_new_tokens=16))
    assert_same_rounds(prompts, results, replays)


@pytest.mark.parametrize("layout", ["anchor_first", "bonus_anchor"])
def test_greedy_drafts_under_a_sampled_target(layout: str) -> None:
    """One-hot q: whether the draft chose the text's token, so nothing is left to chance."""
    prompts = random_prompts(64, [3, 9, 5, 14])
    options = DecodeOptions(max_new_tokens=24, temperature=0.8, draft_sampling="greedy")
    results, replays = run_both(pair(layout), prompts, options)
    assert_same_rounds(prompts, results, replays)


SAMPLED: list[tuple[str, dict[str, Any]]] = [
    *((variant, {}) for variant in VARIANTS),
    ("anchor_first", {}),
    ("bonus_anchor", {}),
    ("bonus_anchor", {"top_k": 8, "top_p": 0.9, "temperature": 0.7}),
    ("anchor_first", {"confidence_threshold": 0.5}),
    ("anchor_first", {"num_speculative_tokens": 3, "stop_token_ids": frozenset(range(0, 64, 9))}),
]


SAMPLED_BY_DEFAULT = [
    ("anchor_first", {}),
    *(case for case in SAMPLED if "top_k" in case[1]),
]


@pytest.mark.parametrize(
    ("name", "changes"), mostly_slow(SAMPLED, fast=SAMPLED_BY_DEFAULT), ids=str
)
def test_expected_counts_lie_inside_the_interval_of_the_loop(
    name: str, changes: dict[str, Any]
) -> None:
    target, draft = pair(name)
    options = DecodeOptions(**{"max_new_tokens": 40, "temperature": 1.0, **changes})
    count = 640 if options.stop_token_ids else 90 if name in VARIANTS else 180
    prompts = random_prompts(target.vocab_size, [3] * count, seed=1)
    results, replays = run_both((target, draft), prompts, options, seed=2)
    rounds = np.array([len(result.rounds) for result in results], dtype=float)
    committed = np.array([result.committed for result in results], dtype=float)
    expected_rounds = np.array([float(replay.expectation.rounds) for replay in replays])
    expected_committed = np.array([float(replay.expectation.committed) for replay in replays])
    assert rounds.sum() >= 2000
    for decoded, expected in ((rounds, expected_rounds), (committed, expected_committed)):
        error = decoded.std(ddof=1) / np.sqrt(count)
        assert abs(decoded.mean() - expected.mean()) < QUANTILE_99 * error
        # The texts are the same, so the difference has mean 0 and is far less noisy.
        difference = decoded - expected
        assert (
            abs(difference.mean()) <= QUANTILE_99 * difference.std(ddof=1) / np.sqrt(count) + 1e-9
        )
    assert expected_committed.sum() / expected_rounds.sum() > 1.02


def greedy_sequence(tokens: int = 12) -> tuple[Pair, list[int], TraceSequence]:
    """A greedy text of the bigram pair, and its trace."""
    target, draft = pair("anchor_first")
    prompt = random_prompts(64, [5])[0]
    results = decode(target, draft, [prompt], DecodeOptions(max_new_tokens=tokens))
    text = committed_text(prompt, results[0])[: 5 + tokens]
    return (
        (target, draft),
        prompt,
        record(target, [text], [prompt], DecodeOptions(max_new_tokens=1))[0],
    )


def replay_options(decode: DecodeOptions, **changes: Any) -> ReplayOptions:
    return ReplayOptions(decode=decode, target_vocab_size=64, **changes)


def test_a_text_is_cut_at_its_first_stop_token() -> None:
    sequence = replace(greedy_sequence()[2], token_ids=torch.tensor([7, 9, 7, 1, 2, 7, 3, 4]))
    cut = replace(sequence, first_generated=3)
    options = DecodeOptions(max_new_tokens=3, stop_token_ids=frozenset({7}))
    tokens, anchors = cut_text(cut, options, 9)
    assert tokens.tolist() == [7, 9, 7, 1, 2, 7]
    assert anchors == range(3, 5)
    assert cut_text(replace(sequence, first_generated=2), options, 9)[1] == range(2, 2)
    assert cut_text(cut, replace(options, max_new_tokens=1), 9)[1] == range(3, 4)


def test_a_text_without_its_last_round_is_refused() -> None:
    (_, draft), _, sequence = greedy_sequence(12)
    assert draft.config.num_speculative_tokens == 5
    replay_sequence(draft, sequence, replay_options(DecodeOptions(max_new_tokens=6)))
    with pytest.raises(UsageError) as caught:
        replay_sequence(draft, sequence, replay_options(DecodeOptions(max_new_tokens=7)))
    assert caught.value.code == "replay-text-too-short"


def test_a_sampled_draft_needs_log_probabilities() -> None:
    (_, draft), _, sequence = greedy_sequence()
    sequence = replace(sequence, log_probs=None)
    options = DecodeOptions(max_new_tokens=4, temperature=1.0)
    with pytest.raises(UsageError) as caught:
        replay_sequence(draft, sequence, replay_options(options))
    assert caught.value.code == "replay-log-probs-missing"
    replay_sequence(draft, sequence, replay_options(replace(options, draft_sampling="greedy")))


@pytest.mark.parametrize("changes", [{"num_speculative_tokens": 6}, {"confidence_threshold": 0.5}])
def test_options_that_the_draft_cannot_serve(changes: dict[str, Any]) -> None:
    draft = golden_draft("spec_nomarkov_noconf_full_bf16")
    sequence = greedy_sequence()[2]
    options = DecodeOptions(**{"max_new_tokens": 1, **changes})
    if "num_speculative_tokens" in changes:
        options = replace(options, num_speculative_tokens=draft.config.num_speculative_tokens + 1)
    with pytest.raises(UsageError) as caught:
        replay_sequence(draft, sequence, replay_options(options))
    assert caught.value.code in ("too-many-speculative-tokens", "confidence-head-absent")


def test_nothing_is_replayed_after_a_stop_token() -> None:
    (_, draft), _, sequence = greedy_sequence()
    stop = frozenset({int(sequence.token_ids[5])})
    options = DecodeOptions(max_new_tokens=4, stop_token_ids=stop)
    replayed = replay_sequence(draft, sequence, replay_options(options))
    assert replayed.expectation.certain_rounds() == ()


def test_overlap_is_bounded_and_exact_with_all_tokens_stored() -> None:
    generator = np.random.default_rng(0)
    p, q = generator.dirichlet(np.full(20, 0.3), size=(2, 50))
    exact = np.minimum(p, q).sum(-1)
    for kept in (1, 5, 20):
        top = np.argsort(-p, axis=-1)[:, :kept]
        largest = np.take_along_axis(p, top, -1)
        bounds = bound_overlap(
            *map(
                torch.from_numpy,
                (np.log(largest), 1 - largest.sum(-1), np.log(np.take_along_axis(q, top, -1))),
            )
        )
        low, high = (each.numpy() for each in bounds)
        assert (low <= exact + 1e-12).all()
        assert (exact <= high + 1e-12).all()
    assert high - low == pytest.approx(0, abs=1e-12)


def test_overlap_of_the_first_token_is_its_mean_acceptance() -> None:
    """E over x ~ p of min(1, q(x) / p(x)) is sum_v min(p, q): the two statistics agree."""
    target, draft = pair("anchor_first")
    options = DecodeOptions(max_new_tokens=30, temperature=1.0)
    prompts = random_prompts(64, [3] * 60, seed=5)
    generator = torch.Generator().manual_seed(0)
    texts = [list(prompt) for prompt in prompts]
    complete(target, texts, [3 + 36] * 60, options, generator)
    sequences = record(target, texts, prompts, options, top=64)
    settings = replay_options(options, top_temperature=1.0)
    replays = [replay_sequence(draft, sequence, settings) for sequence in sequences]
    overlaps = [replay.overlap for replay in replays if replay.overlap is not None]
    low, high = (np.concatenate(bounds) for bounds in zip(*overlaps, strict=True))
    accepted = np.concatenate([replay.expectation.acceptance[:, 0] for replay in replays])
    assert high - low == pytest.approx(0, abs=1e-5)
    error = (accepted - low).std() / np.sqrt(len(low))
    assert abs((accepted - low).mean()) < QUANTILE_99 * error
    assert error < 0.02


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_overlap_is_at_the_temperature_of_the_stored_candidates(temperature: float) -> None:
    """Against one proposal from the same features, whose q is softened here."""
    target, draft = pair("anchor_first")
    options = DecodeOptions(max_new_tokens=6, temperature=temperature)
    (prompt,) = random_prompts(64, [3], seed=5)
    text = list(prompt)
    complete(target, [text], [3 + 12], options, torch.Generator().manual_seed(0))
    (sequence,) = record(target, [text], [prompt], options, top=64)
    replay = replay_sequence(draft, sequence, replay_options(options, top_temperature=temperature))
    anchor = sequence.first_generated
    features = torch.cat(
        [layer[:anchor] for layer in sequence.features_of(draft.config.target_layer_ids)], -1
    )
    proposal = propose_block(draft, features, text[anchor])
    q = (proposal.proposal_logits[0] / temperature).softmax(-1)
    assert sequence.top_ids is not None
    assert sequence.top_log_probs is not None
    assert replay.overlap is not None
    p = sequence.top_log_probs[1].exp()
    shared = torch.minimum(p, q[sequence.top_ids[1].long()]).sum()
    assert replay.overlap[0][0] == pytest.approx(float(shared), abs=1e-5)


def test_agreement_counts_anchors_that_have_a_token() -> None:
    (target, draft), prompt, sequence = greedy_sequence(12)
    options = replay_options(DecodeOptions(max_new_tokens=6))
    agreed, anchors = measure_agreement(draft, sequence, options)
    assert anchors.tolist() == [11, 10, 9, 8, 7]
    # On the target's own greedy text, agreeing with it is being accepted.
    accepted = replay_sequence(draft, sequence, options).expectation.acceptance
    assert agreed[0] >= accepted[:, 0].sum()
    given = [*prompt, *random_prompts(64, [12], seed=9)[0]]
    elsewhere = record(target, [given], [prompt], options.decode)[0]
    others, _ = measure_agreement(draft, elsewhere, options)
    assert 0 < others[0] <= 11


def test_memory_budget_changes_nothing() -> None:
    (_, draft), _, sequence = greedy_sequence(12)
    options = replay_options(DecodeOptions(max_new_tokens=6, temperature=1.0))
    whole = replay_sequence(draft, sequence, options)
    pieces = replay_sequence(draft, sequence, replace(options, steps=ReplaySteps(memory_budget=1)))
    np.testing.assert_allclose(
        pieces.expectation.acceptance, whole.expectation.acceptance, rtol=1e-4, atol=1e-6
    )
