"""Results on their way from a GPU to the host, which need not wait for what is launched later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspark_convert.runtime.replay_steps import Results


class Download:
    """Copies of tensors of one device, of any shapes; at least one is not None."""

    def __init__(self, tensors: Results) -> None:
        self._host = {name: None if x is None else _start_copy(x) for name, x in tensors.items()}
        self._arrived: Any = None
        device = next(x.device for x in tensors.values() if x is not None)
        if device.type == "cuda":
            new_event: Any = torch.cuda.Event  # torch leaves it untyped
            self._arrived = new_event()
            # The copies are in the stream of their own device, which need not be the current one.
            self._arrived.record(torch.cuda.current_stream(device))

    def wait(self) -> Results:
        """The copies; waits for what was launched before them, and for nothing after."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


def _start_copy(x: Tensor) -> Tensor:
    """A copy on the host, from a GPU one that arrives later."""
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
    return host.copy_(x, non_blocking=True)
