"""What decoding yields on average, given the text that it commits.

If a_k is the probability that drafted token k of the text is accepted, a round from an anchor
accepts exactly k tokens with probability a_1 .. a_k (1 - a_{k+1}), and the next round starts k + 1
tokens later. The probability that a round starts at an anchor sums over all ways to get there;
every expected count is a sum over anchors weighted by that probability.

Shapes: M anchors, N drafted tokens; [...] are variants of the same text, evaluated together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Expectation:
    """Expected counts of one text, exact given the text, in float64."""

    acceptance: Floats
    """[M, N]: probability that drafted token k is the text's, given that those before it are."""
    proposed: Flags
    """[..., M, N]: whether token k is proposed, and the text has such a token. If it is False
    for one k, it is False for all later ones."""
    left: npt.NDArray[np.int64]
    """[M]: tokens of the text after each anchor. If there are N or fewer, the text ends with a
    stop token, which also ends the round."""

    @cached_property
    def reach(self) -> Floats:
        """Probability [..., M, N + 1] that the first k tokens of a round are all accepted."""
        accepted = np.where(self.proposed, self.acceptance, 0.0).cumprod(-1)
        reach: Floats = np.concatenate((np.ones_like(accepted[..., :1]), accepted), -1)
        return reach

    @cached_property
    def exactly(self) -> Floats:
        """Probability [..., M, N + 1] that a round accepts exactly k tokens."""
        rejection = 1.0 - np.where(self.proposed, self.acceptance, 0.0)
        stopping = np.concatenate((rejection, np.ones_like(rejection[..., :1])), -1)
        exactly: Floats = self.reach * stopping
        return exactly

    @cached_property
    def visits(self) -> Floats:
        """Probability [..., M] that a round starts at each anchor."""
        *variants, anchors, steps = self.exactly.shape
        visits = np.zeros((*variants, anchors + steps))
        visits[..., 0] = 1.0
        for anchor in range(anchors):
            after = visits[..., anchor, None] * self.exactly[..., anchor, :]
            visits[..., anchor + 1 : anchor + 1 + steps] += after
        return visits[..., :anchors]

    @property
    def rounds(self) -> Floats:
        """Expected rounds [...]."""
        expected: Floats = self.visits.sum(-1)
        return expected

    @property
    def committed(self) -> Floats:
        """Expected committed tokens [...]: accepted ones and one more, within the text."""
        steps = np.arange(1, self.exactly.shape[-1] + 1)
        committed = (self.exactly * np.minimum(steps, self.left[:, None])).sum(-1)
        expected: Floats = (self.visits * committed).sum(-1)
        return expected

    @property
    def trials(self) -> Floats:
        """Expected rounds [..., M, N] in which the outcome of token k is known."""
        known: Floats = self.visits[..., None] * self.reach[..., :-1] * self.proposed
        return known

    @property
    def successes(self) -> Floats:
        """Expected rounds [..., M, N] in which the first k tokens are accepted."""
        accepted: Floats = self.visits[..., None] * self.reach[..., 1:]
        return accepted

    def certain_rounds(self) -> tuple[tuple[int, int], ...] | None:
        """(anchor, accepted tokens) of every round if nothing is left to chance, else None.

        Anchors count from the first. For a single variant.
        """
        if not np.isin(self.acceptance[self.proposed], (0.0, 1.0)).all():
            return None
        accepted = self.reach[:, 1:].sum(-1)
        return tuple((int(anchor), int(accepted[anchor])) for anchor in self.visits.nonzero()[0])


def at_most(proposed: Flags) -> Flags:
    """Variants [N, M, N] of ``proposed`` [M, N]: at most n tokens are proposed, n = 1..N."""
    num_tokens = proposed.shape[-1]
    variants: Flags = proposed & np.tri(num_tokens, dtype=bool)[:, None]
    return variants


def confident(proposed: Flags, confidence: Floats, thresholds: Floats) -> Flags:
    """Variants [thresholds, M, N]: a proposal ends before the first token of lower confidence."""
    enough = confidence >= thresholds[:, None, None]
    return proposed & np.logical_and.accumulate(enough, axis=-1)
