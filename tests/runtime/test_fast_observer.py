"""What an observer of the fast path sees: what the plain path shows, and what was decided on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

import pytest
import torch
from torch import Tensor

from dspark_convert.checks.lossless import check_sampling
from dspark_convert.checks.observer import RunObserver
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.decode import decode
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast import decode_fast
from dspark_convert.runtime.fast.rounds import Rounds
from dspark_convert.runtime.propose import run_chain
from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Observation
from dspark_convert.runtime.sampling import compute_probabilities
from dspark_convert.schemas.numbers import LosslessSamplingNumbers

from .helpers import (
    bigram_pair,
    golden_draft,
    golden_target,
    kernel_pair,
    random_prompts,
)

PROMPTS = random_prompts(64, (1, 4, 9, 20, 13))
OPTIONS = [
    DecodeOptions(max_new_tokens=30),
    DecodeOptions(
        max_new_tokens=30, confidence_threshold=0.6, stop_token_ids=frozenset({5, 6, 7, 30})
    ),
]
Decode = Callable[..., tuple[DecodeResult, ...]]


@dataclass(frozen=True)
class Seen:
    """One row of an observation."""

    target_logits: Tensor
    target_probabilities: Tensor | None
    draft_probabilities: Tensor | None
    draft_ids: Tensor
    lengths: Tensor
    accepted: Tensor
    next_token_ids: Tensor


def rows_of(seen: Observation) -> Iterator[tuple[tuple[int, int], Seen]]:
    """Each row with its prompt and anchor."""
    for row, key in enumerate(zip(seen.prompts, seen.anchor_positions, strict=True)):
        values = (getattr(seen, field.name) for field in fields(Seen))
        yield key, Seen(*(None if value is None else value[row].clone() for value in values))


def watch(run: Decode, *arguments: object, **options: object) -> dict[tuple[int, int], Seen]:
    """Every round of a run, by prompt and anchor."""
    rounds: dict[tuple[int, int], Seen] = {}

    def remember(seen: Observation) -> None:
        for key, row in rows_of(seen):
            assert key not in rounds
            rounds[key] = row

    run(*arguments, observer=remember, **options)
    return rounds


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", ["anchor_first", "bonus_anchor"])
def test_every_round_is_that_of_the_plain_path(layout: str, options: DecodeOptions) -> None:
    target, draft = bigram_pair(layout=layout)
    plain = watch(decode, target, draft, PROMPTS, options)
    for rows in (None, 2):
        fast = watch(decode_fast, target, draft, PROMPTS, options, rows=rows)
        assert fast.keys() == plain.keys()
        for key, expected in plain.items():
            found = fast[key]
            torch.testing.assert_close(found.target_logits, expected.target_logits)
            assert found.target_probabilities is found.draft_probabilities is None
            for name in ("draft_ids", "lengths", "accepted", "next_token_ids"):
                assert torch.equal(getattr(found, name), getattr(expected, name)), (key, name)


def test_the_output_is_the_same_with_and_without_an_observer() -> None:
    target, draft = bigram_pair()
    watched = decode_fast(target, draft, PROMPTS, OPTIONS[0], rows=2, observer=lambda seen: None)
    assert [r.token_ids for r in watched] == [
        r.token_ids for r in decode_fast(target, draft, PROMPTS, OPTIONS[0], rows=2)
    ]


# Above temperature 0


def whole_texts(prompts: list[list[int]], results: tuple[DecodeResult, ...]) -> list[list[int]]:
    """Prompts with all that was committed."""
    texts = []
    for prompt, result in zip(prompts, results, strict=True):
        committed = [token for round_ in result.rounds for token in round_.committed_ids]
        texts.append([*prompt, result.token_ids[0], *committed])
    return texts


def expected_logits(
    target: CausalTarget, draft: DraftModel, text: list[int], draft_ids: list[int]
) -> tuple[Tensor, Tensor]:
    """The target's logits [N + 1, V] and the draft's [N, D], by whole passes over the text.

    ``text`` ends with the anchor, after which ``draft_ids`` were drafted.
    """
    layer_ids = draft.config.target_layer_ids
    whole = torch.tensor([[*text, *draft_ids]])
    with target.tap(layer_ids) as recorded:
        logits = target.model(input_ids=whole).logits[0]
    features = torch.cat([recorded[layer_id] for layer_id in layer_ids], -1)
    before = len(text) - 1
    context = draft.compute_context(features[:, :before], torch.arange(before))
    anchor, position = torch.tensor([[text[-1]]]), torch.tensor([[before]])
    hidden = draft(context, anchor, position)[:, 0]
    ids = torch.tensor(draft_ids)
    chain = run_chain(draft, hidden, anchor[0], lambda token, _: ids[token, None])
    return logits[before:], chain.biased_logits[0, draft.first_predicting_slot :]


@pytest.mark.parametrize("draft_sampling", ["sample", "greedy"])
@pytest.mark.parametrize("variant", ["spec_gated_reduced_1plusN_bf16", "dense_rnn_bf16"])
@torch.no_grad()
def test_p_and_q_are_those_of_whole_passes(variant: str, draft_sampling: str) -> None:
    target, draft = golden_target(), golden_draft(variant)
    options = DecodeOptions(
        max_new_tokens=10,
        temperature=0.8,
        top_k=40,
        top_p=0.9,
        draft_sampling=draft_sampling,  # type: ignore[arg-type]
    )
    prompts, results = random_prompts(320, (4, 9, 6)), ()

    def run(**chosen: object) -> tuple[DecodeResult, ...]:
        nonlocal results
        generator = torch.Generator().manual_seed(0)
        results = decode_fast(target, draft, prompts, options, generator=generator, **chosen)  # type: ignore[arg-type]
        return results

    rounds = watch(run, rows=2)
    texts = whole_texts(prompts, results)
    for (prompt, anchor), seen in rounds.items():
        text, drafted = texts[prompt][: anchor + 1], seen.draft_ids.tolist()
        if anchor == len(prompts[prompt]) - 1:
            assert seen.draft_ids.shape == (0,)
            assert seen.draft_probabilities is not None
            assert seen.draft_probabilities.shape == (0, 320)
            logits = target.model(input_ids=torch.tensor([text])).logits[0, -1:]
        else:
            logits, draft_logits = expected_logits(target, draft, text, drafted)
            q = draft.vocabulary.scatter_probabilities((draft_logits / 0.8).softmax(-1))
            if draft_sampling == "greedy":
                q = torch.nn.functional.one_hot(seen.draft_ids, 320).float()
            torch.testing.assert_close(seen.draft_probabilities, q, atol=1e-5, rtol=1e-4)
        p = compute_probabilities(logits, options.sampling)
        torch.testing.assert_close(seen.target_probabilities, p, atol=1e-5, rtol=1e-4)
    decided = {anchor: seen for (prompt, anchor), seen in rounds.items() if prompt == 1}
    assert [int(seen.accepted) for seen in list(decided.values())[1:]] == [
        round_.accepted for round_ in results[1].rounds
    ]


# What it costs, and who is told


def test_nothing_more_is_kept_of_a_round_that_nobody_observes() -> None:
    target, draft = bigram_pair()
    rounds = Rounds(target, draft, OPTIONS[0], rows=1, longest=4, generator=None)
    assert rounds.admit(0, PROMPTS[1]).output.evidence is None
    assert rounds.start_round().output.evidence is None


@pytest.mark.parametrize("observed", [False, True])
def test_every_finished_prompt_is_told(observed: bool) -> None:
    target, draft = bigram_pair()
    observer = (lambda seen: None) if observed else None
    for options in (*OPTIONS, DecodeOptions(max_new_tokens=1)):
        told: list[int] = []
        decode_fast(
            target, draft, PROMPTS, options, rows=2, observer=observer, on_finished=told.append
        )
        assert told == [1, 2, 3, 4, 5]


# What a GPU decides


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("draft_sampling", ["sample", "greedy"])
def test_sampled_rounds_on_a_gpu_are_lossless(
    draft_sampling: Literal["sample", "greedy"],
) -> None:
    target, draft = kernel_pair()
    prompts = random_prompts(640, tuple(range(3, 27)))
    options = DecodeOptions(max_new_tokens=64, temperature=0.8, draft_sampling=draft_sampling)
    observer = RunObserver(draft, 640, seed=0)
    generator = torch.Generator("cuda").manual_seed(1)
    decode_fast(target, draft, prompts, options, generator=generator, rows=9, observer=observer)
    result = check_sampling(observer, 0.8)
    assert result.verdict == "pass", result.reason
    assert isinstance(result.numbers, LosslessSamplingNumbers)
    assert result.numbers.tokens > 3000
