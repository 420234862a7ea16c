"""Where a checkpoint is: in a local folder, or in a repository on the Hub at some revision."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.errors import Finding, UsageError

HUB_SCHEME = "hf://"

_REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
_NAMED = re.compile(_REPOSITORY)
_ADDRESS = re.compile(rf"(?P<repository>{_REPOSITORY})(@(?P<revision>[\w.][\w./-]{{0,254}}))?")


@dataclass(frozen=True, slots=True)
class HubLocation:
    """A model repository ``owner/name``; ``revision``: branch, tag or commit, None the default."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.revision is None else f"@{self.revision}"
        return f"{HUB_SCHEME}{self.repository}{suffix}"


def locate(text: str) -> Path | HubLocation:
    """Read ``hf://owner/name[@revision]``, ``owner/name`` or a path; what exists locally is a path.

    Raises ``UsageError``: ``bad-hub-address`` for an ``hf://`` address that names no model.
    """
    if text.startswith(HUB_SCHEME):
        return _address(text)
    if is_repository_name(text) and not os.path.lexists(text):
        return HubLocation(text)
    return Path(text)


def is_repository_name(text: str) -> bool:
    """Whether ``text`` is of the form ``owner/name``."""
    return _NAMED.fullmatch(text) is not None


def shadowed(text: str) -> bool:
    """Whether a local path was chosen although the text could name a repository too."""
    return is_repository_name(text) and os.path.lexists(text)


def repository_name(text: str) -> str:
    """``owner/name`` as typed, checked.

    Raises ``UsageError``: ``bad-hub-address``.
    """
    location = _address(HUB_SCHEME + text.removeprefix(HUB_SCHEME))
    if location.revision is not None:
        raise _bad_address(text, "OWNER/NAME, without a revision")
    return location.repository


def _address(text: str) -> HubLocation:
    match = _ADDRESS.fullmatch(text.removeprefix(HUB_SCHEME))
    if match is None or ".." in text:
        raise _bad_address(text, "hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    return HubLocation(match["repository"], match["revision"])


def _bad_address(text: str, expected: str) -> UsageError:
    return UsageError(
        Finding(
            code="bad-hub-address",
            message="this does not name a model repository of the Hub",
            found=text,
            expected=expected,
        )
    )
