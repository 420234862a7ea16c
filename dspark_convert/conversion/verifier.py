"""The target model that a speculators draft names: given, or as it was recorded before."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_convert.checkpoint.names import shown_name
from dspark_convert.conversion.history import UNUSABLE, Origin, raise_errors
from dspark_convert.conversion.identity import identify
from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.errors import Finding, Findings, UsageError
from dspark_convert.formats.dialects.speculators import USE
from dspark_convert.formats.rules import Document, KeyPath, lookup
from dspark_convert.formats.target import TargetWeights, find_target_weights

_VERIFIER: KeyPath = (USE, "verifier")

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)


@dataclass(frozen=True)
class Verifier:
    """The target model as the result names it; ``weights`` only if its folder is at hand."""

    name: str
    architectures: tuple[str, ...]
    weights: TargetWeights | None = None

    def as_document(self) -> Document:
        """As ``speculators_config`` holds it."""
        return {"name_or_path": self.name, "architectures": list(self.architectures)}


def find_verifier(choice: str | None, origin: Origin | None, findings: Findings) -> Verifier:
    """What ``--verifier`` names: a folder, which is read, or a repository, which is not.

    Raises:
        CheckpointError, DraftError: the folder is not a readable model; ``verifier-unknown`` if
        nothing names one. UsageError: ``bad-verifier``.
    """
    recorded = lookup(origin.document, _VERIFIER) if origin else None
    known = recorded if isinstance(recorded, dict) else {}
    if choice is None:
        _validate_recorded(known, findings)
        verifier = _recorded_verifier(known)
        findings.note(
            "verifier-restored",
            f"the result names {verifier.name} as its verifier, as recorded before; only the last "
            "part of a path is recorded",
            hint="give --verifier to name another",
        )
        return verifier
    if os.path.isdir(choice):  # noqa: PTH112 - which, unlike Path.is_dir, tolerates every name
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
        f"{choice} is recorded as given; the pair was not checked, and its architectures are "
        "unknown",
        hint="give the folder of the target model to check the pair",
    )
    return Verifier(choice, ())


def _recorded_verifier(known: Mapping[str, Any]) -> Verifier:
    return Verifier(known["name_or_path"], _names(known.get("architectures")))


def _validate_recorded(known: Mapping[str, Any], findings: Findings) -> None:
    if isinstance(known.get("name_or_path"), str):
        return
    hint = "give --verifier OWNER/NAME, or --verifier DIR"
    if any(note.code == UNUSABLE for note in findings):
        hint += f"; {MANIFEST_FILE}, which may have recorded it, is ignored (manifest-unusable)"
    findings.error(
        "verifier-unknown",
        "a speculators draft names its target model, but nothing says which one",
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
            "the result names a folder on this machine as its verifier: speculators loads it only "
            "where that folder exists, and `vllm serve` of the draft alone refuses it",
            found=shown_name(choice),
            hint="give --verifier OWNER/NAME for a draft that will be published",
        )
    name = shown_name(choice) if identity.revision is None else identity.name
    return Verifier(name, _names(weights.checkpoint.config.get("architectures")), weights)
