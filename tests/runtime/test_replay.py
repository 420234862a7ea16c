"""Replay's draft pass against the chain of the decode loop, one anchor at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark_convert.diagnosis.readings import reread
from dspark_convert.errors import DraftError
from dspark_convert.formats.tensors import EMBEDDING
from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import Chain, run_chain
from dspark_convert.runtime.replay import (
    PLAIN,
    BlockScores,
    _even_width,
    compute_text_context,
    compute_text_input,
    score_blocks,
)
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.runtime.sampling import scale_logits
from dspark_convert.schemas.draft import Layout
from tests.conftest import mostly_slow
from tests.runtime.helpers import VARIANTS, golden_draft, make_config, make_draft

PROMPT, LENGTH = 5, 17
ANCHORS = range(PROMPT, LENGTH - 1)


def make_text(draft: DraftModel, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features [T, F] and tokens [T] of a text that nobody wrote."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(LENGTH, draft.config.feature_size, generator=generator)
    return features, torch.randint(0, draft.config.vocab_size, (LENGTH,), generator=generator)


def score(draft: DraftModel, features: Tensor, tokens: Tensor, **options: object) -> BlockScores:
    return score_readings([draft], features, tokens, ANCHORS, **options)[0]


def score_readings(
    readings: list[DraftModel], features: Tensor, tokens: Tensor, anchors: range, **options: Any
) -> list[BlockScores]:
    if "budget" in options:
        options["steps"] = ReplaySteps(memory_budget=options.pop("budget"))
    settings = {"target_vocab_size": readings[0].config.vocab_size, "temperature": 0.7, **options}
    steps = settings.get("steps", PLAIN)
    inputs = compute_text_input(readings[0], features.tensor_split(2, 1), steps=steps)
    context = compute_text_context(readings[0], inputs, steps=steps)
    return score_blocks(readings, context, tokens, anchors, **settings)


def force_chain(draft: DraftModel, features: Tensor, tokens: Tensor, anchor: int) -> Chain:
    """The decode loop's chain from one anchor, made to choose the text (0 past its end)."""
    padded = torch.cat((tokens, tokens.new_zeros(draft.config.block_size)))
    positions = torch.arange(anchor)
    context = draft.compute_context(features[None, :anchor], positions)
    hidden = draft(context, tokens[None, anchor : anchor + 1], torch.tensor([[anchor]]))[:, 0]
    return run_chain(
        draft,
        hidden,
        tokens[anchor : anchor + 1],
        lambda token, logits: padded[anchor + 1 + token][None],
    )


def log_q_of_chain(draft: DraftModel, chain: Chain, temperature: float) -> Tensor:
    """log q [N, V] in target ids, through the plain formulation."""
    logits = chain.biased_logits[0, draft.first_predicting_slot :]
    probabilities = scale_logits(logits, temperature).softmax(-1)
    return draft.vocabulary.scatter_probabilities(probabilities).log()


@cache
def chains_of(variant: str) -> list[Chain]:
    """The decode loop's chains from every anchor of the text; shared, so not to be changed."""
    draft = golden_draft(variant)
    return [force_chain(draft, *make_text(draft), anchor) for anchor in ANCHORS]


# One block and one column at a time takes long: by default for one draft of every Markov head.
IN_SMALLEST_STEPS = (
    "spec_nomarkov_noconf_full_bf16",
    "spec_vanilla_reduced_anchor_bf16",
    "spec_gated_reduced_1plusN_bf16",
    "dense_rnn_bf16",
)
BUDGETS = [(variant, budget) for variant in VARIANTS for budget in (1, 100_000, 2**29)]
BUDGETS_BY_DEFAULT = [case for case in BUDGETS if case[1] > 1 or case[0] in IN_SMALLEST_STEPS]


@torch.no_grad()
@pytest.mark.parametrize(("variant", "budget"), mostly_slow(BUDGETS, fast=BUDGETS_BY_DEFAULT))
def test_equals_the_chain_of_the_decode_loop(variant: str, budget: int) -> None:
    draft = golden_draft(variant)
    features, tokens = make_text(draft)
    scores = score(draft, features, tokens, budget=budget)
    assert scores.log_q is not None
    for row, (anchor, chain) in enumerate(zip(ANCHORS, chains_of(variant), strict=True)):
        log_q = log_q_of_chain(draft, chain, 0.7)
        inside = min(draft.config.num_speculative_tokens, LENGTH - 1 - anchor)
        following = tokens[anchor + 1 : anchor + 1 + inside]
        wanted = log_q.gather(
            1, torch.cat((following, following.new_zeros(20)))[: len(log_q), None]
        )
        torch.testing.assert_close(
            scores.log_q[row, :inside], wanted[:inside, 0], atol=2e-4, rtol=1e-5
        )
        assert scores.log_q[row, inside:].isinf().all()
        assert torch.equal(scores.greedy_ids[row, :inside], log_q.argmax(-1)[:inside])
        if chain.confidence_logits is None:
            assert scores.confidence is None
        else:
            assert scores.confidence is not None
            theirs = chain.confidence_logits[0, draft.first_predicting_slot :].sigmoid()
            torch.testing.assert_close(scores.confidence[row, :inside], theirs[:inside])


@pytest.mark.parametrize("variant", ["spec_vanilla_reduced_anchor_bf16", "dense_rnn_bf16"])
def test_candidates_are_looked_up_in_the_first_token(variant: str) -> None:
    draft = golden_draft(variant)
    features, tokens = make_text(draft)
    everything = torch.arange(draft.config.vocab_size, dtype=torch.int32)
    scores = score(
        draft,
        features,
        tokens,
        candidate_ids_MC=everything.expand(len(ANCHORS), -1),
        budget=30_000,
    )
    assert scores.candidate_log_q is not None
    assert scores.log_q is not None
    torch.testing.assert_close(
        scores.candidate_log_q.exp().sum(-1), torch.ones(len(ANCHORS)), atol=1e-5, rtol=0
    )
    first = scores.candidate_log_q.gather(1, tokens[ANCHORS.start + 1 :, None])[:, 0]
    torch.testing.assert_close(first, scores.log_q[:, 0])


def test_fewer_tokens_are_the_first_of_a_whole_block() -> None:
    draft = golden_draft("spec_rnn_full_anchor_sharded_bf16")
    features, tokens = make_text(draft)
    whole, part = score(draft, features, tokens), score(draft, features, tokens, num_tokens=2)
    assert part.log_q is not None
    assert whole.log_q is not None
    assert part.log_q.shape == (len(ANCHORS), 2)
    torch.testing.assert_close(part.log_q, whole.log_q[:, :2])


class MeasuringSteps(ReplaySteps):
    """The plain steps, and the most bytes that each says it took at once."""

    def __init__(self, *, memory_budget: int) -> None:
        super().__init__(memory_budget=memory_budget)
        self.most = {"positions": 0, "blocks": 0, "logits": 0}

    def _took(self, what: str, nbytes: int) -> None:
        self.most[what] = max(self.most[what], nbytes)

    def compute_input(self, draft: DraftModel, features: Sequence[Tensor]) -> Tensor:
        self._took("positions", len(features[0]) * self.position_bytes(draft))
        return super().compute_input(draft, features)

    def run_blocks(
        self, draft: DraftModel, context: ContextKV, x_MWBH: Tensor, anchors: range
    ) -> Tensor:
        blocks = x_MWBH.shape[0] * x_MWBH.shape[1]
        self._took("blocks", blocks * self.block_bytes(draft, ANCHORS[-1]))
        return super().run_blocks(draft, context, x_MWBH, anchors)

    def compute_logits(
        self, draft: DraftModel, hidden: Tensor, latent: Tensor | None, columns: slice
    ) -> Tensor:
        logits = super().compute_logits(draft, hidden, latent, columns)
        self._took("logits", logits.numel() * self.logit_bytes(draft))
        return logits


def test_blocks_side_by_side_take_no_more_than_the_budget() -> None:
    draft = golden_draft("dense_vanilla_bf16")
    features, tokens = make_text(draft)
    readings = [reread(draft, {"mask_token_id": mask}) for mask in range(5)]
    for budget in (1, 3):
        nbytes = budget * PLAIN.block_bytes(draft, ANCHORS[-1])
        steps = MeasuringSteps(memory_budget=nbytes)
        together = score_readings(readings, features, tokens, ANCHORS, steps=steps)
        assert steps.most["blocks"] == nbytes
        for reading, scores in zip(readings, together, strict=True):
            alone = score(reading, features, tokens)
            torch.testing.assert_close(scores.log_q, alone.log_q)


@pytest.mark.parametrize("what", ["positions", "blocks", "logits"])
def test_no_step_takes_more_than_the_budget(what: str) -> None:
    draft = golden_draft("dense_vanilla_bf16")
    features, tokens = make_text(draft)
    generous = MeasuringSteps(memory_budget=2**29)
    score(draft, features, tokens, steps=generous)
    budget = generous.most[what] // 2
    tight = MeasuringSteps(memory_budget=budget)
    score(draft, features, tokens, steps=tight)
    assert budget / 2 < tight.most[what] <= budget


@pytest.mark.parametrize("budget", [1, 2**29])
def test_some_anchors_are_scored_as_among_all(budget: int) -> None:
    draft = golden_draft("spec_rnn_full_anchor_sharded_bf16")
    features, tokens = make_text(draft)
    (some,) = score_readings(
        [draft], features, tokens, ANCHORS[1::3], temperature=0.7, budget=budget
    )
    whole = score(draft, features, tokens)
    for name in ("greedy_ids", "log_q", "confidence"):
        torch.testing.assert_close(getattr(some, name), getattr(whole, name)[1::3])


def test_readings_of_one_backbone_are_scored_as_alone() -> None:
    draft = golden_draft("dense_vanilla_bf16")
    features, tokens = make_text(draft)
    readings = [
        draft,
        reread(draft, {"layout": Layout.BONUS_ANCHOR}),
        reread(draft, {"markov_rank": 0}),
    ]
    together = score_readings(readings, features, tokens, ANCHORS)
    for reading, scores in zip(readings, together, strict=True):
        alone = score(reading, features, tokens)
        assert torch.equal(scores.greedy_ids, alone.greedy_ids)
        torch.testing.assert_close(scores.log_q, alone.log_q)
    assert not torch.equal(together[0].greedy_ids, together[2].greedy_ids)
    wide, narrow = (scores.greedy_ids.shape[1] for scores in together[:2])
    assert (wide, narrow) == (draft.config.block_size, draft.config.block_size - 1)


@pytest.mark.parametrize(
    ("name", "budget"),
    mostly_slow(
        product(["dense_vanilla_bf16", "spec_gated_reduced_1plusN_bf16"], [1, 2**29]),
        fast=[("dense_vanilla_bf16", 2**29), ("spec_gated_reduced_1plusN_bf16", 1)],
    ),
)
def test_readings_of_the_same_layers_are_scored_as_alone(name: str, budget: int) -> None:
    draft = golden_draft(name)
    features, tokens = make_text(draft)
    rolled = draft.embed_tokens.weight.roll(1, 0)
    readings = [
        draft,
        reread(draft, {"mask_token_id": 3}),
        reread(draft, weights={EMBEDDING: rolled}),
        reread(draft, {"mask_token_id": 3, "markov_rank": 0}),
    ]
    together = score_readings(readings, features, tokens, ANCHORS, budget=budget)
    for reading, scores in zip(readings, together, strict=True):
        alone = score(reading, features, tokens)
        assert torch.equal(scores.greedy_ids, alone.greedy_ids)
        torch.testing.assert_close(scores.log_q, alone.log_q)
    likely = [scores.log_q for scores in together]
    assert not any(torch.equal(likely[0], other) for other in likely[1:])


@pytest.mark.parametrize(
    ("columns", "most", "width"),
    [
        (151_936, 10**6, 50_688),
        (151_936, 19_173, 19_072),
        (32_000, 10**6, 32_000),
        (320, 200, 128),
        (201, 50, 41),
        (200, 50, 50),
        (7, 0, 1),
    ],
)
def test_chunks_of_columns_are_even(columns: int, most: int, width: int) -> None:
    assert _even_width(columns, most) == width


def test_temperature_0_needs_no_softmax() -> None:
    draft = golden_draft("dense_vanilla_bf16")
    scores = score(draft, *make_text(draft), temperature=0.0)
    assert scores.log_q is None
    assert torch.equal(scores.greedy_ids, score(draft, *make_text(draft)).greedy_ids)


def test_a_tie_goes_to_the_first_column_whatever_the_chunks() -> None:
    draft = make_draft(make_config(markov_rank=0, confidence_head_with_markov=False))
    draft.lm_head.weight.copy_(draft.lm_head.weight[:4].repeat(3, 1))
    features, tokens = make_text(draft)
    for budget in (1, 2**29):
        assert score(draft, features, tokens, budget=budget).greedy_ids.max() < 4


def test_a_small_temperature_loses_no_precision() -> None:
    draft = golden_draft("dense_vanilla_bf16")
    scores = score(draft, *make_text(draft), temperature=1e-4)
    features, tokens = make_text(draft)
    tokens[ANCHORS.start + 1] = scores.greedy_ids[0, 0]
    scores = score(draft, features, tokens, temperature=1e-4, budget=30_000)
    assert scores.log_q is not None
    assert scores.log_q[0, 0] == 0.0
    assert not scores.log_q.isnan().any()


def test_padding_of_a_wide_head_is_never_drafted() -> None:
    draft = make_draft(make_config(vocab_size=12, draft_vocab_size=16))
    draft.lm_head.weight[12:] = draft.lm_head.weight[:4] * 10
    features, tokens = make_text(draft)
    everything = torch.arange(12).expand(len(ANCHORS), -1)
    scores = score(draft, features, tokens, candidate_ids_MC=everything)
    assert scores.greedy_ids.max() < 12
    assert scores.candidate_log_q is not None
    torch.testing.assert_close(scores.candidate_log_q.exp().sum(-1), torch.ones(len(ANCHORS)))


def test_a_draft_of_tokens_that_the_target_lacks_is_refused() -> None:
    draft = golden_draft("spec_vanilla_reduced_anchor_bf16")
    with pytest.raises(DraftError) as caught:
        score(draft, *make_text(draft), target_vocab_size=10)
    assert caught.value.code == "draft-id-beyond-target"
