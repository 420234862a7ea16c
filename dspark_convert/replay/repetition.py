"""Texts of one prompt are one text wherever chance is reckoned with.

Outcomes on one prompt are not independent: greedy texts of it are even equal, and twelve of them
would look like certainty. So intervals and standard errors rest on different prompts, each with the
sums over all its texts. Ratios of sums over texts stay what they are. Shapes: S texts, G prompts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from dspark_convert.replay.intervals import Floats


@dataclass(frozen=True)
class PromptGroups:
    """``first[i]`` is the index of the first text with the prompt of text i, perhaps i itself."""

    first: tuple[int, ...]

    @property
    def different(self) -> int:
        """G, the number of different prompts."""
        return len(set(self.first))

    @property
    def repeated(self) -> tuple[int | None, ...]:
        """``first`` of every text whose prompt came before; None for the others; [S]."""
        return tuple(None if first == index else first for index, first in enumerate(self.first))

    @property
    def sizes(self) -> Floats:
        """How many texts have the prompt of each text; [S]."""
        first = np.array(self.first, dtype=int)
        sizes: Floats = np.bincount(first, minlength=len(first))[first].astype(float)
        return sizes

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a report says of repetitions; nothing without any."""
        total = len(self.first)
        repetitions = total - self.different
        if not repetitions:
            return ()
        return (f"{repetitions} of {total} prompts are repetitions, and count once in intervals",)

    def pool(self, values: Floats) -> Floats:
        """The sums [G, ...] over the texts of each prompt of values [S, ...]."""
        if self.different == len(self.first):
            return values
        _, rows = np.unique(self.first, return_inverse=True)
        pooled = np.zeros((self.different, *values.shape[1:]))
        np.add.at(pooled, rows, values)
        return pooled


def group_prompts(prompts: Iterable[Hashable]) -> PromptGroups:
    """Group prompts, each given by its token ids, as a tuple, or what else tells it apart."""
    first: dict[Hashable, int] = {}
    return PromptGroups(
        tuple(first.setdefault(prompt, index) for index, prompt in enumerate(prompts))
    )
