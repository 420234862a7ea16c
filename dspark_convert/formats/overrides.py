"""What a user knows better than the file: edits to the source document before it is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PositiveFloat, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dspark_convert.checkpoint.jsonfile import parse_json
from dspark_convert.errors import CheckpointError, Finding, UsageError
from dspark_convert.formats.arithmetic import inherited_names
from dspark_convert.formats.decoders import DECODERS
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.rules import (
    Document,
    KeyPath,
    assign,
    holds,
    lookup,
    remove,
)
from dspark_convert.formats.vocabulary import TableMeaning
from dspark_convert.schemas.draft import DraftConfig, Layout

_JOINED_FIELDS: Mapping[str, Any] = {
    "rope_theta": PositiveFloat,
    "rope_scaling": dict[str, Any],
    "use_swa": bool,
}
_NOT_SETTABLE = {"layout", "rope_parameters", "decoder", "decoder_parameters"}


@dataclass(frozen=True)
class Overrides:
    """Values that override the source, even where it contradicts itself.

    ``fields`` holds the parsed ``--set`` pairs; ``layout`` and ``d2t`` are the options of that
    name.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout | None = None
    d2t: TableMeaning | None = None

    def as_document(self) -> dict[str, Any]:
        """What the plan and the manifest record."""
        named = {"layout": self.layout and self.layout.value, "d2t": self.d2t}
        return {**self.fields, **{key: value for key, value in named.items() if value}}


NO_OVERRIDES = Overrides()


def parse_overrides(layout: str | None, d2t: str | None, settings: list[str]) -> Overrides:
    """The options ``--layout``, ``--d2t`` and ``--set`` as users type them.

    Raises:
        UsageError: ``bad-setting``.
    """
    readings: Mapping[str, TableMeaning] = {"offsets": "offsets", "absolute": "absolute"}
    return Overrides(
        fields=parse_settings(settings),
        layout=Layout(layout.replace("-", "_")) if layout else None,
        d2t=readings[d2t] if d2t else None,
    )


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs; a value is JSON, or plain text if it is not valid JSON.

    Raises:
        UsageError: ``bad-setting``: no ``=``, a key that cannot be set, a value of the wrong type,
            a key given twice.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        key = key.strip()
        if not separator or key not in settable_fields():
            raise _bad_setting(pair, f"KEY=VALUE with KEY one of {', '.join(settable_fields())}")
        if key in settings:
            raise _bad_setting(pair, f"{key} once")
        settings[key] = _parse_value(key, text, pair)
    return settings


def settable_fields() -> list[str]:
    """The keys that ``--set`` accepts."""
    return sorted({*DraftConfig.model_fields, *_JOINED_FIELDS, *_body_fields()} - _NOT_SETTABLE)


def apply_overrides(document: Document, dialect: Dialect, overrides: Overrides) -> Document:
    """A copy of ``document`` in which every override stands alone in its first place.

    Raises:
        UsageError: ``bad-setting``: a field that only drafts with another body have.
    """
    edited = copy.deepcopy(document)
    fields = dict(overrides.fields)
    if overrides.layout is not None:
        fields["sample_from_anchor"] = overrides.layout is Layout.ANCHOR_FIRST
    for name, value in fields.items():
        rule = dialect.rule(name)
        if rule is None:
            raise _bad_setting(name, f"a field of a draft whose decoder is {dialect.body.title}")
        first, *others = rule.places
        for place in others:
            _remove_part(edited, place.path, name)
        stored = first.write(value)
        if name == "rope_scaling":
            stored = {**_theta_of(edited, first.path), **stored}
        assign_over_null(edited, first.path, stored)
    return edited


def assign_over_null(document: Document, path: tuple[str, ...], value: Any) -> None:
    """Like ``assign``, but an object on the way may be null."""
    for depth in range(1, len(path)):
        if not isinstance(lookup(document, path[:depth]), dict):
            assign(document, path[:depth], {})
    assign(document, path, value)


def overridden_paths(
    document: Document, dialect: Dialect, overrides: Overrides
) -> dict[KeyPath, str]:
    """Source keys whose value an override replaced, wholly or in part, with the field's name."""
    fields = [*overrides.fields, *(["sample_from_anchor"] if overrides.layout else [])]
    return {
        place.path[:depth]: name
        for name in fields
        if (rule := dialect.rule(name)) is not None
        for place in rule.places
        if holds(document, place.path)
        for depth in range(1, len(place.path) + 1)
    }


def _remove_part(document: Document, path: tuple[str, ...], name: str) -> None:
    if name == "rope_scaling":
        theta = _theta_of(document, path)
        remove(document, path)
        if theta:
            assign(document, path, theta)
    else:
        remove(document, path)


def _theta_of(document: Document, path: tuple[str, ...]) -> dict[str, Any]:
    theta = lookup(document, (*path, "rope_theta"))
    return {} if theta is None else {"rope_theta": theta}


def _parse_value(key: str, text: str, pair: str) -> Any:
    try:
        value = parse_json(text.encode("utf-8", "surrogatepass"), file="--set")
    except CheckpointError:
        value = text
    try:
        TypeAdapter(_field_type(key)).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise _bad_setting(pair, f"{key}: {error.errors()[0]['msg']}") from None
    ignored = inherited_names(value)
    if ignored:
        raise _bad_setting(pair, f"{key} without {', '.join(ignored)}, which is not implemented")
    return value


def _field_type(key: str) -> Any:
    if key in _JOINED_FIELDS:
        return _JOINED_FIELDS[key]
    info = {**_body_fields(), **DraftConfig.model_fields}[key]
    return Annotated[info.annotation, info]


def _body_fields() -> dict[str, FieldInfo]:
    """The fields that only drafts with one body have."""
    parameters = [decoder.parameters.model_fields for decoder in DECODERS.values()]
    return {name: info for fields in parameters for name, info in fields.items()}


def _bad_setting(pair: str, expected: str) -> UsageError:
    return UsageError(
        Finding(
            code="bad-setting",
            message="--set cannot be understood",
            found=pair,
            expected=expected,
            hint="for instance --set mask_token_id=151669 --set target_layer_ids=[1,9,17]",
        )
    )
