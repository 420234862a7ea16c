"""What a checkpoint and its files are called, on disk and in documents that travel."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeGuard

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_HUB_FOLDER = re.compile(r"models--(?:(?P<owner>.+?)--)?(?P<name>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_commit(value: object) -> TypeGuard[str]:
    """Whether ``value`` is a whole commit id, as Git and the Hub write it."""
    return isinstance(value, str) and _COMMIT.fullmatch(value) is not None


def is_hub_snapshot(folder: Path) -> bool:
    """Whether a folder, links resolved, is ``<repository>/snapshots/<commit>`` as the Hub caches.

    Beside ``snapshots`` lie the ``blobs`` that its links point to.
    """
    return folder.parent.name == "snapshots" and is_commit(folder.name)


def repository_of(folder: Path) -> tuple[str, str | None]:
    """Repository and commit of a snapshot of the Hub cache; else the folder's name and None."""
    real = folder.resolve()
    match = _HUB_FOLDER.fullmatch(real.parent.parent.name)
    if match and is_hub_snapshot(real):
        return "/".join(filter(None, match.group("owner", "name"))), real.name
    return real.name, None


def display_name(folder: Path) -> str:
    """What a report calls a checkpoint: ``owner/name@commit``, or the folder's name."""
    name, revision = repository_of(folder)
    return shown_name(name if revision is None else f"{name}@{revision}")


def shown_name(name: str) -> str:
    """A file name as documents hold it: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def hub_digest(path: Path) -> str | None:
    """What the Hub cache calls the bytes of a file of a snapshot; None for any other file.

    The cache names a large file after its SHA-256 and a small one after its Git id, a SHA-1. The
    next link says so, not the last: that one may lead on to a store of all repositories.
    """
    blob = path.readlink() if path.is_symlink() else Path()
    return blob.name if blob.parent.name == "blobs" and _DIGEST.fullmatch(blob.name) else None
