"""Rules that say where a config keeps each field, applied in both directions by one small engine.

A dialect has a table of ``FieldRule``s. Reading collects every place that holds a field and
requires them to agree; writing fills the places marked ``written``. Each place knows both
directions, so a dialect is never typed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.errors import Findings

KeyPath = tuple[str, ...]
Document = dict[str, Any]

REQUIRED: Any = object()
"""Stands for the default of a field that has none."""

LAYOUT_CONFLICT = "layout-conflict"
"""The conflict code of the layout, which has an option of its own."""

UNKNOWN: Any = object()
"""Stands for the value of a field that could not be read; a finding says why."""


def same(value: Any) -> Any:
    """The transformation of a value that is stored as is."""
    return value


@dataclass(frozen=True)
class Place:
    """One key that may hold a field. ``read`` and ``write`` are inverses of each other."""

    path: KeyPath
    read: Callable[[Any], Any] = same
    write: Callable[[Any], Any] = same
    written: bool = True
    """Whether the dialect's own writer fills this place."""
    carried: bool = False
    """Whether a conversion repeats the key as it was, because an engine reads only this one."""


@dataclass(frozen=True)
class FieldRule:
    """Where a field lives and what its absence means."""

    field: str
    places: tuple[Place, ...]
    default: Any = REQUIRED
    default_source: str = ""
    conflict_code: str = "key-conflict"
    counting: str = ""
    """What users must know to give a value with ``--set``; part of hints."""
    settable: bool = True
    """Whether an option overrides the field."""
    joined: tuple[str, ...] = ()
    """Fields that hold what it says, if ``DraftConfig`` has no such field."""

    @property
    def setting(self) -> str | None:
        """The option that overrides the field, for hints."""
        if not self.settable:
            return None
        if self.conflict_code == LAYOUT_CONFLICT:
            return "--layout anchor-first|bonus-anchor"
        option = f"--set {self.field}=VALUE"
        return f"{option} ({self.counting})" if self.counting else option


@dataclass(frozen=True)
class FieldValue:
    """A field as found: its value and the keys that hold it (none: the default)."""

    value: Any
    paths: tuple[KeyPath, ...] = ()


def places(*paths: KeyPath, written: int = 1) -> tuple[Place, ...]:
    """Places that store a field as is; writers fill the first ``written`` of them."""
    return tuple(Place(path, written=index < written) for index, path in enumerate(paths))


def dotted(path: KeyPath) -> str:
    """A key path as users write it."""
    return ".".join(path)


def lookup(document: Mapping[str, Any], path: KeyPath) -> Any:
    """The value at ``path``; None if absent, which all of these formats treat the same."""
    value: Any = document
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def holds(document: Mapping[str, Any], path: KeyPath) -> bool:
    """Whether the key is there, even if it is null."""
    parent = lookup(document, path[:-1])
    return isinstance(parent, Mapping) and path[-1] in parent


def assign(document: Document, path: KeyPath, value: Any) -> None:
    """Set ``path``, creating the objects above it."""
    for key in path[:-1]:
        document = document.setdefault(key, {})
    document[path[-1]] = value


def remove(document: Document, path: KeyPath) -> None:
    """Delete ``path`` if it is there."""
    parent = lookup(document, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


def read_field(rule: FieldRule, document: Document, file: str, findings: Findings) -> FieldValue:
    """Read a field from every place that holds it.

    Reports ``key-conflict`` (or the rule's own code) when two places disagree and ``key-missing``
    when a required field has none.
    """
    held = [
        (place, place.read(stored))
        for place in rule.places
        if (stored := lookup(document, place.path)) is not None
    ]
    held = [(place, value) for place, value in held if value is not None]
    paths = tuple(place.path for place, _ in held)
    if not held:
        return _absent(rule, file, findings)
    if any(value != held[0][1] for _, value in held):
        _report_conflict(rule, held, document, file, findings)
        return FieldValue(UNKNOWN, paths)
    return FieldValue(held[0][1], paths)


def write_fields(rules: Iterable[FieldRule], values: Mapping[str, Any], document: Document) -> None:
    """Write every field of ``values`` to the places that its rule names; None is omitted."""
    for rule in rules:
        value = values.get(rule.field)
        if value is None:
            continue
        for place in rule.places:
            if place.written:
                assign(document, place.path, place.write(value))


def walk_keys(document: Document, containers: Iterable[KeyPath]) -> Iterator[tuple[KeyPath, Any]]:
    """Every key to account for: the top level, and one level inside each container."""
    opened = {path for path in containers if isinstance(lookup(document, path), dict)}
    for key, value in document.items():
        if (key,) not in opened:
            yield (key,), value
    for path in sorted(opened):
        for key, value in lookup(document, path).items():
            yield (*path, key), value


def _absent(rule: FieldRule, file: str, findings: Findings) -> FieldValue:
    name = rule.places[0].path
    if rule.default is REQUIRED:
        findings.error(
            "key-missing",
            f"{rule.field} is not given and has no safe default",
            file=file,
            key=dotted(name),
            hint=", or give ".join(filter(None, ["add the key", rule.setting])),
        )
        return FieldValue(UNKNOWN)
    if rule.default is not None and rule.default_source:
        findings.note(
            "default-used",
            f"{rule.field} is not given; {rule.default!r} is {rule.default_source}",
            file=file,
            key=dotted(name),
        )
    return FieldValue(rule.default)


def _report_conflict(
    rule: FieldRule,
    held: list[tuple[Place, Any]],
    document: Document,
    file: str,
    findings: Findings,
) -> None:
    said = "; ".join(
        _said(rule, place, lookup(document, place.path), value) for place, value in held
    )
    findings.error(
        rule.conflict_code,
        f"two keys that mean the same disagree about {rule.field}",
        file=file,
        key=dotted(held[0][0].path),
        found=said,
        hint="find out which one is right and "
        + (f"give {rule.setting}" if rule.setting else "remove the other"),
    )


def _said(rule: FieldRule, place: Place, stored: Any, value: Any) -> str:
    """What a place holds, and what it means if the two are spelled differently."""
    said = f"{dotted(place.path)} = {stored!r}"
    return said if value == stored else f"{said}, which is {rule.field} {value!r}"
