"""What ``engines`` reports: what each engine really does with one checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.draft import Layout
from dspark_convert.schemas.plan import EngineNote


class EngineReport(OwnDocument):
    """One engine, at the version whose source was read."""

    engine: str
    version: str
    verdict: Literal["loads", "refuses", "silent"] = Field(
        description="when started with `launch`; silent: it runs, and drafts worse than it should"
    )
    launch: tuple[str, ...] = Field(
        description="shell commands, with TARGET for the target model; none if the engine refuses"
    )
    notes: tuple[EngineNote, ...] = Field(description="every claim that holds, gravest first")


class EnginesReport(OwnDocument):
    """A checkpoint as it lies on disk, and every engine's view of it."""

    schema_version: Literal[1] = 1
    name: str
    dialect: str
    layout: Layout
    layout_evidence: str
    block_size: PositiveInt
    num_speculative_tokens: PositiveInt = Field(
        description="the block size anchor-first, one less in the 1+N layout"
    )
    engines: tuple[EngineReport, ...]
    findings: tuple[Finding, ...]
