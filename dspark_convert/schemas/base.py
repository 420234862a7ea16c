"""The two kinds of document: those of others, and ours."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SourceDocument(BaseModel):
    """A document that someone else defines: unknown keys are kept, types are not coerced."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class OwnDocument(BaseModel):
    """A document that we define: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
