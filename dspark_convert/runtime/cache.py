"""The draft's context cache: keys and values of accepted positions.

Shapes: R rows, Q new positions, K key/value heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark_convert.runtime.attention import ContextKV
from dspark_convert.schemas.draft import DraftConfig


class ContextCache:
    """The context of a batch, allocated once; column t is position t of its row.

    A block sees the columns before its anchor, so a row holds exactly what lies before its current
    anchor. Rejected positions stay behind the anchor, where nothing can see them, until the
    accepted tokens of the next round overwrite them.
    """

    def __init__(
        self,
        config: DraftConfig,
        *,
        rows: int,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (rows, capacity, config.num_key_value_heads, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]

    def write(self, context: ContextKV, position_ids_RQ: Tensor) -> None:
        """Store ``context`` [R, Q, K, E] at its positions, int64 [R, Q]."""
        rows = torch.arange(len(position_ids_RQ), device=position_ids_RQ.device)[:, None]
        for layer in range(len(self.keys)):
            self.keys[layer][rows, position_ids_RQ] = context.keys[layer]
            self.values[layer][rows, position_ids_RQ] = context.values[layer]

    def view(self, length: int) -> ContextKV:
        """The first ``length`` positions of every row, without a copy."""
        return ContextKV(
            tuple(keys[:, :length] for keys in self.keys),
            tuple(values[:, :length] for values in self.values),
        )

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        self.keys = [keys[list(rows)] for keys in self.keys]
        self.values = [values[list(rows)] for values in self.values]
