"""A published shape of a draft as data: how it is recognised, and where its keys are.

One module of this package fills in these values for one dialect, and one row of ``DIALECTS``
registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dspark_convert.formats.decoders import DEFAULT_DECODER, Decoder, decoder_of
from dspark_convert.formats.rules import FieldRule, KeyPath
from dspark_convert.schemas.base import SourceDocument
from dspark_convert.schemas.draft import DraftConfig


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A published shape of a draft, with the keys of one body in it."""

    name: str
    """Its name in plans, manifests and reports."""
    title: str
    """Its name in messages."""
    mark: str
    """What a config must hold to be recognised, for the refusal of one that does not."""
    recognise: Callable[[Mapping[str, Any]], tuple[str, ...]]
    """The evidence that a config is in this dialect; empty: it is not."""
    document: type[SourceDocument]
    """The types of its keys."""
    draft_rules: tuple[FieldRule, ...]
    """Where everything but the body is kept."""
    constants_of: Callable[[Decoder], Mapping[KeyPath, Any]]
    """Keys with the same value in every file of the dialect that holds a draft of one body."""
    body: Decoder = DEFAULT_DECODER
    """The body whose keys are read and written; ``of`` changes it."""
    decoder: KeyPath = ()
    """The object that holds the body's keys."""
    decoder_keys: frozenset[str] = frozenset()
    """Keys of that object that describe no draft: transformers' own, the target's leftovers."""
    containers: tuple[KeyPath, ...] = ()
    """Nested objects whose keys are accounted for one by one."""
    own_keys: Mapping[KeyPath, str] = field(default_factory=dict)
    """Keys that mean nothing elsewhere, with the reason why a conversion leaves them out."""
    foreign_keys: Mapping[KeyPath, str] = field(default_factory=dict)
    """Keys that a file of the dialect must not have, and what they would cause."""
    undeclared_layout: str | None = None
    """Why a file that says nothing about its layout is anchor-first; None: it must say."""
    always_written: frozenset[str] = frozenset()
    """Fields that are written even where their absence would mean the same elsewhere."""
    supplied: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are written even though they are unknown, and their values."""
    nulls: tuple[KeyPath, ...] = ()
    """Keys that are written as null if they have no value."""
    added: Mapping[str, str] = field(default_factory=dict)
    """Why a conversion adds a key that its source lacks; by dotted name."""
    verifiers: Callable[[DraftConfig], tuple[str, ...]] = lambda config: ()
    """Tensors that its own library takes from the target, over whatever is stored."""
    tags: tuple[str, ...] = ()
    """Tags for the model card of such a draft."""

    @cached_property
    def rules(self) -> tuple[FieldRule, ...]:
        """Every rule: those of the body, then those of the draft."""
        return (*self.body.rules(self.decoder), *self.draft_rules)

    @cached_property
    def constants(self) -> Mapping[KeyPath, Any]:
        """Keys with the same value in every file that holds a draft of this body."""
        return self.constants_of(self.body)

    def with_body(self, body: Decoder) -> Dialect:
        """The dialect for drafts with another body."""
        return self if body is self.body else replace(self, body=body)

    def of(self, config: DraftConfig) -> Dialect:
        """The dialect for one draft."""
        return self.with_body(decoder_of(config))

    def key_of(self, path: KeyPath) -> KeyPath:
        """The key that accounts for ``path``: one of the top level, or one inside a container."""
        return path[:2] if path[:1] in self.containers else path[:1]

    def keys_of(self, fields: Iterable[str]) -> tuple[KeyPath, ...]:
        """The keys that a writer fills for some fields, each once."""
        rules = [rule for name in fields if (rule := self.rule(name)) is not None]
        written = [place.path for rule in rules for place in rule.places if place.written]
        return tuple(dict.fromkeys(self.key_of(path) for path in written))

    def rule(self, name: str) -> FieldRule | None:
        """The rule of a field."""
        return next((rule for rule in self.rules if rule.field == name), None)
