"""Signals as exceptions that arrive only where work can be undone."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """SIGTERM or SIGHUP asked the program to end; by convention it exits with 128 + ``signum``."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)


class SignalGuard:
    """While entered, SIGINT raises ``KeyboardInterrupt``, SIGTERM and SIGHUP `Interrupted`.

    The guard starts closed: a signal waits until `allow`, or until the guard is left. Only the
    first signal counts, so that nothing disturbs the cleanup that it starts. Ignored signals
    (``nohup``) stay ignored. Outside the main thread, where Python delivers no signals, the guard
    does nothing.
    """

    def __init__(self) -> None:
        self._held = True
        self._raised = False
        self._first: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                previous = signal.getsignal(signum)
                if previous not in (signal.SIG_IGN, None):
                    self._previous[signum] = previous
                    signal.signal(signum, self._handle)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hold()
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)
        self._raise_first()

    def allow(self) -> None:
        """Let signals raise from here on; a waiting one raises at once."""
        self._held = False
        self._raise_first()

    def hold(self) -> None:
        """Keep signals waiting from here on."""
        self._held = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = signum
        if not self._held:
            self._raise_first()

    def _raise_first(self) -> None:
        if self._first is None or self._raised:
            return
        self._raised = True
        if self._first == signal.SIGINT:
            raise KeyboardInterrupt
        raise Interrupted(self._first)
