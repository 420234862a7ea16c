"""A draft's config in the dialect of a result: as it was spelled before, or anew."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.conversion.history import Origin
from dspark_convert.errors import Findings
from dspark_convert.formats.arithmetic import remove_inherited
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.overrides import Overrides, apply_overrides
from dspark_convert.formats.parse import parse_config, render
from dspark_convert.formats.rules import (
    Document,
    KeyPath,
    assign,
    dotted,
    lookup,
    read_field,
    walk_keys,
)
from dspark_convert.schemas.draft import DraftConfig

_RESTORED = "as before the earlier conversion, whose manifest recorded it"


@dataclass(frozen=True)
class Rendering:
    """A draft's config in the result's dialect, before other keys of the source are added."""

    dialect: Dialect
    document: Document
    added: Mapping[str, str]
    """Why the result has a key that the source lacks; by dotted name."""
    homes: Mapping[KeyPath, KeyPath] = field(default_factory=dict)
    """Where keys of the source came from in an earlier conversion; they go back there."""
    needless: Mapping[str, str] = field(default_factory=dict)
    """Fields, and carried keys by dotted name, that the result omits, and why."""

    @property
    def keys(self) -> frozenset[KeyPath]:
        """Every key of the document."""
        return frozenset(path for path, _ in walk_keys(self.document, self.dialect.containers))

    def reads(self, path: KeyPath) -> bool:
        """Whether a reader of the dialect gives this key a meaning."""
        places = [place.path for rule in self.dialect.rules for place in rule.places]
        return any(path in (place[:1], self.dialect.key_of(place)) for place in places)


def plain_rendering(config: DraftConfig, dialect: Dialect) -> Rendering:
    """A draft in a dialect, as far as its config determines it."""
    return Rendering(dialect.of(config), render(config, dialect), dialect.added)


def restored_rendering(
    config: DraftConfig, dialect: Dialect, origin: Origin, *, untold: Collection[str]
) -> Rendering | None:
    """The origin's document, with every field whose meaning has changed written anew.

    Args:
        config: the draft.
        dialect: the one that the origin is in.
        origin: what the draft was in it.
        untold: fields that an earlier conversion may have added and this dialect has no use for.

    Returns:
        None if the origin's keys have wrong types.
    """
    dialect, document = dialect.of(config), copy.deepcopy(origin.document)
    if not _well_typed(document, dialect):
        return None
    remove_inherited(document, dialect.decoder, dialect.body.understood)
    for path, value in dialect.constants.items():
        if lookup(document, path) is None:
            assign(document, path, copy.copy(value))
    needless = {
        name: "added by an earlier conversion, for dense loaders"
        for name in (*untold, *_carried_keys(dialect))
        if name in origin.added and lookup(document, (name,)) is None
    }
    changed = _changed_fields(document, config, dialect, needless)
    document = apply_overrides(document, dialect, Overrides(fields=changed))
    restored = {
        dotted(path): _RESTORED
        for path, _ in walk_keys(origin.document, dialect.containers)
        if path not in dialect.keys_of(changed)
    }
    return Rendering(dialect, document, {**dialect.added, **restored}, origin.homes, needless)


def means(
    rendering: Rendering,
    config: DraftConfig,
    tensors: Mapping[str, StoredTensor],
    *,
    aside: Collection[str],
) -> bool:
    """Whether a rendering reads back as ``config``, apart from some fields."""
    parsed = parse_config(rendering.document, rendering.dialect, tensors, Findings())
    if parsed is None or not _well_typed(rendering.document, rendering.dialect):
        return False
    nothing = dict.fromkeys(aside)
    return parsed.config.model_copy(update=nothing) == config.model_copy(update=nothing)


def _carried_keys(dialect: Dialect) -> list[str]:
    places = [place for rule in dialect.rules for place in rule.places]
    return [dotted(place.path) for place in places if place.carried]


def _changed_fields(
    document: Document, config: DraftConfig, dialect: Dialect, needless: Mapping[str, str]
) -> dict[str, Any]:
    """Fields for which ``document`` disagrees with ``config``, or says nothing."""
    today, ignored = render(config, dialect), Findings()
    changed = {}
    for rule in dialect.rules:
        value = read_field(rule, today, CONFIG_FILE, ignored)
        before = read_field(rule, document, CONFIG_FILE, ignored)
        if value.paths and value.value != before.value and rule.field not in needless:
            changed[rule.field] = value.value
    return changed


def _well_typed(document: Document, dialect: Dialect) -> bool:
    try:
        dialect.document.model_validate(document)
    except ValidationError:
        return False
    return True
