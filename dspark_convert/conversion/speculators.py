"""A draft rendered to speculators: what only that form states, and what it cannot express.

Source: speculators 0.9.0, ``models/dflash/core.py``.
"""

from __future__ import annotations

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.conversion.history import UNUSABLE, Origin
from dspark_convert.conversion.rendering import (
    Rendering,
    means,
    plain_rendering,
    restored_rendering,
)
from dspark_convert.conversion.verifier import Verifier
from dspark_convert.errors import Findings
from dspark_convert.formats.dialects import SPECULATORS
from dspark_convert.formats.dialects.speculators import USE
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.rules import Document
from dspark_convert.schemas.draft import DraftConfig

_DENSE_ONLY = ("num_anchors", "num_target_layers")
"""Fields that a conversion to dense adds for dense loaders, or from the given target."""


def validate_expressible(config: DraftConfig, findings: Findings) -> None:
    """Refuse what a speculators checkpoint cannot hold: code ``not-expressible``."""
    if config.target_hidden_size not in (None, config.hidden_size):
        _refuse(
            "target_hidden_size",
            "speculators sizes fc for features as wide as the draft itself",
            config.hidden_size,
            config.target_hidden_size,
            findings,
        )
    if config.draft_vocab_size > config.vocab_size:
        _refuse(
            "draft_vocab_size",
            "speculators takes a draft vocabulary of a different size to be part of the target's",
            f"at most {config.vocab_size}",
            config.draft_vocab_size,
            findings,
        )


def speculators_rendering(
    source: DraftSource,
    config: DraftConfig,
    verifier: Verifier,
    origin: Origin | None,
    findings: Findings,
) -> Rendering:
    """The speculators form of a draft: as its origin spelled it if there is one, otherwise anew."""
    if origin is not None:
        restored = restored_rendering(config, SPECULATORS, origin, untold=_DENSE_ONLY)
        if restored is not None:
            _restore_use(restored.document, config, verifier)
            if means(restored, config, source.tensors, aside=_DENSE_ONLY):
                return restored
        findings.note(
            UNUSABLE,
            "what an earlier conversion recorded does not describe this draft; it is ignored",
        )
    rendering = plain_rendering(config, SPECULATORS)
    rendering.document[USE] = _use(config, verifier)
    readable = means(rendering, config, source.tensors, aside=_DENSE_ONLY)
    assert readable, "rendering and reading disagree"
    findings.note(
        "origin-unknown",
        "no manifest says what this draft was in speculators: its library version, the details of "
        "its proposal method and keys that were null are unknown; the method is written as greedy "
        f"with {config.num_speculative_tokens} tokens",
        file=CONFIG_FILE,
        key=USE,
    )
    return rendering


def _refuse(key: str, message: str, expected: object, found: object, findings: Findings) -> None:
    findings.error(
        "not-expressible",
        message,
        file=CONFIG_FILE,
        key=key,
        expected=expected,
        found=found,
        hint="keep the draft in the dense form",
    )


def _use(config: DraftConfig, verifier: Verifier) -> Document:
    """``speculators_config`` as speculators 0.9.0 writes it for a draft that it trained."""
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": config.num_speculative_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": verifier.as_document(),
    }


def _restore_use(document: Document, config: DraftConfig, verifier: Verifier) -> None:
    """Keep the recorded use; name the verifier, and correct a count of the other layout.

    A method may propose fewer tokens than a block has. Only counts that imply a layout must match
    it, and none may exceed the block (which may have become shorter).
    """
    use = document.get(USE)
    if not use or not use.get("proposal_methods"):
        document[USE] = _use(config, verifier)
        return
    use["verifier"] = {**(use.get("verifier") or {}), **verifier.as_document()}
    for method in use["proposal_methods"]:
        tokens = method.get("speculative_tokens")
        if tokens is None or tokens >= config.block_size - 1:
            method["speculative_tokens"] = config.num_speculative_tokens
