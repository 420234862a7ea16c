"""What the Hub refuses, in our words: one table from its exceptions to findings."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dspark_convert.errors import CheckpointError, DSparkError, Finding

TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""The root of the HTTP library's own errors, whichever library huggingface_hub uses."""


@contextmanager
def hub_refusals(what: str, error_type: type[DSparkError] = CheckpointError) -> Iterator[None]:
    """Turn every error of the Hub inside the block into ``error_type``; ``what`` names the place.

    Codes: ``repo-missing``, ``repo-private``, ``repo-gated``, ``repo-disabled``,
    ``revision-missing``, ``revision-moved``, ``hub-unauthorized``, ``hub-forbidden``,
    ``rate-limited``, ``offline``, ``hub-file-missing``, ``hub-conflict``, ``hub-error``,
    ``hub-unreachable``, ``hub-refused``, ``disk-full``, ``cache-not-writable``.
    """
    try:
        yield
    except (TRANSPORT_ERROR, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # whoever reads our own output went away; the Hub is not to blame
        raise error_type(hub_finding(error, what)) from error


@contextmanager
def understood() -> Iterator[None]:
    """Around one call of ``huggingface_hub``: an answer that it trips over is a refusal.

    Raises:
        CheckpointError: ``hub-answer-invalid``.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
        raise CheckpointError(
            Finding(
                code="hub-answer-invalid",
                message="the Hub's answer makes no sense to huggingface_hub",
                found=f"{type(error).__name__}: {_first_line(error)}",
                hint="check HF_ENDPOINT, mirror and proxy",
            )
        ) from error


def hub_finding(error: BaseException, what: str) -> Finding:
    """The finding of the deepest known cause, since libraries wrap errors."""
    finding = _known(error, what)
    while error.__cause__ is not None:
        error = error.__cause__
        finding = _known(error, what) or finding
    return finding or Finding(
        code="hub-refused",
        message="communication with the Hub failed",
        found=_first_line(error),
        expected=what,
        hint="run again; complete files stay in the cache",
    )


def _known(error: BaseException, what: str) -> Finding | None:
    for kind, code, message, hint in _BY_TYPE:
        if isinstance(error, kind):
            return Finding(code=code, message=message, found=what, hint=hint)
    if isinstance(error, RepositoryNotFoundError):
        return _not_found(_status(error), what)
    if isinstance(error, HfHubHTTPError):
        return _by_status(error, what)
    if isinstance(error, OSError) and error.errno in _DISK:
        code, message = _DISK[error.errno]
        return Finding(
            code=code,
            message=f"{message}: {error.strerror}",
            found=error.filename and str(error.filename),
            expected=what,
            hint="free some space, or set HF_HOME to a folder on another disk",
        )
    answered = getattr(error, "response", None) is not None  # and so the Hub was reached
    if isinstance(error, (TRANSPORT_ERROR, ConnectionError, TimeoutError)) and not answered:
        return Finding(
            code="hub-unreachable",
            message="the Hub cannot be reached, or the connection broke",
            expected=what,
            found=_first_line(error),
            hint="run again: complete files stay in the cache; HF_HUB_OFFLINE=1 reads from the "
            "cache only",
        )
    return None


_DISK = {
    errno.ENOSPC: ("disk-full", "the disk of the Hub's cache is full"),
    errno.EDQUOT: ("disk-full", "your share of the disk of the Hub's cache is used up"),
    errno.EACCES: ("cache-not-writable", "the Hub's cache may not be written"),
    errno.EROFS: ("cache-not-writable", "the Hub's cache is on a read-only disk"),
}

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may read it"

_BY_TYPE: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (
        GatedRepoError,
        "repo-gated",
        "the repository is gated, and this account has not been granted access",
        "accept its conditions on its page, then log in with `hf auth login` or set HF_TOKEN",
    ),
    (
        DisabledRepoError,
        "repo-disabled",
        "the Hub has disabled the repository",
        "look at its page for the reason",
    ),
    (
        RevisionNotFoundError,
        "revision-missing",
        "the repository has no such branch, tag or commit",
        "look at the branches and tags on its page",
    ),
    (
        OfflineModeIsEnabled,
        "offline",
        "HF_HUB_OFFLINE is set, but the cache does not hold what is needed",
        "unset HF_HUB_OFFLINE, or download the repository while a network is available",
    ),
    (
        LocalEntryNotFoundError,
        "offline",
        "the cache does not hold what is needed, and the Hub is not asked",
        "unset HF_HUB_OFFLINE, or check the network",
    ),
    (
        EntryNotFoundError,
        "hub-file-missing",
        "the repository lacks a file that was listed",
        "run again: the repository may have changed in the meantime",
    ),
)


def _not_found(status: int | None, what: str) -> Finding:
    if status == 401:
        return Finding(
            code="repo-private",
            message="the repository does not exist, or is private and this account may not see it",
            found=what,
            hint=f"check the name; {_LOG_IN}",
        )
    return Finding(
        code="repo-missing",
        message="there is no such repository on the Hub, and no such folder here",
        found=what,
        hint=f"check the name; if it is private, {_LOG_IN}",
    )


def _by_status(error: HfHubHTTPError, what: str) -> Finding:
    status = _status(error)
    code, message, hint = _BY_STATUS.get(status or 0, _OTHER_STATUS)
    return Finding(
        code=code,
        message=message,
        expected=what,
        found=f"status {status}" + _wait(error),
        hint=hint,
    )


_BY_STATUS = {
    401: ("hub-unauthorized", "the Hub does not accept the token", _LOG_IN),
    403: (
        "hub-forbidden",
        "the token is not allowed to do this",
        "use a token with that permission, from an account that has it",
    ),
    409: ("hub-conflict", "the Hub reports a conflict", "run again"),
    412: (
        "revision-moved",
        "the branch moved while this was in progress",
        "look at the new commits, then run again",
    ),
    429: (
        "rate-limited",
        "the Hub refuses further requests for now",
        "wait and run again; limits are higher with a token",
    ),
}
_OTHER_STATUS = ("hub-error", "the Hub answered with an error", "run again later")


def _status(error: HfHubHTTPError) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else response.status_code


def _wait(error: HfHubHTTPError) -> str:
    seconds = error.response.headers.get("Retry-After", "") if _status(error) == 429 else ""
    return f", which asks to wait {seconds} s" if seconds.isdecimal() else ""


def _first_line(error: BaseException) -> str:
    """A short text; it never contains a request header, and so never a token."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
