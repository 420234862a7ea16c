"""What each engine does with a checkpoint: claims as data, one module per engine.

Every claim was read in the source of the version named (``evidence`` is the file); section 7 of
FORMATS has the whole matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

from dspark_convert.conversion.engines.base import Claim, Engine, gravest
from dspark_convert.conversion.engines.deepspec import DEEPSPEC
from dspark_convert.conversion.engines.llama_cpp import LLAMA_CPP
from dspark_convert.conversion.engines.sglang import SGLANG
from dspark_convert.conversion.engines.speculators import SPECULATORS
from dspark_convert.conversion.engines.vllm import VLLM
from dspark_convert.conversion.published import Published
from dspark_convert.schemas.plan import EngineNote

ENGINES: tuple[Engine, ...] = (VLLM, SGLANG, LLAMA_CPP, DEEPSPEC, SPECULATORS)

WRITTEN_FOR: Mapping[str, Engine] = {
    engine.key: engine for engine in (VLLM, SGLANG, DEEPSPEC, LLAMA_CPP)
}
"""Engines that read the dense form, by the name that ``--for`` takes."""

CLAIMS: tuple[Claim, ...] = tuple(claim for engine in ENGINES for claim in engine.claims)
VERSIONS: Mapping[str, str] = {engine.name: engine.version for engine in ENGINES}

__all__ = [
    "CLAIMS",
    "ENGINES",
    "VERSIONS",
    "WRITTEN_FOR",
    "Claim",
    "Engine",
    "engine_notes",
    "gravest",
]


def engine_notes(draft: Published) -> tuple[EngineNote, ...]:
    """What every engine does with ``draft``, refusals first; "loads" where no claim speaks."""
    return tuple(note for engine in ENGINES for note in engine.notes(draft))
