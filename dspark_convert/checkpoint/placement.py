"""Where an output may go, and what it may replace."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from dspark_convert.checkpoint.files import is_folder
from dspark_convert.errors import Finding, OutputError


def check_place(output: Path, protected: Sequence[Path]) -> Path:
    """The real path of ``output``, whose last part need not exist.

    Raises ``OutputError``: ``output-parent-missing``; ``output-protected`` for the current folder,
    those above it, and whatever is, holds or lies in a ``protected`` folder.
    """
    place = _real_place(output)
    if not is_folder(place.parent):
        _refuse(
            "output-parent-missing",
            "the folder that should hold the output does not exist",
            found=str(place.parent),
            hint="create it, or choose another output",
        )
    here = Path.cwd()
    if place == here or place in here.parents:
        _refuse(
            "output-protected",
            "the output would replace the current folder or one above it",
            found=str(place),
            hint="choose a new folder for the output",
        )
    for folder in map(_real, protected):
        if place == folder or place in folder.parents or folder in place.parents:
            _refuse(
                "output-protected",
                "the output overlaps a folder that is an input",
                expected=f"a path outside {folder}",
                found=str(place),
                hint="choose a folder beside it",
            )
    return place


def replaceable(
    place: Path, *, overwrite: bool, owned: Callable[[Path], bool]
) -> os.stat_result | None:
    """What is at ``place`` and may be replaced; None if there is nothing.

    Raises ``OutputError``: ``output-not-a-folder``, ``output-exists``, ``output-protected``,
    ``output-not-ours``.
    """
    try:
        status = place.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        _refuse(
            "output-not-a-folder",
            "a file or link is at the output path, and is never replaced",
            found=str(place),
            hint="choose another output",
        )
    if not overwrite:
        _refuse(
            "output-exists",
            "the output already exists",
            found=str(place),
            hint="choose another output, or use --overwrite",
        )
    if os.path.lexists(place / ".git"):
        _refuse(
            "output-protected",
            "the output is a Git working tree, and is never replaced",
            found=str(place),
            hint="convert to a new folder and move the files",
        )
    if any(place.iterdir()) and not owned(place):
        _refuse(
            "output-not-ours",
            "the output was not made by dspark-convert, or has been changed since",
            found=str(place),
            hint="choose another output, or remove the folder yourself",
        )
    return status


def check_space(place: Path, needed_bytes: int) -> None:
    """Raise ``disk-full`` unless ``needed_bytes`` are free on the disk of ``place``."""
    if shutil.disk_usage(place.parent).free < needed_bytes:
        raise disk_full(place.parent, needed_bytes)


def disk_full(folder: Path, needed_bytes: int) -> OutputError:
    """The refusal, with the space that is free at this moment."""
    return OutputError(
        Finding(
            code="disk-full",
            message="the disk, or your share of it, has too little space for the output",
            expected=f"{needed_bytes} bytes",
            found=f"{shutil.disk_usage(folder).free} bytes free in {folder}",
            hint="free some space, or choose an output on another disk",
        )
    )


@contextmanager
def os_errors_refused(output: Path, needed_bytes: int) -> Iterator[None]:
    """Turn write errors inside the block into ``disk-full`` or ``output-not-writable``."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads our own output went away; the disk is not to blame
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(output.parent, needed_bytes) from error
        finding = Finding(
            code="output-not-writable",
            message=f"writing the output failed: {error.strerror}",
            found=error.filename and str(error.filename),
            hint="check the permissions, limits and health of the disk that holds the output",
        )
        raise OutputError(finding) from error


def _real_place(output: Path) -> Path:
    # The last part stays as it is, so that a link there is seen and refused.
    if output.name in ("", ".."):
        return _real(output)
    return _real(output.parent) / output.name


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # which, unlike Path.resolve, tolerates loops of links


def _refuse(
    code: str, message: str, *, found: str, hint: str, expected: str | None = None
) -> NoReturn:
    raise OutputError(
        Finding(code=code, message=message, found=found, hint=hint, expected=expected)
    )
