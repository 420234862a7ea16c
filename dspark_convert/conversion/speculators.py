"""The speculators form of a draft: its config, what only it says, and what it cannot say.

Sources: FORMATS, sections 1.2, 2.5 and 5; speculators 0.9.0, ``models/dflash/core.py``.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dspark_convert.checkpoint.names import shown_name
from dspark_convert.conversion.history import UNUSABLE, Origin, find_origin, raise_errors
from dspark_convert.conversion.identity import identify
from dspark_convert.conversion.keys import LEFT_OUT, Rendering
from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.errors import Finding, Findings, UsageError
from dspark_convert.formats.detect import CONFIG
from dspark_convert.formats.dialects import SPECULATORS
from dspark_convert.formats.overrides import Overrides, apply_overrides
from dspark_convert.formats.parse import parse_config, render
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.rules import (
    Document,
    KeyPath,
    assign,
    dotted,
    lookup,
    read_field,
    remove,
    walk_keys,
)
from dspark_convert.formats.target import TargetWeights, find_target_weights
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import EarlierConversion
from dspark_convert.schemas.source import SpeculatorsConfig

USE = "speculators_config"
"""The key that says how a draft is meant to be used, and with which target."""

_VERIFIER: KeyPath = (USE, "verifier")

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)

_DENSE_ONLY = ("num_anchors", "num_target_layers")
"""Fields that a conversion to dense adds for dense loaders, or from the target it was given."""

_ADDED: Mapping[str, str] = {
    "architectures": "the class that speculators names in what it saves",
    "speculators_model_type": "speculators looks its class up by it",
    "transformer_layer_config.model_type": "the class of the decoder's config",
    "tie_word_embeddings": "draft embedding and head are separate tensors",
    "sample_from_anchor": "the layout, explicit: readers disagree about its absence",
    "draft_vocab_size": "speculators' default is 32000, whatever the target has",
    "aux_hidden_state_layer_ids": "target_layer_ids + 1, the spelling of speculators",
    USE: "how the draft is meant to be used, and with which target",
}
_RESTORED = "as it was before the earlier conversion, whose manifest recorded it"


@dataclass(frozen=True)
class Verifier:
    """The target model as the result names it; ``weights`` only where its folder is at hand."""

    name: str
    architectures: tuple[str, ...]
    weights: TargetWeights | None = None


def find_speculators_origin(
    source: DraftSource, history: tuple[EarlierConversion, ...]
) -> Origin | None:
    """What a draft was in speculators; a draft that is one now says so itself."""
    if source.dialect is not SPECULATORS:
        return find_origin(history, source.document, source.dialect, SPECULATORS)
    overruled = apply_overrides(source.document, SPECULATORS, source.overrides)
    keys = [path for path, _ in walk_keys(source.document, SPECULATORS.containers)]
    for path in keys:
        if path[-1] in LEFT_OUT or path in SPECULATORS.foreign_keys:
            remove(overruled, path)
    return Origin(overruled, {path: path for path in keys}, frozenset(), frozenset())


def find_verifier(choice: str | None, origin: Origin | None, findings: Findings) -> Verifier:
    """What ``--verifier`` names: a folder, which is read, or a repository, which is not.

    Raises:
        CheckpointError, DraftError: the folder is no readable model; ``verifier-unknown`` when
            nothing names one.
        UsageError: ``bad-verifier``.
    """
    recorded = lookup(origin.document, _VERIFIER) if origin else None
    known = recorded if isinstance(recorded, dict) else {}
    if choice is None:
        _validate_recorded(known, findings)
        verifier = _recorded_verifier(known)
        findings.note(
            "verifier-restored",
            f"the result names {verifier.name} as its verifier, as was recorded before; of a path "
            "only the last part is recorded",
            hint="give --verifier to name another",
        )
        return verifier
    if os.path.isdir(choice):  # noqa: PTH112 - which, unlike Path.is_dir, bears every name
        return _local_verifier(choice, findings)
    if _REPOSITORY.fullmatch(choice) is None:
        raise UsageError(
            Finding(
                code="bad-verifier",
                message="--verifier is neither a folder that exists nor the name of a repository",
                found=choice,
                expected="DIR, or OWNER/NAME",
                hint="create or correct the path, or give the repository of the target model",
            )
        )
    if choice == known.get("name_or_path"):
        return _recorded_verifier(known)
    findings.note(
        "verifier-not-read",
        f"{choice} is recorded as it is; the pair was not checked, its architectures are not known",
        hint="give the folder of the target model to check the pair",
    )
    return Verifier(choice, ())


def validate_expressible(config: DraftConfig, findings: Findings) -> None:
    """Refuse what a speculators checkpoint has no place for: code ``not-expressible``."""
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
            "speculators takes a draft vocabulary of another size for a part of the target's",
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
    """The speculators form of a draft: as its origin spelled it where there is one, else anew."""
    if origin is not None:
        restored = _restored_rendering(config, verifier, origin)
        if restored is not None and _reads_back(restored.document, config, source):
            return restored
        findings.note(
            UNUSABLE,
            "what an earlier conversion recorded does not describe this draft; it is left aside",
        )
    document = render(config, SPECULATORS)
    document[USE] = _use(config, verifier)
    assert _reads_back(document, config, source), "rendering and reading disagree"
    findings.note(
        "origin-unknown",
        "no manifest says what this draft was in speculators: its library version, the details of "
        "its proposal method and keys that were null are not known; the method is written as "
        f"greedy with {config.num_speculative_tokens} tokens",
        file=CONFIG,
        key=USE,
    )
    return Rendering(SPECULATORS, document, _ADDED)


def _recorded_verifier(known: Mapping[str, Any]) -> Verifier:
    return Verifier(known["name_or_path"], _names(known.get("architectures")))


def _validate_recorded(known: Mapping[str, Any], findings: Findings) -> None:
    if isinstance(known.get("name_or_path"), str):
        return
    hint = "give --verifier OWNER/NAME, or --verifier DIR"
    if any(note.code == UNUSABLE for note in findings):
        hint += f"; {MANIFEST_FILE}, which may have recorded it, is left aside (manifest-unusable)"
    findings.error(
        "verifier-unknown",
        "a speculators draft names its target model, and nothing says which",
        hint=hint,
    )
    raise_errors(findings)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in value) if isinstance(value, list) else ()


def _local_verifier(choice: str, findings: Findings) -> Verifier:
    weights = find_target_weights(Path(choice))
    identity = identify(weights.checkpoint)
    if identity.revision is None:
        findings.note(
            "verifier-is-local",
            "the result names a folder of this machine as its verifier: speculators loads it only "
            "where that folder is, and `vllm serve` of the draft alone refuses it",
            found=shown_name(choice),
            hint="give --verifier OWNER/NAME for a draft that is published",
        )
    name = shown_name(choice) if identity.revision is None else identity.name
    return Verifier(name, _names(weights.checkpoint.config.get("architectures")), weights)


def _refuse(key: str, message: str, expected: object, found: object, findings: Findings) -> None:
    findings.error(
        "not-expressible",
        message,
        file=CONFIG,
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
        "verifier": _verifier_document(verifier),
    }


def _verifier_document(verifier: Verifier) -> Document:
    return {"name_or_path": verifier.name, "architectures": list(verifier.architectures)}


def _restored_rendering(
    config: DraftConfig, verifier: Verifier, origin: Origin
) -> Rendering | None:
    """The origin's document, with every field that means something else now written anew."""
    document = copy.deepcopy(origin.document)
    if not _well_typed(document):
        return None
    for path, value in SPECULATORS.constants.items():
        if lookup(document, path) is None:
            assign(document, path, copy.copy(value))
    needless = {
        name: "added by an earlier conversion, for dense loaders"
        for name in (*_DENSE_ONLY, *_carried_keys())
        if name in origin.added and lookup(document, (name,)) is None
    }
    changed = _changed_fields(document, config, needless)
    document = apply_overrides(document, SPECULATORS, Overrides(fields=changed))
    _restore_use(document, config, verifier)
    restored = {
        dotted(path): _RESTORED
        for path, _ in walk_keys(origin.document, SPECULATORS.containers)
        if path not in SPECULATORS.keys_of(changed)
    }
    return Rendering(SPECULATORS, document, {**_ADDED, **restored}, origin.homes, needless)


def _carried_keys() -> list[str]:
    places = [place for rule in SPECULATORS.rules for place in rule.places]
    return [dotted(place.path) for place in places if place.carried]


def _changed_fields(
    document: Document, config: DraftConfig, needless: Mapping[str, str]
) -> dict[str, Any]:
    """Fields of which ``document`` says something else than ``config``, or nothing."""
    today, unheard = render(config, SPECULATORS), Findings()
    changed = {}
    for rule in SPECULATORS.rules:
        value = read_field(rule, today, CONFIG, unheard)
        before = read_field(rule, document, CONFIG, unheard)
        if value.paths and value.value != before.value and rule.field not in needless:
            changed[rule.field] = value.value
    return changed


def _restore_use(document: Document, config: DraftConfig, verifier: Verifier) -> None:
    """Keep the recorded use; name the verifier, and correct a count of the other layout.

    A method may propose fewer tokens than a block has; only counts that tell a layout must be its,
    and none may be more than a block has (it may have become shorter).
    """
    use = document.get(USE)
    if not use or not use.get("proposal_methods"):
        document[USE] = _use(config, verifier)
        return
    use["verifier"] = {**(use.get("verifier") or {}), **_verifier_document(verifier)}
    for method in use["proposal_methods"]:
        tokens = method.get("speculative_tokens")
        if tokens is None or tokens >= config.block_size - 1:
            method["speculative_tokens"] = config.num_speculative_tokens


def _well_typed(document: Document) -> bool:
    try:
        SpeculatorsConfig.model_validate(document)
    except ValidationError:
        return False
    return True


def _reads_back(document: Document, config: DraftConfig, source: DraftSource) -> bool:
    """Whether a speculators config means ``config``, what only dense asks for aside."""
    parsed = parse_config(document, SPECULATORS, source.tensors, Findings())
    if parsed is None or not _well_typed(document):
        return False
    aside = dict.fromkeys(_DENSE_ONLY)
    return parsed.config.model_copy(update=aside) == config.model_copy(update=aside)
