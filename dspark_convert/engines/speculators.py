"""speculators 0.9.0: the library that trains drafts, and reads only its own form."""

from __future__ import annotations

import json

from dspark_convert.engines.base import Claim, Engine
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import verifiers_tensors

CLAIMS: tuple[Claim, ...] = (
    Claim(
        verdict="refuses",
        when=lambda d: not d.nested,
        reason="it reads only its own form and cannot convert other DSpark drafts",
        evidence="convert/entrypoints.py:153-161",
        code="dialect-unread",
        way_out="convert it with to-speculators",
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.nested and not d.layout_declared and d.bonus_anchor,
        reason="a missing sample_from_anchor is read as anchor-first",
        evidence="models/dspark/config.py:28-38",
        code="layout-misread",
        way_out="add sample_from_anchor: false to the config",
    ),
    Claim(
        verdict="loads",
        when=lambda d: (
            d.nested and not lookup(d.document, ("speculators_config", "verifier", "name_or_path"))
        ),
        reason="no verifier is named, but embedding and head are taken from it",
        evidence="models/dflash/core.py",
        code="verifier-missing",
        way_out="name the target in speculators_config.verifier.name_or_path",
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.nested and bool(set(verifiers_tensors(d.config)) & set(d.tensors)),
        reason="the verifier's embedding and full-vocabulary head overwrite the stored ones on "
        "load: right only if they are equal",
        evidence="models/dflash/core.py",
        code="own-weights-overwritten",
        way_out="leave them out if they are the verifier's: to-speculators --verifier DIR "
        "compares them",
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
    name="speculators",
    version="0.9.0",
    claims=CLAIMS,
    commands=_commands,
    reads_dense=False,
    serves=False,
)
