"""An output folder that appears whole or not at all.

While the output is built, a workplace that only this module makes lies beside it:

    .NAME.dspark-tmp-1a2b3c4d/
        lock    held with flock by the process that works here
        new     what will become the output
        old     the output that is being replaced, during the swap

The kernel drops the lock when its holder dies, however that happens, so a workplace whose lock can
be taken is an orphan. (Process ids would mislead across containers and when ids are reused.) The
next run to the same output removes orphans, and first puts back an output that a killed process had
moved aside. On a filesystem without locks orphans stay: better too many than too few.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.interrupts import SignalGuard
from dspark_convert.checkpoint.placement import (
    check_place,
    check_space,
    os_errors_refused,
    replaceable,
)
from dspark_convert.errors import Finding, OutputError


@contextmanager
def staged_folder(
    output: Path,
    *,
    overwrite: bool,
    owned: Callable[[Path], bool],
    protected: Sequence[Path],
    needed_bytes: int,
) -> Iterator[Path]:
    """Yield an empty folder that becomes ``output`` when the block ends well.

    Then every file is synced to disk and the folder renamed into place. After an exception or a
    signal ``output`` is as it was and nothing else remains. An existing ``output`` is replaced only
    with ``overwrite``, and only if it is empty or ``owned`` says that we made it. ``protected``
    folders may neither be, hold, nor lie above the output. ``needed_bytes`` must be free.

    Raises ``OutputError``: ``output-parent-missing``, ``output-protected``, ``output-exists``,
    ``output-not-a-folder``, ``output-not-ours``, ``output-not-writable``, ``output-changed``,
    ``output-unrecovered``, ``disk-full``. In the main thread SIGINT raises ``KeyboardInterrupt``
    in the block, SIGTERM and SIGHUP raise `Interrupted`; a signal that arrives during the swap
    waits until it is done.
    """
    with SignalGuard() as guard, os_errors_refused(output, needed_bytes):
        place = check_place(output, protected)
        _remove_orphans(place)
        former = replaceable(place, overwrite=overwrite, owned=owned)
        check_space(place, needed_bytes)
        stage = _create_stage(place)
        # Two nested blocks, since a signal can still strike between `finally` and `hold`. It is the
        # last to do so: the guard raises once.
        try:
            try:
                stage.new.mkdir()
                guard.allow()
                yield stage.new
                _sync_tree(stage.new)
            finally:
                guard.hold()
            replaceable(place, overwrite=overwrite, owned=owned)  # it may have changed by now
            _swap(stage, place, former)
        finally:
            stage.remove()


@dataclass(frozen=True, slots=True)
class _Stage:
    """A workplace; ``lock`` is the descriptor that holds its lock; None on a disk without locks."""

    folder: Path
    lock: int | None

    @property
    def new(self) -> Path:
        return self.folder / "new"

    @property
    def old(self) -> Path:
        return self.folder / "old"

    @property
    def unfinished(self) -> bool:
        """Whether ``old`` was moved aside and ``new`` did not take its place."""
        return self.old.exists() and self.new.exists()

    def remove(self) -> None:
        """Delete the workplace, unless the only copy of the former output is in it."""
        if not self.unfinished:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)


def _create_stage(output: Path) -> _Stage:
    while True:
        folder = output.with_name(f"{_prefix(output)}{secrets.token_hex(4)}")
        folder.mkdir()
        try:
            return _Stage(folder, _take_lock(folder))
        except (BlockingIOError, FileNotFoundError):
            continue  # another run took it for an orphan, in the moment before it was locked
        except OSError:
            return _Stage(folder, None)


def _take_lock(folder: Path) -> int:
    """The descriptor of the held lock; ``BlockingIOError`` if another process holds it."""
    path = folder / "lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(path.stat(), os.fstat(lock)):
            raise BlockingIOError(errno.EWOULDBLOCK, "its former holder is removing the workplace")
    except OSError:
        os.close(lock)
        raise
    return lock


def _prefix(output: Path) -> str:
    return f".{output.name}.dspark-tmp-"


def _remove_orphans(output: Path) -> None:
    pattern = re.compile(re.escape(_prefix(output)) + "[0-9a-f]{8}")
    for folder in sorted(output.parent.iterdir()):
        if pattern.fullmatch(folder.name):
            with suppress(OSError):  # the lock is held or there are no locks: not an orphan
                _remove_if_orphan(folder, output)


def _remove_if_orphan(folder: Path, output: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return  # what somebody else left in a shared folder must not become our output
    stage = _Stage(folder, _take_lock(folder))
    try:
        if stage.unfinished:
            _restore(stage, output)
    finally:
        stage.remove()


def _restore(stage: _Stage, output: Path) -> None:
    """Put the former output back if nothing has taken its place."""
    try:
        stage.old.rename(output)  # fails on everything but an empty folder
    except OSError as error:
        finding = Finding(
            code="output-unrecovered",
            message=f"an interrupted run left the former output aside: {error.strerror}",
            expected=f"the former output at {output}",
            found=str(stage.old),
            hint="move it to where you want it, or delete it, and run again",
        )
        raise OutputError(finding) from error


def _swap(stage: _Stage, output: Path, former: os.stat_result | None) -> None:
    """Rename ``new`` to the output; back out if something else is there by now."""
    if former is None:
        _move_in(stage, output)
    else:
        try:
            output.rename(stage.old)
        except FileNotFoundError as error:
            raise _changed(output) from error
        try:
            if not os.path.samestat(stage.old.stat(), former):
                raise _changed(output)
            _move_in(stage, output)
        except (OSError, OutputError):
            _restore(stage, output)
            raise
    _sync(output.parent)


def _move_in(stage: _Stage, output: Path) -> None:
    try:
        # Fails on everything but an empty folder: two runs cannot overwrite each other.
        stage.new.rename(output)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _changed(output) from error
        raise


def _changed(output: Path) -> OutputError:
    return OutputError(
        Finding(
            code="output-changed",
            message="something else wrote to the output path during the run",
            found=str(output),
            hint="find out what it is, then run again",
        )
    )


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some filesystems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
