"""What each engine does with a checkpoint: claims as data, one module and one row per engine.

Every claim was read in the source of the version named; ``evidence`` is the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dspark_convert.engines.base import Claim, Engine, gravest
from dspark_convert.engines.deepspec import DEEPSPEC
from dspark_convert.engines.llama_cpp import LLAMA_CPP
from dspark_convert.engines.sglang import SGLANG
from dspark_convert.engines.speculators import SPECULATORS_LIBRARY
from dspark_convert.engines.view import EngineView
from dspark_convert.engines.vllm import VLLM
from dspark_convert.errors import Finding, UsageError
from dspark_convert.schemas.plan import EngineNote

ENGINES: Mapping[str, Engine] = {
    engine.key: engine for engine in (VLLM, SGLANG, LLAMA_CPP, DEEPSPEC, SPECULATORS_LIBRARY)
}
"""Every engine, by its key. A new one is a module and a row here; nothing else names an engine."""

REFERENCE = "reference"
"""The name that ``--for`` gives the reference dense form, which is for no particular engine."""

__all__ = [
    "ENGINES",
    "REFERENCE",
    "Claim",
    "Engine",
    "EngineView",
    "engine_notes",
    "engines_keeping",
    "find_engine",
    "gravest",
    "notes_of",
    "written_for",
]


def written_for() -> tuple[str, ...]:
    """Every value of ``--for``: the reference form, and the engines that read the dense form."""
    return (REFERENCE, *(key for key, engine in ENGINES.items() if engine.reads_dense))


def find_engine(key: str) -> Engine | None:
    """The engine that ``--for`` names; None for the reference form.

    Raises:
        UsageError: ``unknown-engine``.
    """
    if key not in written_for():
        raise UsageError(
            Finding(
                code="unknown-engine",
                message="no engine of this name has a spelling",
                found=key,
                expected=", ".join(written_for()),
                hint="give one of these to --for",
            )
        )
    return None if key == REFERENCE else ENGINES[key]


def engine_notes(draft: EngineView) -> tuple[EngineNote, ...]:
    """What every engine does with ``draft``, refusals first; "loads" if no claim holds."""
    return tuple(note for engine in ENGINES.values() for note in notes_of(engine, draft))


def notes_of(engine: Engine, draft: EngineView) -> tuple[EngineNote, ...]:
    """What one engine does with ``draft``, with advice about the others if it cannot run it."""
    return engine.notes(draft, _elsewhere(engine, draft))


def engines_keeping(names: Collection[str], draft: EngineView) -> list[str]:
    """The engines that run ``draft`` with its own tensors of these names, not the target's."""
    return [
        engine.name
        for engine in _serving()
        if engine.runs(draft) and not set(names) & set(engine.spelling.ignores(draft.config))
    ]


def _serving() -> Iterable[Engine]:
    return (engine for engine in ENGINES.values() if engine.serves)


def _elsewhere(engine: Engine, draft: EngineView) -> str:
    """The engines that run a draft which ``engine`` cannot: as it is, or after a conversion."""
    others = [other for other in _serving() if other is not engine]
    running = [other.name for other in others if other.runs(draft)]
    if running:
        return f"serve it with {' or '.join(running)}"
    willing = [
        other.name
        for other in others
        if not any(claim.hinders and claim.inherent for claim in other.holding(draft))
    ]
    if willing:
        return f"convert it for {' or '.join(willing)}, and run it there"
    return "none of these engines runs this draft as intended"
