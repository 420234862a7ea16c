"""What ``inspect`` and ``check`` report about a checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.bundled import BundledDraft
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import EngineNote


class Inspection(OwnDocument):
    """A draft as it lies on disk. Fields that could not be established are null."""

    schema_version: Literal[1] = 1
    name: str
    dialect: str | None
    evidence: tuple[str, ...]
    draft: DraftConfig | None
    bundled: BundledDraft | None = Field(
        default=None, description="a draft inside its DeepSeek-V4 target"
    )
    layout_evidence: str | None
    num_speculative_tokens: int | None
    vocabulary_table: str | None
    weight_files: tuple[str, ...]
    tensors: NonNegativeInt
    parameters: NonNegativeInt
    weight_bytes: NonNegativeInt
    dtypes: dict[str, int]
    absent: tuple[str, ...] | None
    not_understood: tuple[str, ...] = Field(
        default=(),
        description="unknown config keys whose names suggest that something is computed with them",
    )
    engines: tuple[EngineNote, ...]
    findings: tuple[Finding, ...]


class CheckReport(OwnDocument):
    """The static checks of a checkpoint: every finding at once."""

    schema_version: Literal[1] = 1
    name: str
    verdict: Literal["pass", "fail"]
    findings: tuple[Finding, ...]
