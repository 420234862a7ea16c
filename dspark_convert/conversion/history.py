"""Earlier conversions of a draft, from the manifest that the last one left beside it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.conversion.left_out import LEFT_OUT
from dspark_convert.conversion.manifest import MANIFEST_FILE, read_manifest
from dspark_convert.errors import DraftError, Findings
from dspark_convert.formats.dialects import DIALECTS, Dialect
from dspark_convert.formats.overrides import apply_overrides, assign_over_null
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.rules import Document, KeyPath, holds, lookup, remove, walk_keys
from dspark_convert.formats.tensors import canonical_name
from dspark_convert.schemas.plan import (
    ConversionRecord,
    EarlierConversion,
    KeyStep,
    SourceIdentity,
)

UNUSABLE = "manifest-unusable"
"""The code of the note that a manifest is not evidence."""


@dataclass(frozen=True)
class Origin:
    """What a draft was before earlier conversions, in one of the dialects that it had."""

    document: Document
    """Its config then, as far as the manifests and today's config tell."""
    homes: Mapping[KeyPath, KeyPath]
    """Today's keys, and the keys that they were then."""
    added: frozenset[str]
    """Today's keys that a conversion added of its own accord; dotted."""
    filled: frozenset[str]
    """Tensors that a conversion took from the target; canonical names."""


def read_history(
    folder: Path, identity: SourceIdentity, findings: Findings
) -> tuple[EarlierConversion, ...]:
    """The conversions that made the draft in ``folder``, newest first.

    A manifest that cannot be read, or was written for weights other than those of ``identity``, is
    not evidence: nothing is returned, and ``manifest-unusable`` is noted.
    """
    if not (folder / MANIFEST_FILE).exists():
        return ()
    manifest = read_manifest(folder)
    if manifest is None:
        _note_unusable("it is not a manifest that this version understands", findings)
        return ()
    recorded = {file.name: file.header_sha256 for file in manifest.files}
    if any(recorded.get(file.name) != file.header_sha256 for file in identity.files):
        _note_unusable("it was written for other weight files", findings)
        return ()
    record = {name: getattr(manifest, name) for name in ConversionRecord.model_fields}
    return (EarlierConversion(**record), *manifest.history)


def changed_tensors(history: Iterable[EarlierConversion]) -> frozenset[str]:
    """Canonical names of the tensors whose values an earlier conversion computed."""
    steps = [step for conversion in history for step in conversion.tensors]
    return frozenset(
        canonical_name(step.name) for step in steps if step.action == "transformed" and step.name
    )


def raise_errors(findings: Findings) -> None:
    """Refuse a draft with every error, and with why its manifest did not help.

    Raises:
        DraftError: there is an error.
    """
    errors = findings.of("error")
    if errors:
        raise DraftError(*errors, *(note for note in findings if note.code == UNUSABLE))


def origin_in(
    dialect: Dialect, source: DraftSource, history: Iterable[EarlierConversion]
) -> Origin | None:
    """What a draft was in ``dialect``; a draft that is of it now says so itself."""
    if source.dialect.name != dialect.name:
        return find_origin(history, source.document, source.dialect, dialect)
    dialect = source.dialect
    overruled = apply_overrides(source.document, dialect, source.overrides)
    keys = [path for path, _ in walk_keys(source.document, dialect.containers)]
    for path in keys:
        if path[-1] in LEFT_OUT or path in dialect.foreign_keys:
            remove(overruled, path)
    return Origin(overruled, {path: path for path in keys}, frozenset(), frozenset())


def find_origin(
    history: Iterable[EarlierConversion], document: Document, dialect: Dialect, wanted: Dialect
) -> Origin | None:
    """Undo conversions, newest first, until the draft is in the dialect ``wanted``.

    Args:
        history: as ``read_history`` returns it.
        document: today's config, in ``dialect``.
    """
    homes: dict[KeyPath, KeyPath] | None = None
    added: set[str] = set()
    filled: set[str] = set()
    for conversion in history:
        before = DIALECTS.get(conversion.dialect)
        if before is None:
            return None
        steps = _homes(conversion.keys, before, dialect)
        document = _undone(conversion, document, before, dialect)
        homes = steps if homes is None else _chained(homes, steps)
        added |= _added(conversion)
        filled |= {
            canonical_name(step.name)
            for step in conversion.tensors
            if step.action == "filled" and step.name
        }
        dialect = before
        if dialect.name == wanted.name:
            return Origin(document, homes, frozenset(added), frozenset(filled))
    return None


def _undone(
    conversion: EarlierConversion, document: Document, before: Dialect, after: Dialect
) -> Document:
    """The config before one conversion; what a user overrode then is left out."""
    original: Document = {}
    for step in conversion.keys:
        if step.source is None or step.action == "overridden":
            continue
        path = _path(step.source, before)
        names = [_path(name, after) for name in step.names]
        if path[-1] in LEFT_OUT:
            continue
        holder, key = conversion.source_config, path
        if step.action in ("copied", "moved") and names:
            namesakes = [name for name in names if name[-1] == path[-1]]
            holder, key = document, (namesakes or names)[0]
        if holds(holder, key):
            assign_over_null(original, path, copy.deepcopy(lookup(holder, key)))
    return original


def _homes(keys: Iterable[KeyStep], before: Dialect, after: Dialect) -> dict[KeyPath, KeyPath]:
    homes: dict[KeyPath, KeyPath] = {}
    for step in keys:
        if step.source is not None:
            for name in step.names:
                homes.setdefault(_path(name, after), _path(step.source, before))
    return homes


def _chained(
    first: Mapping[KeyPath, KeyPath], second: Mapping[KeyPath, KeyPath]
) -> dict[KeyPath, KeyPath]:
    return {key: second[middle] for key, middle in first.items() if middle in second}


def _added(conversion: EarlierConversion) -> set[str]:
    names = {name for step in conversion.keys if step.action == "added" for name in step.names}
    return names - conversion.overrides.keys()


def _path(name: str, dialect: Dialect) -> KeyPath:
    """A dotted name as a path; a dot inside a top-level key does not split it."""
    container, dot, key = name.partition(".")
    return (container, key) if dot and (container,) in dialect.containers else (name,)


def _note_unusable(why: str, findings: Findings) -> None:
    findings.note(
        UNUSABLE,
        f"what an earlier conversion recorded is ignored: {why}",
        file=MANIFEST_FILE,
        hint="the result is what today's config and weights say",
    )
