"""Decoding and replay on a GPU.

Decoding uses static caches, our kernels or compiled layers, and one CUDA graph per round. Replay
uses kernels around the library's matrix products. The plain paths (``runtime.decode``,
``runtime.replay``) are the oracles, and do what these cannot.
"""

from __future__ import annotations

from dspark_convert.runtime.fast.decode import decode_fast
from dspark_convert.runtime.fast.models import why_unsupported
from dspark_convert.runtime.fast.replay import choose_steps

__all__ = ["choose_steps", "decode_fast", "why_unsupported"]
