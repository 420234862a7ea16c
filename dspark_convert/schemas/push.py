"""What ``push`` reports."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dspark_convert.schemas.base import OwnDocument


class PushReport(OwnDocument):
    """A conversion on the Hub."""

    schema_version: Literal[1] = 1
    repository: str = Field(description="owner/name")
    url: str = Field(description="page of the repository, or of the pull request")
    action: Literal["created", "updated", "proposed", "unchanged"] = Field(
        description="proposed: in a pull request; unchanged: the Hub held the same files"
    )
    commit: str = Field(description="the commit that holds the files")
    private: bool | None = Field(description="of a repository made here; null: it existed")
    uploaded: tuple[str, ...] = Field(description="files that were added or changed")
    deleted: tuple[str, ...] = Field(
        description="weight files with former content that were removed"
    )
    unchanged: tuple[str, ...] = Field(description="files that were there already")
