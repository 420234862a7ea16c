"""The body of a draft as data: its config keys, its tensors, its limits.

One module of this package fills in these values for one body, and one row of ``DECODERS`` registers
it; nothing outside the package names a body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.checkpoint.dtypes import FLOATS
from dspark_convert.errors import Findings
from dspark_convert.formats.rules import FieldRule, KeyPath
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.draft import DraftConfig

INTEGERS = frozenset({"I64"})


@dataclass(frozen=True)
class TensorSpec:
    """What a loader expects: shape, dtypes as safetensors names them, and whether it is required.

    One that is not ``required`` may be absent: the target supplies it, or absence means zero.
    """

    shape: tuple[int, ...]
    dtypes: frozenset[str] = FLOATS
    required: bool = True


class NoParameters(OwnDocument):
    """The parameters of a body that every field of ``DraftConfig`` describes."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The body of a draft: everything between the features of the target and the heads."""

    name: str
    """Its name in ``DraftConfig.decoder``."""
    title: str
    """Its name in messages: "a TITLE-style decoder"."""
    architectures: tuple[str, ...]
    """Class names of the dense form; the first is the one that is written."""
    model_types: tuple[str, ...]
    """Values of ``model_type``; the first is the one that is written."""
    marks: Callable[[Mapping[str, Any], Collection[str]], bool] = lambda config, names: False
    """Whether a config, or the stored names, can only be of a draft with this body."""
    rules: Callable[[KeyPath], tuple[FieldRule, ...]]
    """The rules of its keys, where a dialect keeps them in the object at a path."""
    tensors: Callable[[DraftConfig], dict[str, TensorSpec]]
    """Its tensors by canonical name, without embedding, output head and the heads of DSpark."""
    validate: Callable[[DraftConfig, Findings], None]
    """Reports values that it cannot have."""
    parameters: type[OwnDocument] = NoParameters
    """What ``DraftConfig.decoder_parameters`` holds: the fields that only this body has."""
    fc: str = "fc.weight"
    """The tensor [H, features] that takes in the target's features."""
    understood: frozenset[str] = frozenset()
    """Keys of ``arithmetic`` that it implements, besides those that its rules read."""
    bidirectional: bool = True
    """Whether layers of full attention see the whole block; a causal one is then refused."""

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        """Whether a draft with these stored names has this body, and no other."""
        named = not set(self.architectures).isdisjoint(architectures_of(config))
        return named or self.marks(config, names)


def architectures_of(config: Mapping[str, Any]) -> list[str]:
    """The class names of a config, ignoring anything else there."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
