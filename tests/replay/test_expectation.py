"""The arithmetic of replay against decoding by enumeration, where p and q are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_convert.replay.expectation import Expectation, Floats, at_most, confident
from dspark_convert.runtime.rejection import compute_acceptance, compute_residual
from tests.conftest import mostly_slow

Text = tuple[int, ...]


class Toy:
    """A target and a draft with one distribution for each text, and for each place in a block."""

    def __init__(self, size: tuple[int, int, int], *, stop: int | None, seed: int) -> None:
        self.vocab, self.num_tokens, self.limit = size
        self.stop, self.seed = stop, seed
        self.length = self.limit + self.num_tokens + 1

    def p(self, text: Text) -> Floats:
        return self._draw(0, text)

    def q(self, text: Text, drafted: int) -> Floats:
        """After ``drafted`` tokens of a round; now and then p, one-hot, or disjoint from p."""
        kind = np.random.default_rng([self.seed, 2, drafted, *text]).integers(8)
        if kind == 0:
            return self.p(text)
        if kind == 1:
            return np.eye(self.vocab)[text[-1]]
        if kind == 2:
            disjoint = (self.p(text) == 0).astype(float)
            return disjoint / disjoint.sum() if disjoint.any() else self._draw(1 + drafted, text)
        return self._draw(1 + drafted, text)

    def finished(self, text: Text) -> bool:
        return len(text) > self.limit or text[-1] == self.stop

    def _draw(self, what: int, text: Text) -> Floats:
        generator = np.random.default_rng([self.seed, 7, what, *text])
        weights = generator.exponential(size=self.vocab) ** 2
        weights[generator.random(self.vocab) < 0.25] = 0
        if not weights.any():
            weights[0] = 1
        return weights / weights.sum()


def decode_by_enumeration(toy: Toy) -> dict[Text, Floats]:
    """For every full text: its probability, and that times expected rounds and committed tokens.

    After the last round the target writes on, so that the texts are those of the target.
    """
    running: defaultdict[Text, Floats] = defaultdict(lambda: np.zeros(3))
    for token, probability in enumerate(toy.p(())):
        running[(token,)] += [probability, 0, 0]
    for length in range(1, toy.length):
        for text in [text for text in running if len(text) == length and text[-1] != toy.stop]:
            mass = running.pop(text)
            finished = toy.finished(text)
            for after, probability in write_on(toy, text) if finished else play_round(toy, text):
                counts = [0, 0, 0] if finished else [0, 1, len(after) - length]
                running[after] += probability * (mass + mass[0] * np.array(counts))
    return dict(running)


def play_round(
    toy: Toy, text: Text, accepted: int = 0, probability: float = 1.0
) -> Iterator[tuple[Text, float]]:
    """Texts after a round whose first ``accepted`` tokens end ``text``, with probabilities."""
    if accepted and text[-1] == toy.stop:
        yield text, probability
        return
    if accepted == toy.num_tokens:
        for after, bonus in write_on(toy, text):
            yield after, probability * bonus
        return
    p, q = torch.tensor(toy.p(text)), torch.tensor(toy.q(text, accepted))
    stands = q * compute_acceptance(p, q)
    for token in stands.nonzero()[:, 0].tolist():
        yield from play_round(toy, (*text, token), accepted + 1, probability * float(stands[token]))
    residual = compute_residual(p, q)
    rejected = (1 - stands.sum()) * residual / residual.sum()
    for token, share in enumerate(rejected.tolist()):
        yield (*text, token), probability * share


def write_on(toy: Toy, text: Text) -> Iterator[tuple[Text, float]]:
    """The target's own next token."""
    for token, probability in enumerate(toy.p(text).tolist()):
        yield (*text, token), probability


def replay(toy: Toy, text: Text) -> Expectation:
    """The expectation of one text, from q and p at its own tokens."""
    anchors = [s for s in range(len(text)) if not toy.finished(text[: s + 1])]
    acceptance = np.zeros((len(anchors), toy.num_tokens))
    left = np.array([len(text) - 1 - s for s in anchors], dtype=np.int64)
    for s in anchors:
        for k in range(min(toy.num_tokens, len(text) - 1 - s)):
            before, token = text[: s + 1 + k], text[s + 1 + k]
            acceptance[s, k] = min(1.0, toy.q(before, k)[token] / toy.p(before)[token])
    return Expectation(acceptance, left[:, None] >= np.arange(1, toy.num_tokens + 1), left)


SIZES = [(3, 3, 2), (3, 2, 3), (4, 2, 2), (4, 3, 1), (5, 1, 3), (8, 1, 1)]
"""Vocabulary, tokens of a round, limit of new tokens."""


@settings(deadline=None, max_examples=12)
@given(
    st.sampled_from(SIZES),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_equals_decoding_on_average_over_all_texts(
    size: tuple[int, int, int], stops: bool, seed: int
) -> None:
    toy = Toy(size, stop=1 if stops else None, seed=seed)
    decoded = decode_by_enumeration(toy)
    probability, rounds, committed = np.sum(list(decoded.values()), 0)
    assert probability == pytest.approx(1.0, abs=1e-12)
    replayed = np.zeros(2)
    for text, (mass, rounds_here, committed_here) in decoded.items():
        if not mass:
            continue
        expectation = replay(toy, text)
        mean = np.array([expectation.rounds, expectation.committed])
        replayed += mass * mean
        # Not only on average: given each text, too.
        assert mass * mean == pytest.approx([rounds_here, committed_here], abs=1e-12)
    assert replayed == pytest.approx([rounds, committed], abs=1e-9)


def random_expectation(anchors: int, num_tokens: int, seed: int) -> Expectation:
    generator = np.random.default_rng(seed)
    left = np.arange(anchors, 0, -1) + generator.integers(0, 2) * num_tokens
    proposed = left[:, None] >= np.arange(1, num_tokens + 1)
    return Expectation(generator.random((anchors, num_tokens)), proposed, left)


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_backward_recursion(seed: int) -> None:
    """By recursion: V(s) = 1 + sum P(k|s) V(s+k+1) and C(s) = sum P(k|s) (k + 1 + C(s+k+1))."""
    expectation = random_expectation(20, 4, seed)
    rounds, committed = np.zeros(25), np.zeros(25)
    for s in reversed(range(20)):
        after = slice(s + 1, s + 6)
        steps = np.minimum(np.arange(1, 6), expectation.left[s])
        rounds[s] = 1 + expectation.exactly[s] @ rounds[after]
        committed[s] = expectation.exactly[s] @ (steps + committed[after])
    assert expectation.rounds == pytest.approx(rounds[0], abs=1e-12)
    assert expectation.committed == pytest.approx(committed[0], abs=1e-12)


@pytest.mark.parametrize("seed", mostly_slow(range(3), fast=[0]))
def test_counts_agree_with_simulated_rounds(seed: int) -> None:
    expectation = random_expectation(12, 3, seed)
    generator = np.random.default_rng(seed)
    runs, trials, successes = 20_000, np.zeros(3), np.zeros(3)
    for _ in range(runs):
        anchor = 0
        while anchor < 12:
            standing = generator.random(3) < expectation.acceptance[anchor]
            standing &= expectation.proposed[anchor]
            accepted = int(standing.cumprod().sum())
            successes[:accepted] += 1
            trials[: accepted + 1] += expectation.proposed[anchor, : accepted + 1]
            anchor += accepted + 1
    assert expectation.trials.sum(0) == pytest.approx(trials / runs, rel=0.02)
    assert expectation.successes.sum(0) == pytest.approx(successes / runs, rel=0.03)


def test_certain_rounds() -> None:
    acceptance = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=float)
    proposed = np.array([[True, True], [True, True], [True, True], [True, False]])
    expectation = Expectation(acceptance, proposed, np.array([4, 3, 2, 1]))
    assert expectation.certain_rounds() == ((0, 1), (2, 2))
    assert expectation.committed == 4
    uncertain = Expectation(
        acceptance + 0.5 * proposed * (acceptance == 0), proposed, expectation.left
    )
    assert uncertain.certain_rounds() is None


def test_no_anchors_no_rounds() -> None:
    expectation = Expectation(
        np.zeros((0, 3)), np.zeros((0, 3), dtype=bool), np.zeros(0, dtype=int)
    )
    assert (expectation.rounds, expectation.committed) == (0, 0)
    assert expectation.certain_rounds() == ()


def test_variants_are_evaluated_together() -> None:
    whole = random_expectation(15, 3, 0)
    confidence = np.random.default_rng(1).random((15, 3))
    thresholds = np.array([0.0, 0.4, 1.0])
    for cut in (at_most(whole.proposed), confident(whole.proposed, confidence, thresholds)):
        together = Expectation(whole.acceptance, cut, whole.left)
        for variant in range(3):
            alone = Expectation(whole.acceptance, cut[variant], whole.left)
            assert together.rounds[variant] == pytest.approx(alone.rounds)
            assert together.committed[variant] == pytest.approx(alone.committed)
    assert np.array_equal(at_most(whole.proposed)[2], whole.proposed)
    assert not confident(whole.proposed, confidence, thresholds)[2].any()
