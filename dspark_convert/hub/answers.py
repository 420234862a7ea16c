"""What the Hub says about a repository, believed only as far as it makes sense.

A mirror, a proxy or a stranger behind ``HF_ENDPOINT`` may answer anything. What comes out of here
has the types that it claims, and names that are not paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import quote

from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from dspark_convert import __version__
from dspark_convert.checkpoint.names import is_commit
from dspark_convert.errors import CheckpointError, Finding
from dspark_convert.hub.location import is_repository_name

Json: TypeAlias = Any  # what `json.loads` returns: to be checked before use

MAX_ANSWER_BYTES = 64 << 20
MAX_FILES = 10_000
"""Files at the top level of a repository: as many as the Hub lets a folder hold."""
_MAX_NAME_BYTES = 255  # what file systems take
_MAX_REPOSITORY_NAME = 193  # owner and name of up to 96 characters each
_CHUNK = 64 << 10
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: ``size`` in bytes, ``sha256`` of large files, else ``git_id``."""

    size: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit; ``files`` are those at its top level.

    ``folder`` is the snapshot in the cache, if the Hub was not asked.
    """

    name: str
    commit: str
    files: Mapping[str, RemoteFile]
    folder: Path | None = None


def ask_repository(name: str, revision: str | None = None) -> Repository:
    """The repository as the Hub has it at ``revision``; None: its default branch.

    Raises:
        CheckpointError: ``hub-answer-invalid``.
        ValueError: the answer is not JSON, or names no commit.
        HfHubHTTPError: the Hub refuses.
    """
    url = f"{constants.ENDPOINT}/api/models/{name}"
    if revision is not None:
        url += f"/revision/{quote(revision, safe='')}"
    return listed(_ask_json(f"{url}?blobs=true", name))


def listed(answer: Json) -> Repository:
    """A repository as the Hub describes it; files in folders are omitted.

    Raises:
        CheckpointError: ``hub-answer-invalid``.
        ValueError: the answer names no commit.
    """
    if not isinstance(answer, dict):
        refuse_answer("of a repository", "an object", answer)
    name, commit, siblings = answer.get("id"), answer.get("sha"), answer.get("siblings")
    if not is_commit(commit):
        raise ValueError("the answer names no commit")
    if (
        not isinstance(name, str)
        or len(name) > _MAX_REPOSITORY_NAME
        or not is_repository_name(name)
        or ".." in name
    ):
        refuse_answer("name of a repository", "OWNER/NAME", name)
    if not isinstance(siblings, list | None):
        refuse_answer("files of a repository", "a list", siblings)
    files: dict[str, RemoteFile] = {}
    for entry in siblings or ():
        file_name = _file_name(entry)
        if any(character in file_name for character in "/\\\0") or file_name in ("", ".", ".."):
            continue
        if file_name in files:
            refuse_answer("files of a repository", "every name once", file_name)
        files[file_name] = _remote_file(entry, file_name)
        if len(files) > MAX_FILES:
            refuse_answer("files of a repository", f"at most {MAX_FILES}", f"{len(siblings or ())}")
    return Repository(name=name, commit=commit, files=files)


def parse_answer(data: bytes) -> Json:
    """The JSON of an answer. Raises ``ValueError`` where it is none, or nested too deeply."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None


def require_commit(text: object) -> str:
    """The commit that an answer names.

    Raises:
        CheckpointError: ``hub-answer-invalid``.
    """
    if not is_commit(text):
        refuse_answer("id of a commit", "40 hexadecimal digits", text)
    return text


def refuse_answer(what: str, expected: str, found: object, *, file: str | None = None) -> NoReturn:
    """Raise ``CheckpointError``: ``hub-answer-invalid``."""
    raise CheckpointError(
        Finding(
            code="hub-answer-invalid",
            message=f"the Hub's answer makes no sense: {what}",
            file=file,
            expected=expected,
            found=ascii(found)[:120],
            hint="check HF_ENDPOINT, mirror and proxy; run again when they answer like the Hub",
        )
    )


def _ask_json(url: str, name: str) -> Json:
    headers = build_hf_headers(library_name="dspark-convert", library_version=__version__)
    with http_stream_backoff(
        "GET",
        url,
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        retry_on_exceptions=(),
        retry_on_status_codes=(),
    ) as response:
        hf_raise_for_status(response)
        data = bytearray()
        for part in response.iter_bytes(_CHUNK):  # unpacked: a small answer may become a huge one
            data += part
            if len(data) > MAX_ANSWER_BYTES:
                found = f"more than {len(data) - len(part)} bytes"
                refuse_answer(f"about {name}", f"at most {MAX_ANSWER_BYTES} bytes", found)
    return parse_answer(bytes(data))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"the answer is not JSON: {text}")


def _file_name(entry: Json) -> str:
    if not isinstance(entry, dict):
        refuse_answer("files of a repository", "an object for each", entry)
    name = entry.get("rfilename")
    if not isinstance(name, str):
        refuse_answer("name of a file", "a text", name)
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        refuse_answer("name of a file", "Unicode text", name)
    if "/" not in name and len(encoded) > _MAX_NAME_BYTES:
        refuse_answer("name of a file", f"at most {_MAX_NAME_BYTES} bytes", name)
    return name


def _remote_file(entry: Mapping[str, Json], name: str) -> RemoteFile:
    size, git_id, large = entry.get("size"), entry.get("blobId"), entry.get("lfs")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        refuse_answer("size of a file", "a number of bytes", size, file=name)
    if git_id is not None and not _matches(_GIT_ID, git_id):
        refuse_answer("Git's id of a file", "40 hexadecimal digits", git_id, file=name)
    if large is not None and not isinstance(large, dict):
        refuse_answer("where a large file is stored", "an object", large, file=name)
    sha256 = None if large is None else large.get("sha256")
    if large is not None and not _matches(_SHA256, sha256):
        refuse_answer("SHA-256 of a large file", "64 hexadecimal digits", sha256, file=name)
    return RemoteFile(size=size or 0, sha256=sha256, git_id=git_id)


def _matches(pattern: re.Pattern[str], value: Json) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
