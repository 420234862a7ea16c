"""What decoding needs of a target model: anything that fits these protocols can be decoded from.

Shapes: R rows, T prompt positions, Q new tokens, H target hidden, V target vocabulary,
F = tapped layers x H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """``logits`` [R, Q, V] after each new token ([R, 1, V] of a prefill: after the prompt), and
    ``features`` [R, Q, F]: raw residual streams of the tapped layers, in the order of their ids.
    """

    logits: Tensor
    features: Tensor


class TargetSession(Protocol):
    """A batch of sequences in a target, with the cache of what they have seen."""

    def prefill(self, token_ids_RT: Tensor, lengths: Sequence[int]) -> TargetOutput:
        """Start the rows with prompts, each padded at its end to T."""

    def extend(self, token_ids_RQ: Tensor) -> TargetOutput:
        """Append Q tokens to every row."""

    def keep(self, counts: Sequence[int]) -> None:
        """Of the tokens last appended, forget all but the first ``counts[r]`` of row r."""

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""


class Target(Protocol):
    """A model to decode from."""

    @property
    def vocab_size(self) -> int:
        """V, the columns of the logits."""

    @property
    def hidden_size(self) -> int:
        """H."""

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers."""

    @property
    def device(self) -> torch.device:
        """Where token ids go and where outputs arrive."""

    def start(self, layer_ids: Sequence[int]) -> TargetSession:
        """A session that taps these layers: -1 the embedding output, k the output of layer k."""
