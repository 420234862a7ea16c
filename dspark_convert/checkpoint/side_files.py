"""The files of a checkpoint that travel unchanged: documents, licence, tokenizer."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.names import CONFIG_FILE, INDEX_FILE, is_hub_snapshot

MAX_SIDE_FILE_BYTES = 32 << 20

_DOCUMENTS = ("README", "LICENSE", "LICENCE", "NOTICE")  # prefixes, in upper or lower case
_NAMES = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file beside config and weights: ``path`` is the real file, ``size`` in bytes.

    ``reason`` says why the file stays behind; None: it is carried.
    """

    name: str
    path: Path
    size: int
    reason: str | None

    @property
    def carried(self) -> bool:
        """Whether the file belongs into a converted checkpoint."""
        return self.reason is None


def side_files(folder: Path) -> tuple[SideFile, ...]:
    """Everything in ``folder`` but config, index and safetensors files, sorted by name.

    README*, LICENSE*, NOTICE*, tokenizer files, chat template and generation config are carried if
    they are regular files of at most 32 MiB, inside the folder or the blob store of its Hub cache.
    """
    roots = _trusted_roots(folder)
    return tuple(
        _side_file(path, roots)
        for path in sorted(folder.iterdir())
        if path.name not in {CONFIG_FILE, INDEX_FILE} and path.suffix != ".safetensors"
    )


def _trusted_roots(folder: Path) -> tuple[Path, ...]:
    real = folder.resolve()
    if is_hub_snapshot(real):
        return real, real.parent.parent / "blobs"
    return (real,)


def _side_file(path: Path, roots: tuple[Path, ...]) -> SideFile:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
        return SideFile(path.name, path, 0, "the link leads nowhere, or the file is unreadable")
    reason = _reason(path.name, real, status.st_mode, status.st_size, roots)
    return SideFile(path.name, real, status.st_size, reason)


def _reason(name: str, real: Path, mode: int, size: int, roots: tuple[Path, ...]) -> str | None:
    if stat.S_ISDIR(mode):
        return "a folder"
    if not stat.S_ISREG(mode):
        return "not a regular file"
    if name.endswith(".py"):
        return "code is never carried"
    if name not in _NAMES and not name.upper().startswith(_DOCUMENTS):
        return "not a document or a tokenizer file"
    if not any(real.is_relative_to(root) for root in roots):
        return "a link that leaves the checkpoint"
    if size > MAX_SIDE_FILE_BYTES:
        return f"larger than {MAX_SIDE_FILE_BYTES >> 20} MiB"
    return None
