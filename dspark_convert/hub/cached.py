"""Whether files in the Hub's cache are what the Hub has; weights are hashed while they are copied.

The cache names a file's bytes after what the Hub calls them: a large file after its SHA-256, a
small one after its id in Git. Nobody compares the two after a download, or at any time later.
"""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import constants

from dspark_convert.checkpoint.files import hash_range, open_regular
from dspark_convert.checkpoint.names import hub_digest
from dspark_convert.errors import CheckpointError, Finding
from dspark_convert.hub.answers import RemoteFile


def check_cached(path: Path, file: RemoteFile) -> None:
    """Refuse a file of the cache that is not the Hub's; the bytes of weights are not read.

    Raises:
        CheckpointError: ``cached-file-corrupt``, ``cached-link-escapes``, those of `open_regular`.
    """
    _require_inside(path)
    expected = file.sha256 or file.git_id
    if path.suffix != ".safetensors" and expected is not None:
        _require_digest(path, expected)


def check_cached_weights(path: Path, file: RemoteFile) -> None:
    """Refuse weights that are not the Hub's, unless the conversion will find out by itself.

    It hashes them while it copies them, and compares where the cache names them by their SHA-256,
    see ``conversion.write_weights``. Only if a mirror names them differently are they read here.

    Raises:
        CheckpointError: ``cached-file-corrupt``, those of `open_regular`.
    """
    if file.sha256 is not None and file.sha256 != hub_digest(path):
        _require_digest(path, file.sha256)


def check_snapshot(folder: Path) -> None:
    """The same for a whole snapshot if the Hub is not asked: compared with the names of its blobs.

    Raises:
        CheckpointError: as `check_cached`.
    """
    for path in sorted(folder.iterdir()):
        _require_inside(path)
        expected = hub_digest(path)
        if path.suffix != ".safetensors" and expected is not None:
            _require_digest(path, expected)


def _require_digest(path: Path, expected: str) -> None:
    """A SHA-256, or a Git id: the digest of ``blob SIZE``, a zero byte and the bytes.

    Mirrors put a plain SHA-1 in place of the id, which is accepted too.
    """
    method = "sha1" if len(expected) == 40 else "sha256"
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        in_git = b"blob %d\0" % size
        found = []
        for start in (in_git, b"") if method == "sha1" else (b"", in_git):
            found.append(hash_range(descriptor, size, start=start, method=method))
            if found[-1] == expected:
                return
    raise CheckpointError(
        Finding(
            code="cached-file-corrupt",
            message="the file in the Hub cache is not what the Hub has",
            file=path.name,
            expected=f"digest {expected}",
            found=f"digest {found[0]}",
            hint=f"delete {path.resolve()} and run again to download it anew",
        )
    )


def _require_inside(path: Path) -> None:
    """Refuse a link of a snapshot that leads out of its repository's part of the cache."""
    place = path.parent.parent.parent
    shared = Path(constants.HF_HUB_CACHE, "blobs")  # of all repositories, where the library has it
    roots = [root.resolve() for root in (place, place / "blobs", shared)]
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in roots):
        raise CheckpointError(
            Finding(
                code="cached-link-escapes",
                message="the Hub cache links to a file outside the repository",
                file=path.name,
                found=str(real),
                hint=f"delete {path} and run again to download it anew",
            )
        )
