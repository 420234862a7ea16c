"""speculators 0.9.0: the library that trains drafts, and reads its own form only."""

from __future__ import annotations

import json

from dspark_convert.engines.base import Claim, Engine
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import verifiers_tensors

NAME = "speculators"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        NAME,
        "refuses",
        lambda d: not d.speculators,
        "it reads its own form only and cannot convert another DSpark draft",
        "convert/entrypoints.py:153-161",
        "dialect-unread",
        "convert it with to-speculators",
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.speculators and not d.layout_declared and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first",
        "models/dspark/config.py:28-38",
        "layout-misread",
        "add sample_from_anchor: false to the config",
    ),
    Claim(
        NAME,
        "loads",
        lambda d: (
            d.speculators
            and not lookup(d.document, ("speculators_config", "verifier", "name_or_path"))
        ),
        "no verifier is named, and its embedding and head are taken from there",
        "models/dflash/core.py",
        "verifier-missing",
        "name the target in speculators_config.verifier.name_or_path",
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.speculators and bool(set(verifiers_tensors(d.config)) & set(d.tensors)),
        "the verifier's embedding and full-vocabulary head overwrite the stored ones on load: "
        "right only if they are equal",
        "models/dflash/core.py",
        "own-weights-overwritten",
        "leave them out if they are the verifier's: to-speculators --verifier DIR compares them",
    ),
)


def _commands(path: str, num_speculative_tokens: int) -> tuple[tuple[str, ...], ...]:
    """The library has no server; this loads the draft as its own code does."""
    del num_speculative_tokens
    load = (
        "from speculators.models.dspark import DSparkDraftModel; "
        f"DSparkDraftModel.from_pretrained({json.dumps(path)})"
    )
    return (("python", "-c", load),)


SPECULATORS_LIBRARY = Engine(
    key="speculators",
    name=NAME,
    version="0.9.0",
    claims=CLAIMS,
    commands=_commands,
    serves=False,
)
