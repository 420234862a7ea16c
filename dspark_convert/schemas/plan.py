"""The conversion plan (before any weight is read) and the manifest (inside the result)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.draft import DraftConfig, Layout

TensorAction = Literal["copied", "renamed", "transformed", "filled", "added", "dropped"]
KeyAction = Literal["copied", "moved", "transformed", "added", "overridden", "dropped"]


class SourceFile(OwnDocument):
    """One weight file of the source."""

    name: str
    size: NonNegativeInt = Field(description="bytes")
    header_sha256: str = Field(description="of the safetensors header: names, shapes, offsets")
    sha256: str | None = Field(
        description="of all bytes, hashed while they were converted; null in a plan, and of files "
        "that are only read in part"
    )


class SourceIdentity(OwnDocument):
    """What was converted; the repository is known if the folder is a Hub snapshot."""

    name: str = Field(description="folder name, or org/name of the repository")
    revision: str | None = Field(description="commit of the repository, when known")
    config_sha256: str
    files: tuple[SourceFile, ...]


class TensorStep(OwnDocument):
    """What happens to one tensor."""

    action: TensorAction
    source: str | None = Field(description="stored name; in the target's checkpoint when filled")
    source_file: str | None
    name: str | None = Field(description="name in the output; null when dropped")
    file: str | None = Field(description="file of the output; null when dropped")
    dtype: str
    shape: tuple[NonNegativeInt, ...]
    reason: str


class KeyStep(OwnDocument):
    """What happens to one config key; nested keys are written with dots."""

    action: KeyAction
    source: str | None = Field(description="null when added")
    names: tuple[str, ...] = Field(description="keys of the output; empty when dropped")
    reason: str


class SideFileStep(OwnDocument):
    """What happens to a file that is neither config nor weights."""

    action: Literal["copied", "left"]
    name: str
    reason: str


class EngineNote(OwnDocument):
    """What one serving engine will do with the result."""

    engine: str
    version: str
    verdict: Literal["loads", "refuses", "silent"] = Field(
        description="silent: loads, but drafts worse than it should"
    )
    code: str = Field(description="the kind of fault; stable")
    reason: str
    evidence: str = Field(description="source file of the engine, or how this was established")
    way_out: str | None = Field(default=None, description="what to do about it")
    avoided_by_launch: bool = Field(
        default=False, description="the launch line that `engines` prints avoids the fault"
    )


class ConversionRecord(OwnDocument):
    """What was converted, and what became of each part: enough to undo it."""

    source: SourceIdentity
    dialect: str
    target: SourceIdentity | None = Field(description="where missing tensors come from")
    overrides: dict[str, Any]
    source_config: dict[str, Any] = Field(
        description="source keys that the result does not repeat unchanged, for the way back"
    )
    tensors: tuple[TensorStep, ...]
    keys: tuple[KeyStep, ...]


class EarlierConversion(ConversionRecord):
    """A conversion that produced the source: what is needed to undo it."""


class ConversionAccount(ConversionRecord):
    """What a plan announces and the manifest of the result repeats."""

    output_dialect: str = Field(default="dense", description="that of the result")
    layout_evidence: str
    written_for: str = Field(
        default="reference", description="the engine whose spelling the result has"
    )
    vocabulary_expanded: bool = Field(
        default=False, description="a reduced vocabulary was made full, with the same proposals"
    )
    side_files: tuple[SideFileStep, ...]
    history: tuple[EarlierConversion, ...] = Field(
        default=(), description="conversions that made the source, newest first"
    )
    findings: tuple[Finding, ...]


# Bases of their own, so that a document begins with its version.
class _PlanVersion(OwnDocument):
    schema_version: Literal[1] = 1


class _ManifestVersion(OwnDocument):
    schema_version: Literal[2] = 2
    tool: Literal["dspark-convert"] = "dspark-convert"
    tool_version: str


class ConversionPlan(ConversionAccount, _PlanVersion):
    """Everything a conversion will do, known from headers and config alone."""

    evidence: tuple[str, ...] = Field(description="why the source was taken for that dialect")
    draft: DraftConfig
    num_speculative_tokens: int
    config: dict[str, Any] = Field(description="config.json of the result")
    output_bytes: dict[str, int] = Field(description="weight files of the result and their sizes")
    engines: tuple[EngineNote, ...]


class OutputFile(OwnDocument):
    """One file of the result."""

    name: str
    size: NonNegativeInt = Field(description="bytes")
    sha256: str | None = Field(
        description="of all bytes; null when a version before 0.2 wrote the manifest"
    )
    header_sha256: str | None = Field(
        default=None, description="of the safetensors header, of files that hold weights"
    )


class ConversionManifest(ConversionAccount, _ManifestVersion):
    """``dspark_conversion.json``: what the result was made from, and how to go back.

    Version 1, which is read too, gave of weight files the hash of their header only.
    """

    layout: Layout
    files: tuple[OutputFile, ...]

    @model_validator(mode="before")
    @classmethod
    def _from_version_1(cls, document: Any) -> Any:
        if not isinstance(document, dict) or document.get("schema_version") != 1:
            return document
        files = document.get("files")
        if not isinstance(files, list | tuple):
            return document
        return {
            **document,
            "schema_version": 2,
            "files": [_with_header_hash(file) for file in files],
        }


def _with_header_hash(file: Any) -> Any:
    """A file of a manifest of version 1, where ``sha256`` is of the header if it holds weights."""
    weights = isinstance(file, dict) and str(file.get("name")).endswith(".safetensors")
    return {**file, "sha256": None, "header_sha256": file.get("sha256")} if weights else file
