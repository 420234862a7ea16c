"""SHA-256 of files on threads of their own, while the files are written or copied.

Hashing costs a core about as long as copying costs the disk. A thread that follows the copy finds
the bytes in the page cache, so the disk reads nothing twice and the time overlaps.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from types import TracebackType

from dspark_convert.checkpoint.files import open_regular
from dspark_convert.checkpoint.folder import WeightFile
from dspark_convert.checkpoint.transfer import read_some
from dspark_convert.errors import CheckpointError

_BUFFER = 4 << 20


class FollowingDigest:
    """SHA-256 of the first ``size`` bytes of an open file, taken as they become available.

    Use it as a context manager: its end stops the thread, whether the digest was wanted or not. The
    descriptor must stay open until then.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size
        self._available = 0
        self._stopped = False
        self._news = threading.Condition()
        self._digest: str | None = None
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> FollowingDigest:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._news:
            self._stopped = True
            self._news.notify()
        self._thread.join()

    def advance(self, count: int) -> None:
        """Say that the file has ``count`` more bytes, right after those known so far."""
        with self._news:
            self._available += count
            self._news.notify()

    def hexdigest(self) -> str | None:
        """The digest, once all bytes are available; None if the file ended before ``size``.

        Raises ``OSError`` if reading failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digest

    def _follow(self) -> None:
        digest, done = hashlib.sha256(usedforsecurity=False), 0
        buffer = memoryview(bytearray(min(_BUFFER, self._size)))
        try:
            while done < self._size:
                end = self._wait_beyond(done)
                if self._stopped:
                    return
                count = os.preadv(self._descriptor, [buffer[: end - done]], done)
                if count == 0:
                    return
                digest.update(buffer[:count])
                done += count
        except OSError as error:
            self._error = error
        else:
            self._digest = digest.hexdigest()

    def _wait_beyond(self, done: int) -> int:
        """Where the available bytes end, once there are more than ``done`` or nobody asks."""
        with self._news:
            self._news.wait_for(lambda: self._stopped or self._available > done)
            return min(self._available, self._size)


class SourceDigests:
    """SHA-256 of whole weight files, taken one after another in the order given.

    Use it as a context manager: its end stops the thread, whether the digests were wanted or not.
    """

    def __init__(self, files: Iterable[WeightFile]) -> None:
        self._files = tuple(files)
        self._stopped = False
        self._digests: dict[str, str] = {}
        self._error: CheckpointError | None = None
        self._thread = threading.Thread(target=self._hash_all, daemon=True)

    def __enter__(self) -> SourceDigests:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped = True
        self._thread.join()

    def hexdigests(self) -> dict[str, str]:
        """The digest of every file by its name, once all are read.

        Raises ``CheckpointError``: ``file-changed``, ``file-unreadable``, those of `open_regular`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digests

    def _hash_all(self) -> None:
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
