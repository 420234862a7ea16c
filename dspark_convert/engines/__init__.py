"""What each engine does with a checkpoint: claims as data, one module per engine.

Every claim was read in the source of the version named (``evidence`` is the file); section 7 of
FORMATS has the whole matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

from dspark_convert.engines.base import Claim, Engine, gravest
from dspark_convert.engines.deepspec import DEEPSPEC
from dspark_convert.engines.llama_cpp import LLAMA_CPP
from dspark_convert.engines.sglang import SGLANG
from dspark_convert.engines.speculators import SPECULATORS_LIBRARY
from dspark_convert.engines.view import EngineView
from dspark_convert.engines.vllm import VLLM
from dspark_convert.schemas.plan import EngineNote

ENGINES: tuple[Engine, ...] = (VLLM, SGLANG, LLAMA_CPP, DEEPSPEC, SPECULATORS_LIBRARY)

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
    "notes_of",
]


def engine_notes(draft: EngineView) -> tuple[EngineNote, ...]:
    """What every engine does with ``draft``, refusals first; "loads" where no claim speaks."""
    return tuple(note for engine in ENGINES for note in notes_of(engine, draft))


def notes_of(engine: Engine, draft: EngineView) -> tuple[EngineNote, ...]:
    """What one engine does with ``draft``, with advice about the others where it cannot run it."""
    return engine.notes(draft, _elsewhere(engine, draft))


def _elsewhere(engine: Engine, draft: EngineView) -> str:
    """Who runs a draft that ``engine`` cannot: as it is, else once it is converted."""
    others = [other for other in ENGINES if other is not engine and other.serves]
    hindrances = {other.name: [c for c in other.holding(draft) if c.hinders] for other in others}
    running = [name for name, claims in hindrances.items() if not claims]
    if running:
        return f"serve it with {' or '.join(running)}"
    willing = [name for name, claims in hindrances.items() if not any(c.inherent for c in claims)]
    if willing:
        return f"convert it for {' or '.join(willing)}, and run it there"
    return "none of these engines runs this draft as it is meant"
