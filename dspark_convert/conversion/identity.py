"""What a checkpoint is called in documents that travel: no name of anybody's folders."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dspark_convert.checkpoint.files import hash_range, open_regular
from dspark_convert.checkpoint.folder import Checkpoint, WeightFile
from dspark_convert.conversion.keys import without_local_paths
from dspark_convert.schemas.plan import SourceFile, SourceIdentity

_HUB_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def identify(checkpoint: Checkpoint) -> SourceIdentity:
    """Name a checkpoint without naming anybody's folders: the repository, or the folder's name."""
    name, revision = repository_of(checkpoint.folder)
    return SourceIdentity(
        name=shown_name(str(without_local_paths(name))),
        revision=revision,
        config_sha256=checkpoint.config_sha256,
        files=tuple(_source_file(file) for file in checkpoint.files),
    )


def repository_of(folder: Path) -> tuple[str, str | None]:
    """Repository and commit of a snapshot of the Hub cache; else the folder's name and None."""
    real = folder.resolve()
    match = _HUB_FOLDER.fullmatch(real.parent.parent.name)
    if match and real.parent.name == "snapshots" and _COMMIT.fullmatch(real.name):
        return f"{match['owner']}/{match['name']}", real.name
    return real.name, None


def display_name(folder: Path) -> str:
    """What a report calls a checkpoint: ``owner/name@commit``, or the folder's name."""
    name, revision = repository_of(folder)
    return shown_name(name if revision is None else f"{name}@{revision}")


def shown_name(name: str) -> str:
    """A file name as documents hold it: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _source_file(file: WeightFile) -> SourceFile:
    with open_regular(file.path, file=file.name) as descriptor:
        header_sha256 = hash_range(descriptor, file.header.data_begin)
    return SourceFile(
        name=file.name, size=file.size, header_sha256=header_sha256, sha256=file.sha256
    )
