"""Config keys of a conversion to dense: every key of the source, and every key of the result."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark_convert.errors import Findings
from dspark_convert.formats.detect import CONFIG
from dspark_convert.formats.dialects import DENSE
from dspark_convert.formats.neutral import render_dense
from dspark_convert.formats.overrides import overridden_paths
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.rules import (
    Document,
    KeyPath,
    assign,
    dotted,
    holds,
    walk_keys,
)
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import KeyAction, KeyStep

LEFT_OUT: Mapping[str, str] = {
    "auto_map": "points at code, and code is not carried",
    "_name_or_path": "a path on the machine that saved the source",
}
_NOT_RECORDED = frozenset({"_name_or_path"})

_ADDED: Mapping[str, str] = {
    "architectures": "the class that dense loaders look up",
    "model_type": "SGLang and vLLM need it to load a dense config",
    "tie_word_embeddings": "draft embedding and head are separate tensors",
    "sample_from_anchor": "the layout, explicit: readers disagree about its absence",
    "dspark_bonus_anchor": "the layout, in the other spelling",
    "eagle_aux_hidden_state_layer_ids": "target_layer_ids + 1, the spelling that vLLM reads first",
    "target_layer_ids": "the spelling of dense readers",
    "rope_theta": "for readers that do not know rope_parameters",
    "rope_parameters": "for readers that do not know rope_theta",
    "torch_dtype": "for readers that do not know dtype",
    "dtype": "for readers that do not know torch_dtype",
    "num_anchors": "only training uses it, but DeepSpec's loader asks for it",
    "sliding_window": "no layer slides",
}

_ABSOLUTE_PATH = re.compile(r"(file:|/|~|[a-z]:[\\/]|\\\\).*", re.DOTALL | re.IGNORECASE)


@dataclass
class ConvertedKeys:
    """The result's ``config.json``, the account of every key, and what dense cannot say."""

    document: Document
    steps: list[KeyStep] = field(default_factory=list)
    source_config: Document = field(default_factory=dict)


def convert_keys(source: DraftSource, config: DraftConfig, findings: Findings) -> ConvertedKeys:
    """Render ``config`` as dense and account for every key of the source.

    Keys that no rule knows are carried; a nested one wins over a top-level one of the same name
    (``key-shadowed``), because engines flatten the nested object over the top level.
    """
    result = ConvertedKeys(render_dense(config))
    rendered = frozenset(result.document)
    fields = _fields_by_path(source)
    overridden = overridden_paths(source.document, source.dialect, source.overrides)
    for path, value in _decoder_first(source):
        if path in overridden:
            names = _dense_names(fields.get(path, (overridden[path],)), result.document)
            reason = f"overruled by {_option(overridden[path])}"
            _account(result, "overridden", path, value, names, reason)
        elif path in fields:
            _account_field(result, path, value, fields[path], source)
        else:
            _account_other(result, path, value, source, rendered, findings)
    _account_added(result, source, rendered)
    return result


def without_local_paths(value: Any) -> Any:
    """Reduce absolute paths to their last component: a manifest names nobody's folders."""
    if isinstance(value, dict):
        return {key: without_local_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_local_paths(item) for item in value]
    if isinstance(value, str) and _ABSOLUTE_PATH.fullmatch(value):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value


def _decoder_first(source: DraftSource) -> list[tuple[KeyPath, Any]]:
    """Every key to account for, those that win over others of the same name first."""
    keys = walk_keys(source.document, source.dialect.containers)
    return sorted(keys, key=lambda item: _destination(item[0], source) == item[0])


def _destination(path: KeyPath, source: DraftSource) -> KeyPath:
    """Where a carried key goes: the decoder's keys to the top level."""
    return path[-1:] if path[:-1] == source.dialect.decoder else path


def _fields_by_path(source: DraftSource) -> dict[KeyPath, tuple[str, ...]]:
    """The fields that each key path tells; a part of ``rope_parameters`` counts as the whole."""
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


def _dense_names(fields: Iterable[str], document: Document) -> tuple[str, ...]:
    names = [
        name.partition(".")[0]
        for field_name in fields
        if (rule := DENSE.rule(field_name)) is not None
        for name in rule.written_names()
    ]
    return tuple(dict.fromkeys(name for name in names if name in document))


def _account(
    result: ConvertedKeys,
    action: KeyAction,
    path: KeyPath,
    value: Any,
    names: tuple[str, ...],
    reason: str,
) -> None:
    result.steps.append(KeyStep(action=action, source=dotted(path), names=names, reason=reason))
    if action not in ("copied", "moved") and path[-1] not in _NOT_RECORDED:
        assign(result.source_config, path, without_local_paths(value))


def _account_field(
    result: ConvertedKeys,
    path: KeyPath,
    value: Any,
    fields: tuple[str, ...],
    source: DraftSource,
) -> None:
    if _is_carried(path, fields, source):
        destination = _destination(path, source)
        action: KeyAction = "copied" if destination == path else "moved"
        assign(result.document, destination, value)
        reason = "an engine reads this spelling"
        _account(result, action, path, value, (dotted(destination),), reason)
        return
    names = _dense_names(fields, result.document)
    if not names:
        same_vocabulary = fields == ("draft_vocab_size",) and value is not None
        reason = "equals vocab_size" if same_vocabulary else "null, or without meaning here"
        _account(result, "dropped", path, value, (), reason)
    elif result.document.get(path[-1]) == value and path[-1] in names:
        action = "copied" if len(path) == 1 else "moved"
        _account(result, action, path, value, names, "unchanged")
    elif value is None or result.document[names[0]] is None:
        _account(result, "dropped", path, value, (), "null, or without meaning here")
    elif result.document[names[0]] == value:
        _account(result, "moved", path, value, names, "the same value under the dense name")
    else:
        _account(result, "transformed", path, value, names, "the dense spelling of the same")


def _is_carried(path: KeyPath, fields: tuple[str, ...], source: DraftSource) -> bool:
    return any(
        place.carried and place.path == path
        for field_name in fields
        if (rule := source.dialect.rule(field_name)) is not None
        for place in rule.places
    )


def _account_other(
    result: ConvertedKeys,
    path: KeyPath,
    value: Any,
    source: DraftSource,
    rendered: frozenset[str],
    findings: Findings,
) -> None:
    own_reason = source.dialect.own_keys.get(path) or LEFT_OUT.get(path[-1])
    destination = _destination(path, source)
    action: KeyAction = "copied" if destination == path else "moved"
    existing = _outermost(result.document, destination)
    if own_reason:
        _account(result, "dropped", path, value, (), own_reason)
    elif destination[0] in rendered:
        same = existing == value
        reason = "the same in every dense config" if same else "replaced by the dense spelling"
        _account(result, action if same else "transformed", path, value, destination[:1], reason)
    elif existing is None or existing == value:
        assign(result.document, destination, copy.deepcopy(value))
        reason = "not a key of ours; carried unchanged"
        _account(result, action, path, value, (dotted(destination),), reason)
    else:
        _account(result, "dropped", path, value, (), "the decoder's key of this name is kept")
        _report_shadowed(path, value, existing, findings)


def _outermost(document: Document, path: KeyPath) -> Any:
    """The value at ``path``, or the one that is in its way; None where it is free."""
    value: Any = document
    for key in path:
        if not isinstance(value, dict):
            return value
        value = value.get(key)
    return value


def _report_shadowed(path: KeyPath, value: Any, kept: Any, findings: Findings) -> None:
    findings.warning(
        "key-shadowed",
        "the decoder has a key of this name with another value, which is kept, as engines do",
        file=CONFIG,
        key=dotted(path),
        expected=repr(without_local_paths(kept)),
        found=repr(without_local_paths(value)),
    )


def _account_added(result: ConvertedKeys, source: DraftSource, rendered: frozenset[str]) -> None:
    named = {name for step in result.steps for name in step.names}
    given = {"sample_from_anchor"} if source.overrides.layout else set()
    given |= set(source.overrides.fields)
    for name in sorted(rendered - named):
        fields = {rule.field for rule in DENSE.rules if name in rule.written_names()}
        reason = _ADDED.get(name, "made explicit")
        if fields & given:
            reason = f"given with {_option((fields & given).pop())}"
        elif name == "sample_from_anchor":
            reason = f"{reason} ({source.parsed.layout_evidence})"
        result.steps.append(KeyStep(action="added", source=None, names=(name,), reason=reason))


def _option(field_name: str) -> str:
    return "--layout" if field_name == "sample_from_anchor" else f"--set {field_name}"
