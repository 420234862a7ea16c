"""A checkpoint folder: its config, its weight files, and where each tensor lies in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_convert.checkpoint.files import open_regular, read_limited, read_range
from dspark_convert.checkpoint.header import Header, gguf_finding, read_header
from dspark_convert.checkpoint.jsonfile import parse_json
from dspark_convert.checkpoint.names import CONFIG_FILE, INDEX_FILE, hub_digest
from dspark_convert.checkpoint.shards import (
    check_names,
    indexed_weight_names,
    read_index,
    unindexed_weight_names,
)
from dspark_convert.errors import CheckpointError, Finding, Findings

_MAX_CONFIG_BYTES = 10_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor on disk: ``nbytes`` bytes at ``offset`` (absolute) of ``path``.

    ``path`` is the real file behind any link, ``file`` the name that the folder gives it.
    """

    path: Path
    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One safetensors file: ``name`` in the folder, ``path`` the real file, ``size`` in bytes.

    ``hub_sha256`` is the digest that the file should have according to the Hub. It is known if the
    name is a link to a blob of the Hub cache, which names large files by their SHA-256; else None.
    """

    name: str
    path: Path
    size: int
    header: Header
    hub_sha256: str | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose files are all present and agree.

    ``config_sha256`` is the digest of the bytes of ``config.json``. ``tensors`` are in the order of
    the files and of the data in them. ``metadata`` merges that of all headers; the first file's
    value wins. ``notes`` are oddities that no loader minds.
    """

    folder: Path
    config: dict[str, Any]
    config_sha256: str
    files: tuple[WeightFile, ...]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    notes: tuple[Finding, ...]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config, index and headers, and check them against each other. No tensor data is read.

    Raises ``CheckpointError`` with all findings: ``folder-missing``, ``not-a-folder``,
    ``folder-unreadable``; ``config-missing``, ``bad-config``; ``weights-missing``,
    ``pickle-only``, ``gguf``, ``index-missing``, ``weights-ambiguous``, ``bad-index``,
    ``shard-missing``, ``shard-stray``, ``index-stale``, ``tensor-not-indexed``,
    ``tensor-duplicate``; and those of `read_header` and `read_json`.
    """
    names = _list_folder(folder)
    findings = Findings()
    config, config_sha256 = _read_config(folder, names, findings)
    index = read_index(folder, findings) if INDEX_FILE in names else None
    if index is not None:
        weights = indexed_weight_names(names, index, findings)
    elif INDEX_FILE in names:
        weights = ()  # the index is broken, and nothing can be said about the shards without it
    else:
        weights = unindexed_weight_names(names, findings)
    files = _read_weight_files(folder, weights, findings)
    check_names({file.name: file.header for file in files}, index, findings)
    findings.raise_errors(CheckpointError)
    return Checkpoint(
        folder=folder,
        config=config,
        config_sha256=config_sha256,
        files=files,
        tensors={tensor.name: tensor for file in files for tensor in _stored_tensors(file)},
        metadata=_merge_metadata(files, findings),
        notes=findings.of("note"),
    )


def read_bytes(tensor: StoredTensor, *, limit: int) -> bytes:
    """The bytes of one small tensor.

    Raises ``CheckpointError``: ``tensor-too-large`` above ``limit`` bytes, ``file-changed``, and
    those of `open_regular`.
    """
    if tensor.nbytes > limit:
        raise CheckpointError(
            Finding(
                code="tensor-too-large",
                message="the tensor is larger than any sensible tensor of its kind",
                file=tensor.file,
                tensor=tensor.name,
                expected=f"at most {limit} bytes",
                found=f"{tensor.nbytes} bytes",
                hint="check that the checkpoint is what you think it is",
            )
        )
    with open_regular(tensor.path, file=tensor.file) as descriptor:
        data = read_range(descriptor, tensor.offset, tensor.nbytes)
    if len(data) < tensor.nbytes:
        raise CheckpointError(
            Finding(
                code="file-changed",
                message="the file became shorter while it was in use",
                file=tensor.file,
                tensor=tensor.name,
                hint="run again when nothing else writes to the checkpoint",
            )
        )
    return data


def _list_folder(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except FileNotFoundError as error:
        finding = Finding(
            code="folder-missing",
            message="the checkpoint folder does not exist",
            found=str(folder),
            hint="check the path; a Hub repository is written owner/name",
        )
        raise CheckpointError(finding) from error
    except NotADirectoryError as error:
        if folder.suffix == ".gguf":
            raise CheckpointError(gguf_finding(folder.name)) from error
        finding = Finding(
            code="not-a-folder",
            message="a checkpoint is a folder with config.json and safetensors files",
            found=str(folder),
            hint="give the folder that holds the file",
        )
        raise CheckpointError(finding) from error
    except OSError as error:
        finding = Finding(
            code="folder-unreadable",
            message=f"the folder cannot be listed: {error.strerror}",
            found=str(folder),
            hint="check the permissions of the folder",
        )
        raise CheckpointError(finding) from error


def _read_config(
    folder: Path, names: frozenset[str], findings: Findings
) -> tuple[dict[str, Any], str]:
    if CONFIG_FILE not in names:
        findings.error(
            "config-missing",
            "the folder has no config.json",
            file=CONFIG_FILE,
            hint="download or copy the checkpoint again, complete",
        )
        return {}, ""
    try:
        data = read_limited(folder / CONFIG_FILE, limit=_MAX_CONFIG_BYTES)
        config = parse_json(data, file=CONFIG_FILE)
    except CheckpointError as error:
        findings.add(*error.findings)
        return {}, ""
    if not isinstance(config, dict):
        findings.error(
            "bad-config",
            "the config is not a JSON object",
            file=CONFIG_FILE,
            expected="an object",
            found=type(config).__name__,
            hint="repair the file, or download it again",
        )
        return {}, ""
    return config, hashlib.sha256(data).hexdigest()


def _read_weight_files(
    folder: Path, names: Iterable[str], findings: Findings
) -> tuple[WeightFile, ...]:
    files = []
    for name in names:
        try:
            files.append(_read_weight_file(folder / name))
        except CheckpointError as error:
            findings.add(*error.findings)
    return tuple(files)


def _read_weight_file(path: Path) -> WeightFile:
    header = read_header(path)
    real = path.resolve()
    data_bytes = header.entries[-1].end if header.entries else 0
    digest = hub_digest(path) or ""
    return WeightFile(
        name=path.name,
        path=real,
        size=header.data_begin + data_bytes,
        header=header,
        hub_sha256=digest if _SHA256.fullmatch(digest) else None,
    )


def _stored_tensors(file: WeightFile) -> Iterable[StoredTensor]:
    for entry in file.header.entries:
        yield StoredTensor(
            path=file.path,
            file=file.name,
            name=entry.name,
            dtype=entry.dtype,
            shape=entry.shape,
            offset=file.header.data_begin + entry.begin,
            nbytes=entry.nbytes,
        )


def _merge_metadata(files: tuple[WeightFile, ...], findings: Findings) -> Mapping[str, str]:
    merged: dict[str, str] = {}
    for file in files:
        for key, text in file.header.metadata.items():
            if merged.setdefault(key, text) != text:
                findings.note(
                    "metadata-conflict",
                    "the weight files disagree about a metadata entry; the first file's is kept",
                    file=file.name,
                    key=key,
                )
    return merged
