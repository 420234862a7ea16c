"""Publish a conversion on the Hub: everything is checked first, then sent in one commit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from dspark_convert.checkpoint.files import hash_range, open_regular, read_limited
from dspark_convert.checkpoint.interrupts import SignalGuard
from dspark_convert.checkpoint.names import INDEX_FILE
from dspark_convert.checkpoint.side_files import MAX_SIDE_FILE_BYTES
from dspark_convert.errors import DSparkError, Finding, OnFinding, OutputError
from dspark_convert.hub.answers import RemoteFile, Repository, ask_repository, require_commit
from dspark_convert.hub.client import download, hub_client, progress_bars
from dspark_convert.hub.errors import TRANSPORT_ERROR, hub_finding, hub_refusals, understood
from dspark_convert.hub.guard import guarded_answers
from dspark_convert.hub.model_card import update_card
from dspark_convert.hub.publishable import (
    CARD_FILE,
    Publishable,
    decode_card,
    examine_publishable,
)
from dspark_convert.schemas.push import PushReport
from dspark_convert.schemas.report import VerifyReport

Content: TypeAlias = "Path | bytes"
"""The content of a file: a local file, or bytes."""


_MAX_DISCUSSIONS = 1000
_REFUSALS = (TRANSPORT_ERROR, OSError, RuntimeError, ValueError)
"""What a failed exchange with the Hub raises, see `hub_refusals`."""


@dataclass(frozen=True)
class _Session:
    """The Hub, and whom to tell of what happens there."""

    client: HfApi
    on_finding: OnFinding


@dataclass(frozen=True)
class _Changes:
    """What a commit must change for a repository to hold the wanted files."""

    added: Mapping[str, Content]
    deleted: tuple[str, ...]
    kept: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted)


def push_conversion(
    folder: Path,
    repository: str,
    *,
    public: bool = False,
    create_pr: bool = False,
    yes: bool = False,
    report: VerifyReport | None = None,
    progress: bool = False,
    on_finding: OnFinding = lambda findings: None,
) -> PushReport:
    """Upload the files that a conversion's manifest names, with a model card, in one commit.

    A new repository is private unless ``public``; an existing one takes a pull request with
    ``create_pr``, a commit with ``yes``, and weight files that are not from this conversion are
    deleted. If the Hub already holds the same files, nothing happens. After a failure the Hub is as
    it was: a repository that was created here is removed again.

    Raises:
        CheckpointError, DraftError: the folder is not fit to be published, see
            `examine_publishable`.
        CheckpointError: what the Hub answers, or its cache, see `download`.
        OutputError: ``not-logged-in``, ``repo-exists``, ``no-repo-for-pr``, ``push-differs``,
            ``repo-left-empty``, and those of `hub_refusals`.
    """
    source = examine_publishable(folder, published_as=repository, report=report)
    with (
        hub_refusals(repository, OutputError),
        progress_bars(progress),
        guarded_answers(on_finding),
    ):
        if get_token() is None:
            raise _refusal(
                "not-logged-in",
                "publishing needs a token",
                "log in with `hf auth login`, or set HF_TOKEN to a token that may write",
            )
        hub = _Session(hub_client(), on_finding)
        before = _look(repository)
        if before is not None:
            return _update(hub, before, source, create_pr=create_pr, yes=yes)
        if create_pr:
            raise _refusal(
                "no-repo-for-pr",
                f"there is no repository {repository} to propose anything to",
                "omit --create-pr to create it, or check the name",
            )
        return _create(hub, repository, source, private=not public)


def _create(hub: _Session, name: str, source: Publishable, *, private: bool) -> PushReport:
    _update_card(source, source.card)  # one that is refused leaves no repository behind
    with _new_repository(hub, name, private=private) as before:
        changes = _changes(before, _wanted(hub, source, before))
        commit, _ = _commit(hub, before, source, changes)
    return _report(hub, "created", name, commit, changes, private=private)


def _update(
    hub: _Session, before: Repository, source: Publishable, *, create_pr: bool, yes: bool
) -> PushReport:
    wanted = _wanted(hub, source, before)
    changes = _changes(before, wanted)
    if not changes:
        return _report(hub, "unchanged", before.name, before.commit, changes)
    if create_pr:
        proposed = _proposed(hub, before, source, wanted)
        if proposed is not None:
            commit, url = proposed
            same = _Changes({}, (), tuple(sorted(wanted)))
            return _report(hub, "unchanged", before.name, commit, same, url=url)
    elif not yes:
        raise _refusal(
            "repo-exists",
            f"{before.name} exists and has different content",
            "give --create-pr to propose the files, or --yes to commit them",
        )
    commit, page = _commit(hub, before, source, changes, create_pr=create_pr)
    action: Literal["proposed", "updated"] = "proposed" if create_pr else "updated"
    return _report(hub, action, before.name, commit, changes, url=page)


def _look(name: str) -> Repository | None:
    """The repository as it is; None if there is none."""
    try:
        return ask_repository(name)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        return None


def _wanted(hub: _Session, source: Publishable, before: Repository) -> dict[str, Content]:
    card = source.card
    if CARD_FILE in before.files:  # what people wrote there is newer than what was converted
        folder = download(before, [CARD_FILE], progress=False, on_finding=hub.on_finding)
        card = decode_card(read_limited(folder / CARD_FILE, limit=MAX_SIDE_FILE_BYTES))
    files: dict[str, Content] = {name: source.folder / name for name in source.files}
    return {**files, CARD_FILE: _update_card(source, card).encode("utf-8")}


def _update_card(source: Publishable, card: str) -> str:
    return update_card(
        card, source.manifest, source.engines, source.report, vocabulary=source.vocabulary
    )


def _changes(before: Repository, wanted: Mapping[str, Content]) -> _Changes:
    added = {
        name: content
        for name, content in wanted.items()
        if name not in before.files or not _same(content, before.files[name])
    }
    # Another conversion's shards would be read as part of this one.
    weights = {n for n in before.files if n.endswith(".safetensors") or n == INDEX_FILE}
    return _Changes(
        added=added,
        deleted=tuple(sorted(weights - wanted.keys())),
        kept=tuple(sorted(wanted.keys() - added.keys())),
    )


def _same(content: Content, remote: RemoteFile) -> bool:
    """Whether the Hub's file has the same bytes; a file of a different size is not read."""
    large = remote.sha256 is not None  # small files are identified by their Git id
    start, method = (b"", "sha256") if large else (b"blob %d\0" % remote.size, "sha1")
    known = remote.sha256 if large else remote.git_id
    if isinstance(content, bytes):
        digest = hashlib.new(method, start + content, usedforsecurity=False).hexdigest()
        return len(content) == remote.size and digest == known
    with open_regular(content) as descriptor:
        if os.fstat(descriptor).st_size != remote.size:
            return False
        return hash_range(descriptor, remote.size, start=start, method=method) == known


def _commit(
    hub: _Session,
    before: Repository,
    source: Publishable,
    changes: _Changes,
    *,
    create_pr: bool = False,
) -> tuple[str, str | None]:
    """The commit, and the page of the pull request."""
    with understood():
        done = hub.client.create_commit(
            before.name,
            [
                *(
                    CommitOperationAdd(n, content if isinstance(content, bytes) else str(content))
                    for n, content in changes.added.items()
                ),
                *(CommitOperationDelete(name) for name in changes.deleted),
            ],
            commit_message=_title(source),
            create_pr=create_pr,
            parent_commit=before.commit,  # refused if somebody else commits in the meantime
        )
    commit = require_commit(done.oid)
    after = ask_repository(before.name, commit)
    if _changes(after, changes.added).added or not _vouched(after, source, changes):
        raise _refusal(
            "push-differs",
            f"commit {commit} of {before.name} does not hold what was sent",
            "look at the repository, then push again",
        )
    return commit, done.pr_url


def _vouched(after: Repository, source: Publishable, changes: _Changes) -> bool:
    """Whether large files arrived as the manifest has them, not as they became in the meantime."""
    digests = {file.name: file.sha256 for file in source.manifest.files if file.name != CARD_FILE}
    sent = {name: after.files[name].sha256 for name in digests.keys() & changes.added.keys()}
    return all(digest in (None, digests[name]) for name, digest in sent.items())


def _proposed(
    hub: _Session, before: Repository, source: Publishable, wanted: Mapping[str, Content]
) -> tuple[str, str] | None:
    """Commit and page of an open pull request of ours with the same content."""
    with understood():
        listing = hub.client.get_repo_discussions(
            before.name, discussion_type="pull_request", discussion_status="open"
        )
        discussions = list(islice(listing, _MAX_DISCUSSIONS))
    for discussion in discussions:
        if discussion.title == _title(source):
            proposal = ask_repository(before.name, f"refs/pr/{discussion.num}")
            if not _changes(proposal, wanted):
                return proposal.commit, discussion.url
    return None


def _title(source: Publishable) -> str:
    return f"Convert to {source.manifest.output_dialect} with dspark-convert"


@contextmanager
def _new_repository(hub: _Session, name: str, *, private: bool) -> Iterator[Repository]:
    """Create a repository, and remove it unless the block ends well; signals wait for that."""
    with SignalGuard() as guard:
        with understood():
            hub.client.create_repo(name, private=private)
        made: Repository | None = None
        try:
            made = ask_repository(name)
            guard.allow()
            yield made
        except BaseException as error:
            guard.hold()
            left = _remove_again(hub, name, made)
            if left is None:
                raise
            findings = _findings_of(error, name)
            if not findings:
                hub.on_finding([left])
                raise
            raise OutputError(*findings, left) from error
        guard.hold()


def _remove_again(hub: _Session, name: str, made: Repository | None) -> Finding | None:
    """Delete a repository that nobody has committed to since it was made; else what to say."""
    try:
        if made is None or ask_repository(name).commit == made.commit:
            with understood():
                hub.client.delete_repo(name)
    except (*_REFUSALS, DSparkError):
        return Finding(
            code="repo-left-empty",
            message=f"publishing failed, and {name}, which was created for it, could not be "
            "removed",
            hint="delete it on its page, or push again with --yes",
        )
    return None


def _findings_of(error: BaseException, name: str) -> tuple[Finding, ...]:
    """The words for a failure; () for a signal, or for our own error."""
    if isinstance(error, DSparkError):
        return error.findings
    return (hub_finding(error, name),) if isinstance(error, _REFUSALS) else ()


def _report(
    hub: _Session,
    action: Literal["created", "updated", "proposed", "unchanged"],
    name: str,
    commit: str,
    changes: _Changes,
    *,
    url: str | None = None,
    private: bool | None = None,
) -> PushReport:
    return PushReport(
        repository=name,
        url=url or f"{hub.client.endpoint}/{name}",
        action=action,
        commit=commit,
        private=private,
        uploaded=tuple(sorted(changes.added)),
        deleted=changes.deleted,
        unchanged=changes.kept,
    )


def _refusal(code: str, message: str, hint: str) -> OutputError:
    return OutputError(Finding(code=code, message=message, hint=hint))
