"""An output file that appears whole or not at all; the sibling of ``staging``, which makes folders.

While it is built, it lies beside the output as ``.NAME.dspark-tmp-1a2b3c4d``, held with flock; a
name too long for that is replaced by its hash. The name is random for each run and the file is
created, never opened, so nothing that somebody planted under a predictable name is ever written to.
Nobody holds what a killed run left behind; the next run to the same output removes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.interrupts import SignalGuard
from dspark_convert.errors import Finding, OutputError

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_MAX_NAME_BYTES = 255  # of a file name, on every common filesystem of Linux and macOS
_MARK = ".dspark-tmp-"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The file under construction: where it lies, and its open descriptor."""

    path: Path
    descriptor: int


@contextmanager
def staged_file(
    place: Path,
    *,
    recheck: Callable[[], None] = lambda: None,
    alone: bool = False,
) -> Iterator[StagedFile]:
    """Yield an empty file that becomes ``place`` when the block ends well.

    After an exception or a signal ``place`` is as it was and nothing else remains. ``recheck`` is
    called right before ``place`` is replaced and may raise. Signals are as in ``staging``.

    Args:
        place: the real path of the output; its folder exists.
        recheck: see above.
        alone: refuse to work while another run writes the same output.

    Raises:
        OutputError: ``output-busy``, with ``alone``. Write errors stay ``OSError``.
    """
    with SignalGuard() as guard:
        if _remove_orphans(place) and alone:
            raise _busy(place)
        staged = _create(place)
        # Two nested blocks, since a signal can still strike between `finally` and `hold`.
        try:
            try:
                guard.allow()
                yield staged
                os.fsync(staged.descriptor)
            finally:
                guard.hold()
            recheck()
            staged.path.rename(place)
        except BaseException:
            with suppress(OSError):
                staged.path.unlink()
            raise
        finally:
            with suppress(OSError):  # which must not hide why the work failed
                os.close(staged.descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    A link is followed, and what it leads to is replaced. What is no file, such as a pipe or
    ``/dev/stdout``, is written to directly. Errors stay ``OSError``.
    """
    if _is_no_file(path):
        path.write_bytes(data)
        return
    with (
        staged_file(Path(os.path.realpath(path))) as staged,
        open(staged.descriptor, "wb", closefd=False) as file,
    ):
        file.write(data)


def _is_no_file(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:  # nothing is there, or nobody can tell
        return False


def _create(place: Path) -> StagedFile:
    while True:
        path = place.with_name(f"{_prefix(place)}{secrets.token_hex(4)}")
        staged = StagedFile(path, os.open(path, _CREATE, 0o666))
        if _is_ours(staged):
            return staged
        os.close(staged.descriptor)


def _is_ours(staged: StagedFile) -> bool:
    """Lock the file; False if another run took it for an orphan before it was locked."""
    try:
        fcntl.flock(staged.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(staged.path.lstat(), os.fstat(staged.descriptor))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return True  # on a filesystem without locks, orphans stay


def _prefix(place: Path) -> str:
    name = os.fsencode(place.name)
    if len(name) + len(_MARK) + 9 > _MAX_NAME_BYTES:  # a dot before it, eight digits behind
        return f".{hashlib.sha256(name).hexdigest()}{_MARK}"
    return f".{place.name}{_MARK}"


def _remove_orphans(place: Path) -> bool:
    """Remove what killed runs left; return whether another run is working on ``place``."""
    pattern = re.compile(re.escape(_prefix(place)) + "[0-9a-f]{8}")
    try:
        beside = sorted(place.parent.iterdir())
    except OSError:  # a folder that may be written to but not listed
        return False
    held = [not _removed_if_orphan(path) for path in beside if pattern.fullmatch(path.name)]
    return any(held)


def _removed_if_orphan(path: Path) -> bool:
    """Whether ``path`` is out of the way: removed, or nothing that one of our runs works on."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return True
        descriptor = os.open(path, _OPEN)
    except OSError:
        return True  # gone by now, or somebody else's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return True


def _busy(place: Path) -> OutputError:
    return OutputError(
        Finding(
            code="output-busy",
            message="another run is writing this output",
            found=str(place),
            hint="wait for the other run, or choose another output",
        )
    )
