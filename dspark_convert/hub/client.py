"""Repositories of the Hub: resolve a revision once, then read exactly that commit.

Everything goes through ``huggingface_hub``, which honours ``HF_ENDPOINT``, ``HF_TOKEN``,
``HF_HOME`` and ``HF_HUB_OFFLINE``. Imported only when a repository is named.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub import try_to_load_from_cache as find_cached
from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from dspark_convert import __version__
from dspark_convert.checkpoint.folder import CONFIG_FILE
from dspark_convert.errors import CheckpointError, Finding, Findings
from dspark_convert.hub.errors import hub_refusals
from dspark_convert.hub.location import HubLocation

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: ``size`` in bytes, ``sha256`` of large files, else ``git_id``."""

    size: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit; ``files`` lie at its top level.

    ``folder`` is set where the Hub was not asked: the snapshot of the cache.
    """

    name: str
    commit: str
    files: Mapping[str, RemoteFile]
    folder: Path | None = None


def hub_client() -> HfApi:
    """The client of the endpoint of this moment; it finds the token by itself."""
    return HfApi(constants.ENDPOINT, library_name="dspark-convert", library_version=__version__)


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Bars of ``huggingface_hub`` inside the block: as the user set them, or none."""
    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def resolve(location: HubLocation, findings: Findings) -> Repository:
    """Find out what commit a revision is, and what files it has.

    With ``HF_HUB_OFFLINE`` the cache answers. A branch or tag that was another commit when it was
    last used is noted: ``revision-moved``. Raises ``CheckpointError``, see `hub_refusals`; in
    particular ``revision-moved`` when it moves in this very moment.
    """
    with hub_refusals(str(location)), progress_bars(False):
        before = _cached_commit(location)
        try:
            info = hub_client().model_info(
                location.repository, revision=location.revision, files_metadata=True
            )
        except OfflineModeIsEnabled:
            return _cached(location, findings)
        repository = listed(info)
        _remember(location, repository)
    if before not in (None, repository.commit) and not _is_commit(location.revision):
        findings.warning(
            "revision-moved",
            "the repository has changed since it was last used here",
            expected=f"commit {before}, as then",
            found=f"commit {repository.commit}",
            hint=f"write hf://{location.repository}@{before} to stay with the former one",
        )
    return repository


def listed(info: ModelInfo) -> Repository:
    """A repository as the Hub describes it; files in folders are left out."""
    if info.sha is None or _COMMIT.fullmatch(info.sha) is None:
        raise ValueError("the answer names no commit")
    files = {
        file.rfilename: RemoteFile(
            size=file.size or 0,
            sha256=file.lfs.sha256 if file.lfs else None,
            git_id=file.blob_id,
        )
        for file in info.siblings or ()
        if not any(character in file.rfilename for character in "/\\\0")
        and file.rfilename not in ("", ".", "..")
    }
    return Repository(name=info.id, commit=info.sha, files=files)


def download(repository: Repository, names: Iterable[str], *, progress: bool) -> Path:
    """Bring files into the shared cache, unless they are there; returns the snapshot's folder.

    Within a run a broken connection is taken up again where it broke; a later run fetches the
    files that are not complete from their beginning, the others not again. ``progress`` shows bars
    on a terminal. Raises ``CheckpointError``, see `hub_refusals`.
    """
    if repository.folder is not None:
        return repository.folder
    with hub_refusals(f"{repository.name}@{repository.commit}"), progress_bars(progress):
        folder = snapshot_download(
            repository.name,
            revision=repository.commit,
            endpoint=constants.ENDPOINT,
            library_name="dspark-convert",
            library_version=__version__,
            # The patterns are names, so that nothing else in the repository is touched.
            allow_patterns=[glob.escape(name) for name in names],
        )
    return Path(folder)


def _cached(location: HubLocation, findings: Findings) -> Repository:
    """The snapshot of the cache, which must hold a config and weights; a headers' preview left
    a config only."""
    config = find_cached(location.repository, CONFIG_FILE, revision=location.revision)
    folder = Path(config).parent if isinstance(config, str) else None
    if folder is None or not any(folder.glob("*.safetensors")):
        raise OfflineModeIsEnabled("the cache does not hold the repository")
    findings.note(
        "offline",
        "HF_HUB_OFFLINE is set: the cache is read, and the Hub may have a newer commit",
        found=f"{location.repository}@{folder.name}",
    )
    return Repository(location.repository, folder.name, {}, folder)


def _cached_commit(location: HubLocation) -> str | None:
    """The commit that the revision was when the cache last saw it."""
    path = find_cached(location.repository, CONFIG_FILE, revision=location.revision)
    return Path(path).parent.name if isinstance(path, str) else None


def _remember(location: HubLocation, repository: Repository) -> None:
    """Put the config into the cache under the revision's own name, and so note its commit."""
    if CONFIG_FILE not in repository.files:
        return
    try:
        path = hf_hub_download(
            location.repository,
            CONFIG_FILE,
            revision=location.revision,
            endpoint=constants.ENDPOINT,
            library_name="dspark-convert",
            library_version=__version__,
        )
    except EntryNotFoundError:
        path = None
    if path is None or Path(path).parent.name != repository.commit:
        raise CheckpointError(
            Finding(
                code="revision-moved",
                message="the repository changed between two requests",
                expected=f"commit {repository.commit}",
                found=f"{location.repository} at another commit",
                hint="run again",
            )
        )


def _is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None
