"""``--for ENGINE``: write what the engine reads, and refuse what it would misread.

Everything known about an engine is data in ``engines``; nothing here knows an engine by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dspark_convert.checkpoint.dtypes import DTYPES
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.transfer import same_tensor
from dspark_convert.conversion.keys import ConvertedKeys
from dspark_convert.conversion.weights import Piece
from dspark_convert.engines import Engine, EngineView, engines_keeping, notes_of
from dspark_convert.errors import Findings
from dspark_convert.formats.rules import assign, dotted, lookup
from dspark_convert.formats.target import TargetWeights
from dspark_convert.formats.tensors import expected_tensors
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import KeyStep


def spell_keys(engine: Engine, config: DraftConfig, keys: ConvertedKeys) -> None:
    """Add the keys that ``engine`` reads to the config, and to its account."""
    for spelling in engine.spelling.keys:
        value = spelling.value(config)
        if value is None or lookup(keys.document, spelling.path) == value:
            continue
        assign(keys.document, spelling.path, value)
        name = dotted(spelling.path)
        keys.steps.append(
            KeyStep(action="added", source=None, names=(name,), reason=spelling.reason)
        )


def spell_pieces(engine: Engine, config: DraftConfig, pieces: Iterable[Piece]) -> list[Piece]:
    """The tensors under the names that ``engine`` reads, and the zeros that it needs."""
    spelled = [_renamed(engine, piece) for piece in pieces]
    stored = {piece.name for piece in spelled}
    expected = expected_tensors(config)
    for name in engine.spelling.zeros:
        if name in expected and name not in stored:
            weight = next(p for p in spelled if p.name == name.removesuffix("bias") + "weight")
            spelled.append(_zeros(engine, name, expected[name].shape, weight))
    return spelled


def validate_for(
    engine: Engine,
    draft: EngineView,
    pieces: Iterable[Piece],
    target: TargetWeights | None,
    findings: Findings,
) -> None:
    """Refuse what ``engine`` cannot run, or would silently run wrong.

    A fault that the launch line avoids does not count. Codes: those of the claims, and
    ``own-head-ignored`` if the draft stores a tensor that the engine replaces with another.
    """
    for note in notes_of(engine, draft):
        if note.verdict == "loads" or note.avoided_by_launch:
            continue
        what = "does not run" if note.verdict == "refuses" else "runs, and runs wrong,"
        findings.error(
            note.code,
            f"{engine.name} {engine.version} {what} this draft: {note.reason}",
            hint=note.way_out or "serve it with another engine",
        )
    ignored = engine.spelling.ignores(draft.config)
    for piece in pieces:
        if piece.name in ignored and piece.action != "filled":
            _validate_ignored(engine, draft, piece, target, findings)


def _renamed(engine: Engine, piece: Piece) -> Piece:
    name = engine.spelling.names.get(piece.name, piece.name)
    if name == piece.name:
        return piece
    if piece.action not in ("copied", "renamed"):
        return replace(piece, name=name)
    if piece.source == name:
        return replace(piece, name=name, action="copied", reason="unchanged")
    reason = f"same bytes under the name that {engine.name} reads"
    return replace(piece, name=name, action="renamed", reason=reason)


def _zeros(engine: Engine, name: str, shape: tuple[int, ...], weight: Piece) -> Piece:
    (count,) = shape
    return Piece(
        name=name,
        dtype=weight.dtype,
        shape=shape,
        content=bytes(DTYPES[weight.dtype].nbytes * count),
        action="added",
        reason=f"zero, as its absence means; {engine.name} would leave it uninitialised",
        source=None,
        source_file=weight.source_file,
    )


def _validate_ignored(
    engine: Engine,
    draft: EngineView,
    piece: Piece,
    target: TargetWeights | None,
    findings: Findings,
) -> None:
    if target is None:
        message = "takes this tensor from the target, and it is not known whether the two are equal"
        hint = "give --target DIR, so that the rows are compared"
    elif not _same_rows(piece, target.supply(piece.name)):
        message = "takes this tensor from the target, and the draft's is different"
        keeping = engines_keeping([piece.name], draft)
        hint = (
            f"serve it with {' or '.join(keeping)}, which use the draft's own tensor"
            if keeping
            else "give the target that the draft was trained for"
        )
    else:
        return
    findings.error(
        "own-head-ignored",
        f"{engine.name} {engine.version} {message}",
        file=piece.source_file,
        tensor=piece.name,
        hint=hint,
    )


def _same_rows(piece: Piece, theirs: StoredTensor) -> bool:
    """Whether a draft's tensor [rows, H] is bit-equal to the target's; padding rows may differ."""
    own = piece.content
    return isinstance(own, StoredTensor) and same_tensor(own, theirs, common_rows=True)
