"""SHA-256 of files on threads of their own, while the files are written or copied.

Hashing costs a core about as long as copying costs the disk. A thread that follows the copy finds
the bytes in the page cache, so the disk reads nothing twice and the time overlaps.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from dspark_convert.checkpoint.files import open_regular
from dspark_convert.checkpoint.folder import WeightFile
from dspark_convert.checkpoint.transfer import read_some
from dspark_convert.errors import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Self

_BUFFER = 1 << 20
_POLL_SECONDS = 0.001


class _Background:
    """Work on a thread that ends with the block, whether its result was wanted or not.

    A signal may raise anywhere in the main thread, so nothing there holds a lock that the thread
    waits for: the two share plain attributes, each written by one of them.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except BaseException:
            self._stopped = True
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped = True
        self._thread.join()

    def _work(self) -> None:
        raise NotImplementedError


class FollowingDigest(_Background):
    """SHA-256 of the first ``size`` bytes of an open file, taken as they become available.

    Use it as a context manager. The descriptor must stay open until its end.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__()
        self._descriptor, self._size = descriptor, size
        self._available = 0
        self._digest: str | None = None
        self._error: OSError | None = None

    def advance(self, count: int) -> None:
        """Say that the file has ``count`` more bytes, right after those known so far."""
        self._available += count

    def hexdigest(self) -> str | None:
        """The digest, once all bytes are available; None if the file ended before ``size``.

        Raises ``OSError`` if reading failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digest

    def _work(self) -> None:
        digest, done = hashlib.sha256(usedforsecurity=False), 0
        buffer = memoryview(bytearray(min(_BUFFER, self._size)))
        try:
            while done < self._size and not self._stopped:
                end = min(self._available, self._size)
                if end == done:
                    time.sleep(_POLL_SECONDS)
                    continue
                count = os.preadv(self._descriptor, [buffer[: end - done]], done)
                if count == 0:
                    return
                digest.update(buffer[:count])
                done += count
        except OSError as error:
            self._error = error
        else:
            self._digest = digest.hexdigest() if done == self._size else None


class SourceDigests(_Background):
    """SHA-256 of whole weight files, taken one after another in the order given.

    Use it as a context manager.
    """

    def __init__(self, files: Iterable[WeightFile]) -> None:
        super().__init__()
        self._files = tuple(files)
        self._digests: dict[str, str] = {}
        self._error: CheckpointError | None = None

    def hexdigests(self) -> dict[str, str]:
        """The digest of every file by its name, once all are read.

        Raises ``CheckpointError``: ``file-changed``, ``file-unreadable``, those of `open_regular`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digests

    def _work(self) -> None:
        try:
            for file in self._files:
                with open_regular(file.path, file=file.name) as descriptor:
                    digest, done = hashlib.sha256(usedforsecurity=False), 0
                    while done < file.size and not self._stopped:
                        data = read_some(descriptor, done, min(_BUFFER, file.size - done))
                        digest.update(data)
                        done += len(data)
                self._digests[file.name] = digest.hexdigest()
        except CheckpointError as error:
            self._error = error
