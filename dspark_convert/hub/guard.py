"""A look at every answer of the Hub before ``huggingface_hub`` acts on it.

The library names the files of its cache after what headers say: an ETag, a commit. If an ETag is a
path, the library reads or writes there. A hook in its HTTP client sees every answer first,
including redirects, and including those of a client that was made anew after a broken connection.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import huggingface_hub.utils._http as hub_http
from huggingface_hub import set_client_factory

from dspark_convert.checkpoint.names import is_commit
from dspark_convert.errors import CheckpointError, Finding, Findings, OnFinding
from dspark_convert.hub.answers import refuse_answer

MAX_WAIT_SECONDS = 300
"""The longest wait for one answer when the Hub asks for a pause: the five minutes over which the
Hub counts requests. A longer pause is refused immediately, stating the time."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_XET_HASH = re.compile(r"[0-9a-f]{64}")
_SECONDS = re.compile(r"[0-9]+")
_RESET = re.compile(r"r\s*=\s*0\s*;\s*t\s*=\s*([0-9]+)")  # draft-ietf-httpapi-ratelimit-headers


@dataclass
class _Guard:
    on_finding: OnFinding
    commit: str | None
    waited: dict[int, int] = field(default_factory=dict)
    """How many seconds each thread has been asked to wait since its last good answer."""


_guards: list[_Guard] = []
_lock = threading.Lock()
_previous_factory: Any = None


@contextmanager
def guarded_answers(on_finding: OnFinding, *, commit: str | None = None) -> Iterator[None]:
    """Refuse answers inside the block that would lead the cache astray, and announce waits.

    Args:
        on_finding: called with ``hub-wait`` whenever the Hub asks for a pause.
        commit: the one at which everything is read; None: not yet known.

    Raises:
        CheckpointError: ``hub-answer-invalid``; ``rate-limited`` or ``hub-error`` where the Hub
            asks for a pause of more than `MAX_WAIT_SECONDS` in all.
    """
    guard = _Guard(on_finding, commit)
    with _lock:
        _watch_client()
        _guards.append(guard)
    try:
        yield
    finally:
        with _lock:
            _guards.remove(guard)


def _watch_client() -> None:
    """Give every client of the library our hook, whoever makes it."""
    global _previous_factory
    if hub_http._GLOBAL_CLIENT_FACTORY is not _make_client:
        _previous_factory = hub_http._GLOBAL_CLIENT_FACTORY
        set_client_factory(_make_client)


def _make_client() -> Any:
    client = _previous_factory()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [_look, *hooks.get("response", ())]}
    return client


def _look(response: Any) -> None:
    guard = _guards[-1] if _guards else None
    if guard is None:
        return
    headers = response.headers
    commit = headers.get("X-Repo-Commit")
    if commit is not None and not is_commit(commit):
        refuse_answer("commit of a file", "40 hexadecimal digits", commit)
    if commit is not None and guard.commit not in (None, commit):
        refuse_answer("commit of a file", str(guard.commit), commit)
    if response.request.method == "HEAD":  # the answer after which files are named
        _check_names(headers)
    if response.status_code >= 400:
        _check_pause(guard, response)
    else:
        guard.waited.pop(threading.get_ident(), None)


def _check_names(headers: Any) -> None:
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")  # the library prefers the former
    if etag is not None:
        name = etag.removeprefix("W/").removeprefix('"').removesuffix('"')
        if _SAFE_NAME.fullmatch(name) is None or name in (".", ".."):
            refuse_answer("ETag", "at most 128 of: letters, digits, '.', '_', '-'", etag)
    xet = headers.get("X-Xet-Hash")
    if xet is not None and _XET_HASH.fullmatch(xet) is None:
        refuse_answer("X-Xet-Hash", "64 hexadecimal digits", xet)


def _check_pause(guard: _Guard, response: Any) -> None:
    text = _asked_pause(response)
    if text is None:
        return
    thread = threading.get_ident()
    # Nine digits are thirty years: more are not worth a number.
    seconds = int(text) if len(text) < 10 else MAX_WAIT_SECONDS + 1
    before = guard.waited.get(thread, 0)
    if before + seconds > MAX_WAIT_SECONDS:
        limited = response.status_code == 429
        raise CheckpointError(
            Finding(
                code="rate-limited" if limited else "hub-error",
                message="the Hub asks for a longer pause than is worth waiting for",
                expected=f"at most {MAX_WAIT_SECONDS} s in all",
                found=f"status {response.status_code}, which asks to wait {text[:20]} s",
                hint="run again after that time; limits are higher with a token",
            )
        )
    guard.waited[thread] = before + seconds
    findings = Findings()
    findings.note(
        "hub-wait",
        "the Hub asks for a pause before the next request",
        found=f"status {response.status_code}, which asks to wait {seconds} s",
    )
    guard.on_finding(findings)


def _asked_pause(response: Any) -> str | None:
    """Seconds, as the digits that the Hub sent; the library waits as long as either header says."""
    limit = _RESET.search(response.headers.get("RateLimit", ""))
    if response.status_code == 429 and limit is not None:
        return limit[1]
    retry = response.headers.get("Retry-After", "").strip()
    return retry if _SECONDS.fullmatch(retry) else None
