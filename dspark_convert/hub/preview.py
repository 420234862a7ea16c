"""A repository as a folder without its weights: only small files and safetensors headers.

The folder looks like a snapshot in the Hub cache, so everything that reads a checkpoint can read
it. Weight files are sparse: as large as they claim to be, with holes except for the header and a
few small tensors, which are fetched by range requests. Whoever needs other bytes calls
`Preview.fetch` first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from dspark_convert import __version__
from dspark_convert.checkpoint.header import MAX_HEADER_BYTES, read_header
from dspark_convert.checkpoint.names import CONFIG_FILE, INDEX_FILE
from dspark_convert.errors import CheckpointError, Finding, OnFinding, OutputError
from dspark_convert.hub.answers import Repository
from dspark_convert.hub.client import download
from dspark_convert.hub.errors import TRANSPORT_ERROR, hub_refusals
from dspark_convert.hub.guard import guarded_answers

_FIRST_READ = 32 << 10
"""Bytes of a weight file that are requested first; they hold the whole header of most drafts."""

_ATTEMPTS = 3
_MAX_TABLE_BYTES = 64 << 20
_MAX_FILE_BYTES = 1 << 44


@dataclass(frozen=True, slots=True)
class Preview:
    """A repository, seen as ``folder``; see the module."""

    repository: Repository
    folder: Path
    on_finding: OnFinding

    def fetch(self, names: Iterable[str], *, progress: bool = False) -> None:
        """Replace sparse files with whole ones from the shared cache."""
        wanted = [name for name in names if name in self.repository.files]
        snapshot = download(self.repository, wanted, progress=progress, on_finding=self.on_finding)
        for name in wanted:
            place = self.folder / name
            place.unlink(missing_ok=True)
            place.symlink_to((snapshot / name).resolve())


@contextmanager
def preview(
    repository: Repository,
    *,
    documents: Iterable[str],
    tensors: Callable[[str], bool],
    on_finding: OnFinding,
) -> Iterator[Preview]:
    """Yield a preview of a repository, removed at the end.

    Args:
        repository: where to look.
        documents: files to fetch whole, besides config and index; missing ones are skipped.
        tensors: tells from its stored name whether a (small) tensor is needed.
        on_finding: is called while the Hub has to be waited for, see `guarded_answers`.

    Raises:
        CheckpointError: see `hub_refusals` and `download`; ``hub-size-absurd``, ``range-refused``.
        OutputError: ``output-not-writable``.
    """
    if repository.folder is not None:
        yield Preview(repository, repository.folder, on_finding)
        return
    with tempfile.TemporaryDirectory(
        prefix="dspark-convert-",
        ignore_cleanup_errors=True,  # what went wrong before is what the user wants to know
    ) as root:
        place = Path(root, f"models--{repository.name.replace('/', '--')}")
        blobs, folder = place / "blobs", place / "snapshots" / repository.commit
        blobs.mkdir(parents=True)
        folder.mkdir(parents=True)
        view = Preview(repository, folder, on_finding)
        view.fetch({CONFIG_FILE, INDEX_FILE, *documents})
        for number, name in enumerate(sorted(repository.files)):
            if not (folder / name).exists():
                blob = blobs / (repository.files[name].sha256 or f"small-{number}")
                _outline(view, name, blob, tensors)
        yield view


def _outline(view: Preview, name: str, blob: Path, tensors: Callable[[str], bool]) -> None:
    """A sparse file in place of one that is not fetched."""
    file = view.repository.files[name]
    if not 0 <= file.size <= _MAX_FILE_BYTES:
        raise CheckpointError(
            Finding(
                code="hub-size-absurd",
                message="the Hub gives a size that no weight file has",
                file=name,
                found=f"{file.size} bytes",
            )
        )
    new = not blob.exists()
    try:
        if new:
            with blob.open("xb") as sparse:
                sparse.truncate(file.size)
        (view.folder / name).symlink_to(blob)
    except OSError as error:
        finding = Finding(
            code="output-not-writable",
            message=f"a temporary file cannot be made: {error.strerror}",
            file=name,
            found=str(blob.parent),
            hint="set TMPDIR to a folder on another disk",
        )
        raise OutputError(finding) from error
    if new and name.endswith(".safetensors"):
        _fill(view, name, blob, tensors)


def _fill(view: Preview, name: str, blob: Path, tensors: Callable[[str], bool]) -> None:
    """Write the header and the wanted tensors to where they belong."""
    size = view.repository.files[name].size
    begin = min(_FIRST_READ, size)
    first = _read_range(view, name, 0, begin)
    _write_at(blob, 0, first)
    length = int.from_bytes(first[:8], "little")
    if begin < 8 + length <= size and length <= MAX_HEADER_BYTES:
        _write_at(blob, begin, _read_range(view, name, begin, 8 + length))
    try:
        header = read_header(blob)
    except CheckpointError:
        return  # whoever reads the folder finds the same, and reports it with everything else
    for entry in header.entries:
        if tensors(entry.name) and 0 < entry.nbytes <= _MAX_TABLE_BYTES:
            start = header.data_begin + entry.begin
            _write_at(blob, start, _read_range(view, name, start, start + entry.nbytes))


def _read_range(view: Preview, name: str, begin: int, end: int) -> bytes:
    """Bytes ``begin`` to ``end`` (exclusive) of a file in the repository."""
    repository = view.repository
    if begin == end:
        return b""
    with (
        hub_refusals(f"{name} of {repository.name}"),
        guarded_answers(view.on_finding, commit=repository.commit),
    ):
        for _ in range(_ATTEMPTS - 1):
            try:
                return _request_range(repository, name, begin, end)
            except HfHubHTTPError:
                raise  # an answer, which would not change
            except TRANSPORT_ERROR:
                continue
        return _request_range(repository, name, begin, end)


def _request_range(repository: Repository, name: str, begin: int, end: int) -> bytes:
    url = hf_hub_url(repository.name, name, revision=repository.commit, endpoint=constants.ENDPOINT)
    headers = build_hf_headers(library_name="dspark-convert", library_version=__version__)
    headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    size = repository.files[name].size
    data = bytearray()
    with http_stream_backoff(
        "GET", url, headers=headers, timeout=timeout, retry_on_exceptions=()
    ) as response:
        hf_raise_for_status(response)
        # Streamed, and looked at first: a server without ranges would send the whole file, and one
        # of ill will never ends.
        if _is_range(response, begin, end, size):
            for part in response.iter_raw():
                data += part
                if len(data) > end - begin:
                    break
    if len(data) != end - begin:
        more = "more than " if len(data) > end - begin else ""
        kind = response.headers.get("Content-Range") or "no Content-Range"
        raise CheckpointError(
            Finding(
                code="range-refused",
                message="the Hub did not send the part of the file that was asked for",
                file=name,
                expected=f"bytes {begin} to {end - 1}",
                found=f"{more}{min(len(data), end - begin)} bytes, status {response.status_code}, "
                f"{kind[:80]}",
                hint="run again; behind a proxy or mirror, use one that serves ranges",
            )
        )
    return bytes(data)


def _is_range(response: Any, begin: int, end: int, size: int) -> bool:
    """Whether an answer says that its body is this part of the file, as it is stored.

    https://www.rfc-editor.org/rfc/rfc9110#name-206-partial-content
    """
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return False
    if response.status_code != 206:
        return response.status_code == 200 and (begin, end) == (0, size)
    said = response.headers.get("Content-Range", "")
    return said in (f"bytes {begin}-{end - 1}/{size}", f"bytes {begin}-{end - 1}/*")


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
