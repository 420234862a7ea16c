"""Decoding on a GPU: static caches, compiled layers, one CUDA graph for a round.

The plain path (``runtime.decode``) is its oracle, and does what this one cannot.
"""

from __future__ import annotations

from dspark_convert.runtime.fast.decode import decode_fast
from dspark_convert.runtime.fast.models import why_unsupported

__all__ = ["decode_fast", "why_unsupported"]
