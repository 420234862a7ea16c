"""Quantised weights: how each scheme is recognised, and whether it is carried or refused.

A scheme that names its ``companions`` is carried: its tensors are checked and copied as they are.
Any other is refused, by its name if a row recognises it, otherwise by what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.formats.decoders.base import TensorSpec
from dspark_convert.formats.rules import KeyPath, dotted, lookup

Companions = Callable[[str, TensorSpec], Mapping[str, TensorSpec]]

_DECLARING_KEYS = ("quantization_config", "compression_config")
QUANTISED_DTYPES = frozenset(
    {"U8", "I8", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E8M0"}
)
"""Element types in which schemes store weights or their scales."""
_SUFFIXES = (
    *("_scale", "_scale_inv", "_scale_2", "_packed"),
    *(".qweight", ".qzeros", ".scales"),
)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One way to store quantised weights."""

    name: str
    what: str
    """What such a draft does, for its refusal: "a draft which ..."."""
    recognise: Callable[[Mapping[str, Any], Collection[str]], bool]
    """Whether a config or the stored names belong to this scheme."""
    served_by: str = "the engine that it was quantised for"
    companions: Companions | None = None
    """Everything stored in place of a weight of this name and spec, by name, which may be its own;
    None: the scheme is refused."""

    def stored_form(
        self, expected: Mapping[str, TensorSpec], stored: Collection[str]
    ) -> dict[str, TensorSpec]:
        """What a loader expects if some weights are quantised: those that have a companion.

        What is stored decides, not the lists of a config, which writers leave incomplete.
        """
        specs: dict[str, TensorSpec] = {}
        for name, spec in expected.items():
            parts = self.companions(name, spec) if self.companions else {}
            quantised = any(part in stored for part in parts if part != name)
            specs |= parts if quantised else {name: spec}
        return specs


def _declared(config: Mapping[str, Any], key: str) -> Any:
    return lookup(config, ("quantization_config", key))


SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            name="nemotron-nvfp4",
            what="stores NVFP4 weights and its own embedding, and lets the target supply the head",
            served_by="SGLang",
            recognise=lambda config, names: (
                _declared(config, "quant_algo") == "W4A16_NVFP4"
                and config.get("has_embed_tokens") is True
            ),
        ),
        Scheme(
            name="modelopt",
            what="stores quantised weights with scales",
            recognise=lambda config, names: _declared(config, "quant_method") == "modelopt",
        ),
    )
}
"""Every named scheme, in the order in which they are tried."""


def find_scheme(config: Mapping[str, Any], names: Collection[str]) -> Scheme | None:
    """The scheme of a draft with these stored names; None: no known one."""
    return next((row for row in SCHEMES.values() if row.recognise(config, names)), None)


def refuse_quantised(
    config: Mapping[str, Any],
    container: KeyPath,
    tensors: Mapping[str, StoredTensor],
    findings: Findings,
) -> bool:
    """Report, once, weights that are quantised in no known way: code ``quantised-draft``.

    Args:
        config: the document, whose keys may say so.
        container: the object in it that holds the decoder's keys.
        tensors: the stored tensors, which decide.
        findings: takes the error.

    Returns:
        Whether stored tensors are quantised, so that nothing else can be said about them.
    """
    paths = [(*at, key) for key in _DECLARING_KEYS for at in dict.fromkeys([(), container])]
    declared = next((path for path in paths if lookup(config, path) is not None), None)
    quantised = sorted(
        name
        for name, tensor in tensors.items()
        if (tensor.dtype in QUANTISED_DTYPES and name.endswith(".weight"))
        or name.endswith(_SUFFIXES)
    )
    if quantised:
        first = tensors[quantised[0]]
        findings.error(
            "quantised-draft",
            f"{len(quantised)} tensors hold quantised weights or their scales",
            file=first.file,
            tensor=first.name,
            key=dotted(declared) if declared else None,
            expected="float weights (F32, F16 or BF16)",
            found=first.dtype,
            hint="convert the draft before it is quantised",
        )
    elif declared:
        findings.error(
            "quantised-draft",
            "the config describes quantised weights",
            file=CONFIG_FILE,
            key=dotted(declared),
            hint="convert the draft before it is quantised; if it is not quantised, remove the key",
        )
    return bool(quantised)
