"""The two kinds of document, those of others and ours, and the words that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo
from pydantic_core import PydanticKnownError

FloatName = Literal["float32", "float16", "bfloat16"]
"""The float types of drafts, targets and traces."""


class SourceDocument(BaseModel):
    """A document that someone else defines: unknown keys are kept, types are not coerced."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class OwnDocument(BaseModel):
    """A document that we define: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def row_id(table: str) -> Callable[[str, ValidationInfo], str]:
    """A validator for the id of a row of a table that the layers above hold.

    What we write has its ids from the rows. Whoever reads a document from outside gives the ids
    that there are as ``context={table: ids}``; others are then refused as those of an enum are.
    """

    def validate(value: str, info: ValidationInfo) -> str:
        ids = (info.context or {}).get(table)
        if ids is not None and value not in ids:
            *others, last = (f"'{known}'" for known in ids)
            expected = f"{', '.join(others)} or {last}" if others else last
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value

    return validate
