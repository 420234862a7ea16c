"""SOURCE, ``--target`` and ``--verifier`` as folders, whether they are local or on the Hub.

Only what the work at hand needs is fetched from a repository: headers to look at a draft or to
plan, whole files to convert it, and for a target model the files that hold its embedding and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_convert.checkpoint.folder import open_checkpoint
from dspark_convert.checkpoint.side_files import side_files
from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.errors import Findings, OnFinding
from dspark_convert.formats.overrides import Overrides
from dspark_convert.formats.read import read_draft
from dspark_convert.formats.target import find_target_weights
from dspark_convert.formats.tensors import (
    EMBEDDING,
    LM_HEAD,
    VOCABULARY_MASK,
    VOCABULARY_TABLE,
    canonical_name,
)
from dspark_convert.hub.location import HUB_SCHEME, HubLocation, locate, shadowed

if TYPE_CHECKING:  # the Hub's library is imported only if a repository is named
    from dspark_convert.hub.answers import Repository
    from dspark_convert.hub.preview import Preview

_TABLES = frozenset({VOCABULARY_TABLE, VOCABULARY_MASK})
_SHARED = frozenset({EMBEDDING, LM_HEAD})
_MODEL_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")


@contextmanager
def opened_headers(text: str, on_finding: OnFinding) -> Iterator[Path]:
    """Yield the folder of a draft to look at; only headers and tables of its weights are there.

    Raises:
        CheckpointError: the Hub refuses, see `hub_refusals`.
        UsageError: ``bad-hub-address``.
    """
    with ExitStack() as stack:
        location = _located(text, on_finding)
        if isinstance(location, HubLocation):
            yield _preview(location, on_finding, stack).folder
        else:
            yield location


@contextmanager
def opened_draft(
    text: str,
    *,
    overrides: Overrides,
    whole: bool,
    compared: bool,
    on_finding: OnFinding,
    progress: bool,
) -> Iterator[Path]:
    """Yield the folder of a draft to convert; a refused draft costs only its headers.

    Args:
        text: as `locate` reads it.
        overrides: what the user knows better than the source.
        whole: fetch the weights; otherwise only headers and tables.
        compared: embedding and head will be compared with a target's.
        on_finding: see `OnFinding`.
        progress: show what is being fetched, on a terminal.

    Raises:
        CheckpointError, DialectError, DraftError: the draft, or the Hub's answer, is refused.
    """
    with ExitStack() as stack:
        location = _located(text, on_finding)
        if not isinstance(location, HubLocation):
            yield location
            return
        view = _preview(location, on_finding, stack)
        source = read_draft(view.folder, overrides=overrides)
        if whole:
            yield _download_draft(view, progress=progress)
            return
        if compared:
            tensors = source.checkpoint.tensors.values()
            shared = {t.file for t in tensors if canonical_name(t.name) in _SHARED}
            view.fetch(shared, progress=progress)
        yield view.folder


@contextmanager
def opened_target(
    text: str | None, *, whole: bool, on_finding: OnFinding, progress: bool
) -> Iterator[str]:
    """Yield the folder of a target model, as a string; "" for None.

    With ``whole`` the files that hold its embedding and head are fetched, otherwise only headers.

    Raises:
        CheckpointError, DraftError: the target, or the Hub's answer, is refused.
    """
    with ExitStack() as stack:
        location = None if text is None else _located(text, on_finding)
        if not isinstance(location, HubLocation):
            yield text or ""
            return
        view = _preview(location, on_finding, stack)
        weights = find_target_weights(view.folder)
        if whole:
            files = {weights.embed_tokens.file, weights.lm_head.file}
            view.fetch(files, progress=progress)
        yield str(view.folder)


def names_repository_to_read(text: str | None) -> bool:
    """Whether ``--verifier`` is an address to read from; a bare ``owner/name`` is only recorded."""
    return text is not None and text.startswith(HUB_SCHEME)


def whole_model(text: str, *, code: bool, on_finding: OnFinding, progress: bool) -> Path:
    """The folder of a model to run: config, weights and tokenizer; with ``code`` its Python files.

    Raises:
        CheckpointError: the Hub refuses, see `hub_refusals`.
        UsageError: ``bad-hub-address``.
    """
    location = _located(text, on_finding)
    if not isinstance(location, HubLocation):
        return location
    from dspark_convert.hub.client import download

    suffixes = (*_MODEL_SUFFIXES, ".py") if code else _MODEL_SUFFIXES
    repository = _resolve(location, on_finding)
    names = [name for name in repository.files if name.endswith(suffixes)]
    return download(repository, names, progress=progress, on_finding=on_finding)


def _located(text: str, on_finding: OnFinding) -> Path | HubLocation:
    if shadowed(text):
        findings = Findings()
        findings.note(
            "local-folder-used",
            "a local folder of this name exists and is read",
            found=text,
            hint=f"write {HUB_SCHEME}{text} to read the repository on the Hub",
        )
        on_finding(findings)
    return locate(text)


def _resolve(location: HubLocation, on_finding: OnFinding) -> Repository:
    from dspark_convert.hub.client import resolve

    repository = resolve(location, on_finding)
    findings = Findings()
    findings.note("hub-commit", f"{location} is commit {repository.commit}")
    on_finding(findings)
    return repository


def _preview(location: HubLocation, on_finding: OnFinding, stack: ExitStack) -> Preview:
    from dspark_convert.hub.preview import preview

    view = preview(
        _resolve(location, on_finding),
        documents=(MANIFEST_FILE,),
        tensors=lambda name: canonical_name(name) in _TABLES,
        on_finding=on_finding,
    )
    return stack.enter_context(view)


def _download_draft(view: Preview, *, progress: bool) -> Path:
    from dspark_convert.hub.cached import check_cached_weights
    from dspark_convert.hub.client import download

    carried = {file.name for file in side_files(view.folder) if file.carried}
    weights = {file.name for file in open_checkpoint(view.folder).files}
    documents = {name for name in view.repository.files if name.endswith(".json")}
    repository, names = view.repository, carried | weights | documents
    folder = download(repository, names, progress=progress, on_finding=view.on_finding)
    for name in sorted(weights & repository.files.keys()):
        check_cached_weights(folder / name, repository.files[name])
    return folder
