"""The speculative loop: equal to the plain loop, in batches, with the field's counting."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from dspark_convert.errors import DraftError, UsageError
from dspark_convert.runtime.decode import decode, decode_plain
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import propose_block
from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Observation
from dspark_convert.runtime.target import Target
from tests.conftest import mostly_slow

from .helpers import (
    VARIANTS,
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

LAYOUTS = ("anchor_first", "bonus_anchor")


@cache
def plain_output(
    target: Target, prompt: tuple[int, ...], options: DecodeOptions
) -> tuple[int, ...]:
    """What the plain loop gives, which is the same whatever the draft."""
    return decode_plain(target, prompt, options)


def assert_lossless(
    target: Target, draft: DraftModel, prompts: list[list[int]], options: DecodeOptions
) -> tuple[DecodeResult, ...]:
    """Batch, batches of one and the plain loop give the same tokens and rounds."""
    results = decode(target, draft, prompts, options)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == plain_output(target, tuple(prompt), options)
        (alone,) = decode(target, draft, [prompt], options)
        assert alone.token_ids == result.token_ids
        assert accepted_counts([alone]) == accepted_counts([result])
        assert [r.proposed_ids for r in alone.rounds] == [r.proposed_ids for r in result.rounds]
    return results


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_output_of_golden_drafts_is_the_plain_output(variant: str) -> None:
    prompts = random_prompts(320, (1, 3, 17, 8))
    assert_lossless(
        golden_target(), golden_draft(variant), prompts, DecodeOptions(max_new_tokens=12)
    )


SHORT_TEXTS = [("anchor_first", None, 20), ("bonus_anchor", 6, 20)]


@pytest.mark.parametrize(
    ("layout", "sliding_window", "tokens"),
    mostly_slow(
        [*SHORT_TEXTS, *itertools.product(LAYOUTS, [None, 6], [40])],
        fast=SHORT_TEXTS,
    ),
)
def test_rows_that_accept_differently_keep_the_right_caches(
    layout: str, sliding_window: int | None, tokens: int
) -> None:
    target, draft = bigram_pair(layout=layout, sliding_window=sliding_window)
    prompts = random_prompts(64, (1, 4, 9, 20, 13))
    results = assert_lossless(target, draft, prompts, DecodeOptions(max_new_tokens=tokens))
    counts = accepted_counts(results)
    assert {0, 1, 2} <= set(itertools.chain(*counts))
    assert len({len(rounds) for rounds in counts}) > 1


def test_the_draft_sees_the_context_of_accepted_positions_only() -> None:
    """Rounds replay: the draft without a cache proposes the same from the text's own features."""
    target, draft = bigram_pair()
    (prompt,) = random_prompts(64, (7,))
    (result,) = decode(target, draft, [prompt], DecodeOptions(max_new_tokens=30))
    text = [*prompt, result.token_ids[0]]
    for round_ in result.rounds:
        assert round_.anchor_position == len(text) - 1
        session = target.start(draft.config.target_layer_ids)
        features = session.prefill(torch.tensor([text[:-1]]), [len(text) - 1]).features[0]
        assert propose_block(draft, features, text[-1]).target_ids.tolist() == list(
            round_.proposed_ids
        )
        text.extend(round_.committed_ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sessions_hold_the_committed_tokens_before_the_anchor(layout: str) -> None:
    target, draft = chain_pair(6, layout=layout)
    prompts = random_prompts(6, (2, 5, 3))
    seen: list[list[list[int]]] = []

    def observe(observation: Observation) -> None:
        seen.append([list(row) for row in target.session.seen])

    results = decode(target, draft, prompts, DecodeOptions(max_new_tokens=20), observer=observe)
    assert seen[0] == prompts
    for number, rows in enumerate(seen[1:]):
        running = [i for i, result in enumerate(results) if len(result.rounds) > number]
        for row, index in zip(rows, running, strict=True):
            round_ = results[index].rounds[number]
            text = [*prompts[index], *results[index].token_ids]
            start = round_.anchor_position
            assert row[: start + 1] == text[: start + 1]
            assert row[start + 1 :] == list(round_.proposed_ids)


def test_counting_is_the_fields() -> None:
    """A draft that is always right: four tokens and a bonus in every round."""
    target, draft = chain_pair(9, noise=0.0)
    for limit in range(1, 13):
        (result,) = decode(target, draft, [[3, 1]], DecodeOptions(max_new_tokens=limit))
        assert len(result.rounds) == math.ceil(limit / 5)
        assert result.committed == 5 * len(result.rounds)
        assert accepted_counts([result]) == [[4] * len(result.rounds)]
        assert result.token_ids == decode_plain(target, [3, 1], DecodeOptions(max_new_tokens=limit))
        assert len(result.token_ids) == limit
        assert [r.anchor_position for r in result.rounds] == [
            2 + 5 * number for number in range(len(result.rounds))
        ]


def successor_pair(vocab: int) -> tuple[ChainTarget, DraftModel]:
    """The next token is the last plus one; the draft knows."""
    _, draft = chain_pair(vocab, noise=0.0)
    logits = 20 * torch.eye(vocab).roll(1, dims=1)
    assert draft.markov_head is not None
    draft.markov_head.markov_w2.weight.copy_(logits.T)
    return ChainTarget(logits), draft


@pytest.mark.parametrize(
    ("stop", "accepted", "committed", "early"),
    [
        (3, [], 0, None),
        (4, [1], 1, True),
        (6, [3], 3, True),
        (7, [4], 4, True),
        (8, [4], 5, False),
        (9, [4, 1], 6, True),
    ],
)
def test_stop_tokens(stop: int, accepted: list[int], committed: int, early: bool | None) -> None:
    """Prompt 2: the prefill gives 3, a round 4 5 6 7 and the bonus 8, the next 9 10 11 12, 13."""
    target, draft = successor_pair(20)
    options = DecodeOptions(max_new_tokens=30, stop_token_ids=frozenset({stop}))
    (result,) = decode(target, draft, [[2]], options)
    assert accepted_counts([result]) == [accepted]
    assert result.committed == committed
    assert result.token_ids == tuple(range(3, stop + 1))
    assert result.token_ids == decode_plain(target, [2], options)
    assert [r.stopped_early for r in result.rounds[-1:]] == ([] if early is None else [early])
    # 20 against 0 in the logits: drawn tokens are the greedy ones.
    sampled = decode(
        target,
        draft,
        [[2]],
        replace(options, temperature=1.0),
        generator=torch.Generator().manual_seed(0),
    )
    assert sampled[0].token_ids == result.token_ids
    assert accepted_counts(sampled) == [accepted]


def test_rows_finish_independently() -> None:
    target, draft = successor_pair(20)
    options = DecodeOptions(max_new_tokens=30, stop_token_ids=frozenset({15}))
    results = decode(target, draft, [[14], [2], [9, 13], [0, 0, 7]], options)
    assert [result.token_ids[-1] for result in results] == [15] * 4
    assert [len(result.token_ids) for result in results] == [1, 13, 2, 8]
    assert results[0].rounds == ()


def test_fewer_speculative_tokens_cut_the_proposal() -> None:
    target, draft = chain_pair(9, noise=0.0)
    options = DecodeOptions(max_new_tokens=12, num_speculative_tokens=2)
    (result,) = decode(target, draft, [[3]], options)
    assert accepted_counts([result]) == [[2] * 4]
    assert {len(round_.proposed_ids) for round_ in result.rounds} == {2}


@pytest.mark.parametrize("layout", mostly_slow(LAYOUTS, fast=["bonus_anchor"]))
def test_confidence_threshold_cuts_the_proposal_and_may_empty_it(layout: str) -> None:
    target, draft = bigram_pair(layout=layout)
    prompts = random_prompts(64, (3, 8))
    every = DecodeOptions(max_new_tokens=30)
    confidences = [
        value
        for result in decode(target, draft, prompts, every)
        for round_ in result.rounds
        for value in round_.confidence or ()
    ]
    threshold = sorted(confidences)[len(confidences) // 2]
    options = replace(every, confidence_threshold=threshold)
    results = assert_lossless(target, draft, prompts, options)
    rounds = [round_ for result in results for round_ in result.rounds]
    assert len({len(round_.proposed_ids) for round_ in rounds}) > 2
    for round_ in rounds:
        assert round_.confidence is not None
        assert len(round_.confidence) == len(round_.proposed_ids)
        assert all(value >= threshold for value in round_.confidence)
    empty = decode(target, draft, prompts, replace(every, confidence_threshold=1.0))
    assert all(
        (round_.proposed_ids, round_.accepted, len(round_.committed_ids)) == ((), 0, 1)
        for result in empty
        for round_ in result.rounds
    )


def test_greedy_observations_hold_the_logits_of_committed_tokens() -> None:
    target, draft = bigram_pair()
    observations: list[Observation] = []
    (result,) = decode(
        target,
        draft,
        random_prompts(64, (5,)),
        DecodeOptions(max_new_tokens=20),
        observer=observations.append,
    )
    committed = [
        int(observation.target_logits[0, k].argmax())
        for observation in observations
        for k in range(int(observation.accepted[0]) + 1)
    ]
    assert tuple(committed[: len(result.token_ids)]) == result.token_ids
    assert observations[0].target_probabilities is None


def test_no_prompts_give_no_results() -> None:
    target, draft = chain_pair(6)
    assert decode(target, draft, [], DecodeOptions(max_new_tokens=4)) == ()


@pytest.mark.parametrize(
    ("prompts", "changes", "code"),
    [
        ([[]], {}, "prompt-empty"),
        ([[1], [6]], {}, "prompt-token-unknown"),
        ([[1], [-1]], {}, "prompt-token-unknown"),
        ([[1]], {"num_speculative_tokens": 5}, "too-many-speculative-tokens"),
        ([[1]], {"temperature": 1.0}, "generator-required"),
    ],
)
def test_unusable_requests_are_usage_errors(
    prompts: list[list[int]], changes: dict[str, float], code: str
) -> None:
    target, draft = chain_pair(6)
    with pytest.raises(UsageError) as caught:
        decode(target, draft, prompts, DecodeOptions(max_new_tokens=4, **changes))  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize(
    "changes",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 1, "num_speculative_tokens": 0},
        {"max_new_tokens": 1, "confidence_threshold": 1.5},
        {"max_new_tokens": 1, "temperature": -1.0},
    ],
)
def test_meaningless_options_are_usage_errors(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        DecodeOptions(**changes)  # type: ignore[arg-type]
    assert caught.value.code == "option-out-of-range"


def test_a_threshold_needs_a_confidence_head() -> None:
    draft = golden_draft("spec_nomarkov_noconf_full_bf16")
    options = DecodeOptions(max_new_tokens=4, confidence_threshold=0.5)
    with pytest.raises(UsageError) as caught:
        decode(golden_target(), draft, [[1]], options)
    assert caught.value.code == "confidence-head-absent"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_hidden_size": 8}, "target-hidden-size-mismatch"),
        ({"target_layer_ids": (0, 1)}, "layer-ids-invalid"),
        (
            {"vocab_size": 5, "draft_vocab_size": 5, "mask_token_id": 0},
            "target-vocabulary-mismatch",
        ),
    ],
)
def test_a_draft_of_another_target_is_refused(changes: dict[str, object], code: str) -> None:
    target, _ = chain_pair(6)
    config = make_config(
        **{
            "vocab_size": 6,
            "draft_vocab_size": 6,
            "mask_token_id": 0,
            "target_hidden_size": 6,
            **changes,
        }
    )
    with pytest.raises(DraftError) as caught:
        decode(target, make_draft(config), [[1]], DecodeOptions(max_new_tokens=4))
    assert caught.value.code == code


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_cuda_greedy_output_is_the_plain_output(variant: str) -> None:
    prompts = random_prompts(320, (1, 3, 17, 8))
    target = golden_target(torch.float32, "cuda")
    draft = golden_draft(variant, torch.float32, "cuda")
    assert_lossless(target, draft, prompts, DecodeOptions(max_new_tokens=12))
