"""The bodies that a draft can have: one module and one row each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dspark_convert.formats.decoders.base import Decoder
from dspark_convert.formats.decoders.qwen3 import QWEN3
from dspark_convert.schemas.draft import DraftConfig

DECODERS: Mapping[str, Decoder] = {decoder.name: decoder for decoder in (QWEN3,)}
"""Every body, by its name. A new one is a module and a row here; nothing else names a body."""

DEFAULT_DECODER = QWEN3
"""The body of a draft that no other row recognises; writers rarely name it."""

__all__ = ["DECODERS", "DEFAULT_DECODER", "Decoder", "decoder_of", "find_decoder"]


def decoder_of(config: DraftConfig) -> Decoder:
    """The body of a draft that was understood."""
    return DECODERS[config.decoder]


def find_decoder(config: Mapping[str, Any], names: Collection[str]) -> Decoder | None:
    """The row that recognises a config with these stored names; None: only the default is left."""
    others = (row for row in DECODERS.values() if row is not DEFAULT_DECODER)
    return next((row for row in others if row.recognises(config, names)), None)
