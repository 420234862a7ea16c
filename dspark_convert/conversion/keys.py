"""Config keys of a conversion: every key of the source, and every key of the result."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.conversion.left_out import LEFT_OUT, NOT_RECORDED, without_local_paths
from dspark_convert.conversion.rendering import Rendering
from dspark_convert.errors import Findings
from dspark_convert.formats.arithmetic import inherited_names, is_inherited
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.overrides import overridden_paths
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.rules import (
    Document,
    KeyPath,
    assign,
    dotted,
    holds,
    lookup,
    walk_keys,
)
from dspark_convert.schemas.plan import KeyAction, KeyStep

_INHERITED = "the target's, which training did not obey and an engine might"


@dataclass
class ConvertedKeys:
    """The result's ``config.json``, the account of every key, and what it cannot express."""

    rendering: Rendering
    document: Document
    rendered: frozenset[KeyPath]
    steps: list[KeyStep] = field(default_factory=list)
    source_config: Document = field(default_factory=dict)


def convert_keys(source: DraftSource, rendering: Rendering, findings: Findings) -> ConvertedKeys:
    """Complete ``rendering`` with the source's other keys, and account for every key.

    Keys that no rule knows are carried; a nested key wins over a top-level one of the same name
    (``key-shadowed``), because engines flatten the nested object over the top level.
    """
    document = copy.deepcopy(rendering.document)
    result = ConvertedKeys(rendering, document, rendering.keys)
    fields = _fields_by_path(source)
    overridden = overridden_paths(source.document, source.dialect, source.overrides)
    for path, value in _decoder_first(source, rendering):
        if path in overridden:
            told = fields.get(path, (overridden[path],))
            reason = f"overridden by {_option(overridden[path])}"
            _account(result, "overridden", path, value, _names(result, path, told), reason)
        elif path in fields:
            _account_field(result, path, value, fields[path], source)
        else:
            _account_other(result, path, value, source, findings)
    _account_added(result, source)
    return result


def _decoder_first(source: DraftSource, rendering: Rendering) -> list[tuple[KeyPath, Any]]:
    """Every key to account for, starting with those that win over others of the same name."""
    keys = walk_keys(source.document, source.dialect.containers)
    return sorted(keys, key=lambda item: _destination(item[0], source, rendering) == item[0])


def _destination(path: KeyPath, source: DraftSource, rendering: Rendering) -> KeyPath:
    """Where a carried key goes: the decoder's keys to where the result keeps its decoder."""
    output = rendering.dialect
    if path in rendering.homes:
        return rendering.homes[path]
    if path[:-1] != source.dialect.decoder or source.dialect.decoder == output.decoder:
        return path
    nested = (*output.decoder, path[-1])
    decoders_own = path[-1] in output.decoder_keys or nested in output.constants
    return nested if decoders_own or not output.decoder else path


def _fields_by_path(source: DraftSource) -> dict[KeyPath, tuple[str, ...]]:
    """The fields that each key path states; a part of ``rope_parameters`` counts as the whole."""
    told: dict[KeyPath, tuple[str, ...]] = {}
    present = {path for path, _ in walk_keys(source.document, source.dialect.containers)}
    for rule in source.dialect.rules:
        for place in rule.places:
            path = place.path if place.path in present else place.path[:-1]
            if path not in present or not holds(source.document, place.path):
                continue
            if rule.field not in told.get(path, ()):
                told[path] = (*told.get(path, ()), rule.field)
    return told


def _names(result: ConvertedKeys, path: KeyPath, fields: Iterable[str]) -> tuple[KeyPath, ...]:
    """The result's keys that state some fields, starting with the one that ``path`` came from."""
    home = result.rendering.homes.get(path)
    keys = [*([home] if home else []), *result.rendering.dialect.keys_of(fields)]
    return tuple(dict.fromkeys(key for key in keys if holds(result.document, key)))


def _account(
    result: ConvertedKeys,
    action: KeyAction,
    path: KeyPath,
    value: Any,
    names: tuple[KeyPath, ...],
    reason: str,
) -> None:
    named = tuple(dotted(name) for name in names)
    result.steps.append(KeyStep(action=action, source=dotted(path), names=named, reason=reason))
    if action not in ("copied", "moved") and path[-1] not in NOT_RECORDED:
        assign(result.source_config, path, without_local_paths(value))


def _account_field(
    result: ConvertedKeys,
    path: KeyPath,
    value: Any,
    fields: tuple[str, ...],
    source: DraftSource,
) -> None:
    carried_to = _carried_to(path, fields, source, result.rendering)
    if carried_to is not None:
        assign(result.document, carried_to, value)
        action: KeyAction = "copied" if carried_to == path else "moved"
        _account(result, action, path, value, (carried_to,), "an engine reads this spelling")
        return
    dialect = result.rendering.dialect.name
    names = _names(result, path, (*fields, *_joined(source.dialect, fields)))
    inherited = inherited_names(value)
    same = [name for name in names if name[-1] == path[-1] and _equal(result, name, value)]
    if not names:
        _account(result, "dropped", path, value, (), _why_silent(result, fields, value))
    elif same:
        _account(result, "copied" if path in same else "moved", path, value, names, "unchanged")
    elif value is None or lookup(result.document, names[0]) is None:
        _account(result, "dropped", path, value, (), "null, or meaningless here")
    elif inherited:
        reason = f"without {', '.join(inherited)}: {_INHERITED}"
        _account(result, "transformed", path, value, names, reason)
    elif _equal(result, names[0], value):
        reason = f"the same value under the {dialect} name"
        _account(result, "moved", path, value, names, reason)
    else:
        reason = f"the {dialect} spelling of the same"
        _account(result, "transformed", path, value, names, reason)


def _joined(dialect: Dialect, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields that hold what ``fields`` say, where no field of a draft does."""
    rules = [rule for name in fields if (rule := dialect.rule(name)) is not None]
    return tuple(name for rule in rules for name in rule.joined)


def _equal(result: ConvertedKeys, name: KeyPath, value: Any) -> bool:
    return bool(lookup(result.document, name) == value)


def _why_silent(result: ConvertedKeys, fields: tuple[str, ...], value: Any) -> str:
    needless = result.rendering.needless
    for name in fields:
        if name in needless:
            return needless[name]
    same_vocabulary = fields == ("draft_vocab_size",) and value is not None
    return "equals vocab_size" if same_vocabulary else "null, or meaningless here"


def _carried_to(
    path: KeyPath, fields: tuple[str, ...], source: DraftSource, rendering: Rendering
) -> KeyPath | None:
    """Where a key goes that is repeated unchanged; None for the others."""
    if path not in _carried(source.dialect, fields) or dotted(path) in rendering.needless:
        return None
    spellings = [place for place in _carried(rendering.dialect, fields) if place[-1] == path[-1]]
    return rendering.homes.get(path, spellings[0])


def _carried(dialect: Dialect, fields: tuple[str, ...]) -> list[KeyPath]:
    rules = [rule for name in fields if (rule := dialect.rule(name)) is not None]
    return [place.path for rule in rules for place in rule.places if place.carried]


def _account_other(
    result: ConvertedKeys, path: KeyPath, value: Any, source: DraftSource, findings: Findings
) -> None:
    rendering, dialect = result.rendering, result.rendering.dialect
    own_reason = source.dialect.own_keys.get(path) if source.dialect.name != dialect.name else None
    destination = _destination(path, source, rendering)
    action: KeyAction = "copied" if destination == path else "moved"
    existing = lookup(result.document, destination)
    left_out = own_reason or LEFT_OUT.get(path[-1]) or dialect.foreign_keys.get(destination)
    if is_inherited(path[-1], value) and path[-1] not in dialect.body.understood:
        left_out = _INHERITED
    if left_out:
        _account(result, "dropped", path, value, (), left_out)
    elif destination in result.rendered:
        same = existing == value
        reason = f"the same in every {dialect.name} config"
        if not same:
            action, reason = "transformed", f"replaced by the {dialect.name} spelling"
        elif path in rendering.homes:
            reason = "back where it came from"
        _account(result, action, path, value, (destination,), reason)
    elif destination != path and path not in rendering.homes and rendering.reads(destination):
        reason = "not a key of the decoder; at the top level it would be read"
        _account(result, "dropped", path, value, (), reason)
    elif existing is None or existing == value:
        assign(result.document, destination, copy.deepcopy(value))
        reason = "not a key of ours; carried unchanged"
        _account(result, action, path, value, (destination,), reason)
    else:
        _account(result, "dropped", path, value, (), "the decoder's key of this name is kept")
        _report_shadowed(path, value, existing, findings)


def _report_shadowed(path: KeyPath, value: Any, kept: Any, findings: Findings) -> None:
    findings.warning(
        "key-shadowed",
        "the decoder has a key of this name with another value, which is kept, as engines do",
        file=CONFIG_FILE,
        key=dotted(path),
        expected=repr(without_local_paths(kept)),
        found=repr(without_local_paths(value)),
    )


def _account_added(result: ConvertedKeys, source: DraftSource) -> None:
    dialect, added = result.rendering.dialect, result.rendering.added
    named = {name for step in result.steps for name in step.names}
    given = {"sample_from_anchor"} if source.overrides.layout else set()
    given |= set(source.overrides.fields)
    for key in sorted(result.rendered):
        name = dotted(key)
        if name in named:
            continue
        fields = {rule.field for rule in dialect.rules if key in dialect.keys_of([rule.field])}
        reason = added.get(name, "made explicit")
        if fields & given:
            reason = f"given with {_option((fields & given).pop())}"
        elif name == "sample_from_anchor":
            reason = f"{reason} ({source.parsed.layout_evidence})"
        result.steps.append(KeyStep(action="added", source=None, names=(name,), reason=reason))


def _option(field_name: str) -> str:
    return "--layout" if field_name == "sample_from_anchor" else f"--set {field_name}"
