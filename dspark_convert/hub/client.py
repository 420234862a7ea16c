"""Repositories of the Hub: resolve a revision once, then read exactly that commit.

Everything goes through ``huggingface_hub``, which honours ``HF_ENDPOINT``, ``HF_TOKEN``,
``HF_HOME`` and ``HF_HUB_OFFLINE``. Imported only when a repository is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub import try_to_load_from_cache as find_cached
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from dspark_convert import __version__
from dspark_convert.checkpoint.names import CONFIG_FILE, is_commit
from dspark_convert.errors import CheckpointError, Finding, Findings, OnFinding
from dspark_convert.hub.answers import Repository, ask_repository
from dspark_convert.hub.cached import check_cached, check_snapshot
from dspark_convert.hub.errors import hub_refusals, understood
from dspark_convert.hub.guard import guarded_answers
from dspark_convert.hub.location import HubLocation

_PARALLEL = 8
"""Files that are fetched at the same time."""


def hub_client() -> HfApi:
    """The client for the current endpoint; it finds the token by itself."""
    return HfApi(constants.ENDPOINT, library_name="dspark-convert", library_version=__version__)


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Progress bars of ``huggingface_hub`` inside the block: as the user set them, or none."""
    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def resolve(location: HubLocation, on_finding: OnFinding) -> Repository:
    """Find out which commit a revision is, and which files it has.

    With ``HF_HUB_OFFLINE`` the cache answers. A branch or tag that was another commit when it was
    last used is said: ``revision-moved``. Raises ``CheckpointError``, see `hub_refusals`; in
    particular ``revision-moved`` if it moves at this very moment.
    """
    findings = Findings()
    with hub_refusals(str(location)), progress_bars(False):
        before = _cached_commit(location)
        try:
            repository = ask_repository(location.repository, location.revision)
        except OfflineModeIsEnabled:
            repository = _cached(location, findings)
            on_finding(findings)
            return repository
        _remember(location, repository, on_finding)
    if before not in (None, repository.commit) and not is_commit(location.revision):
        findings.warning(
            "revision-moved",
            "the repository has changed since it was last used here",
            expected=f"commit {before}, as last time",
            found=f"commit {repository.commit}",
            hint=f"write hf://{location.repository}@{before} to stay with the earlier one",
        )
    on_finding(findings)
    return repository


def download(
    repository: Repository, names: Iterable[str], *, progress: bool, on_finding: OnFinding
) -> Path:
    """Bring files into the shared cache, unless they are there; returns the snapshot's folder.

    Within a run, a download resumes where a broken connection left off; a later run fetches
    incomplete files from their beginning, and the others not again. Files that are no weights are
    compared with the digests that the Hub gives, wherever they come from; weights are when they are
    copied. ``progress`` shows bars on a terminal.

    Raises:
        CheckpointError: see `hub_refusals`, `guarded_answers` and `check_cached`.
    """
    if repository.folder is not None:
        return repository.folder
    wanted = sorted(set(names) & repository.files.keys())
    with (
        hub_refusals(f"{repository.name}@{repository.commit}"),
        progress_bars(progress),
        guarded_answers(on_finding, commit=repository.commit),
        ThreadPoolExecutor(_PARALLEL) as pool,
    ):
        futures = [pool.submit(_fetch, repository.name, n, repository.commit) for n in wanted]
        try:
            paths = [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    for name, path in zip(wanted, paths, strict=True):
        check_cached(path, repository.files[name])
    return paths[0].parent if paths else _snapshot(repository)


def _fetch(repository: str, name: str, revision: str | None) -> Path:
    """One file, from the cache or the Hub; see `guarded_answers`, which must be around it."""
    with understood():
        return Path(
            hf_hub_download(
                repository,
                name,
                revision=revision,
                endpoint=constants.ENDPOINT,
                library_name="dspark-convert",
                library_version=__version__,
            )
        )


def _snapshot(repository: Repository) -> Path:
    place = f"models--{repository.name.replace('/', '--')}"
    return Path(constants.HF_HUB_CACHE, place, "snapshots", repository.commit)


def _cached(location: HubLocation, findings: Findings) -> Repository:
    """The snapshot in the cache, which must hold a config and weights; a preview of headers leaves
    only a config."""
    config = find_cached(location.repository, CONFIG_FILE, revision=location.revision)
    folder = Path(config).parent if isinstance(config, str) else None
    if folder is None or not any(folder.glob("*.safetensors")):
        raise OfflineModeIsEnabled("the cache does not hold the repository")
    check_snapshot(folder)
    findings.note(
        "offline",
        "HF_HUB_OFFLINE is set: the cache is read, but the Hub may have a newer commit",
        found=f"{location.repository}@{folder.name}",
    )
    return Repository(location.repository, folder.name, {}, folder)


def _cached_commit(location: HubLocation) -> str | None:
    """The commit of the revision when the cache last saw it."""
    path = find_cached(location.repository, CONFIG_FILE, revision=location.revision)
    return Path(path).parent.name if isinstance(path, str) else None


def _remember(location: HubLocation, repository: Repository, on_finding: OnFinding) -> None:
    """Put the config into the cache under the revision's own name, which records its commit."""
    if CONFIG_FILE not in repository.files:
        return
    with guarded_answers(on_finding):
        try:
            path = _fetch(location.repository, CONFIG_FILE, location.revision)
        except LocalEntryNotFoundError:
            raise  # no answer of the Hub, whatever the library calls it
        except EntryNotFoundError:
            raise _moved(location, repository) from None
        if path.parent.name == repository.commit:
            return
        # Either the revision is another commit now, or the library took what the cache remembered,
        # since the Hub did not answer. Asked for the file itself, it says which.
        url = hf_hub_url(location.repository, CONFIG_FILE, revision=location.revision)
        with understood():
            get_hf_file_metadata(url, endpoint=constants.ENDPOINT)
    raise _moved(location, repository)


def _moved(location: HubLocation, repository: Repository) -> CheckpointError:
    return CheckpointError(
        Finding(
            code="revision-moved",
            message="the repository changed between two requests",
            expected=f"commit {repository.commit}",
            found=f"{location.repository} at another commit",
            hint="run again",
        )
    )
