"""Repositories as they lie on the small Hub: their commits, their files, and the ids of those."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

LARGE = 10 << 10
"""Files of this size, and all weights, are stored by their SHA-256, as on the Hub."""


@dataclass(frozen=True)
class Sparse:
    """A file of ``size`` bytes that begins with ``head``; the rest is zeros, and never made.

    ``patches`` are bytes elsewhere, by their offsets; a read holds one whole, or nothing of it.
    """

    head: bytes
    size: int
    patches: dict[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.size

    def read(self, begin: int, end: int) -> bytes:
        data = bytearray(self.head[begin:end].ljust(end - begin, b"\0"))
        for offset, patch in self.patches.items():
            if begin <= offset < end:
                data[offset - begin : offset - begin + len(patch)] = patch
        return bytes(data)


Tree = dict[str, "bytes | Sparse"]


@dataclass
class Repo:
    """A model repository: commits are whole trees; branches and pull requests are names."""

    private: bool = False
    gated: bool = False
    commits: dict[str, Tree] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def commit(self, tree: Tree, *, ref: str = "main", message: str = "") -> str:
        seed = f"{len(self.commits)} {ref} {message} {sorted(tree)}"
        sha = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[sha] = dict(tree)
        self.refs[ref] = sha
        self.messages.append(message)
        return sha

    def resolve(self, revision: str) -> str | None:
        return self.refs.get(revision) or (revision if revision in self.commits else None)

    @property
    def tree(self) -> Tree:
        return self.commits[self.refs["main"]]


def is_large(path: str, content: bytes | Sparse) -> bool:
    return path.endswith(".safetensors") or len(content) >= LARGE


def sha256(content: bytes | Sparse) -> str:
    if isinstance(content, Sparse):  # a name for content that is never made
        return hashlib.sha256(content.head + str(content.size).encode()).hexdigest()
    return hashlib.sha256(content).hexdigest()


def git_id(content: bytes | Sparse) -> str:
    data = content if isinstance(content, bytes) else content.head
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(path: str, content: bytes | Sparse) -> str:
    return sha256(content) if is_large(path, content) else git_id(content)
