from __future__ import annotations

import signal

import pytest

from dspark_convert.checkpoint.interrupts import Interrupted, SignalGuard

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def test_only_the_first_signal_is_raised() -> None:
    with SignalGuard() as guard:
        guard.allow()
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        guard.allow()
    assert (caught.value.signum, str(caught.value)) == (signal.SIGTERM, "SIGTERM")


def test_a_waiting_signal_is_raised_when_allowed() -> None:
    with SignalGuard() as guard:
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(Interrupted):
            guard.allow()


def test_a_signal_while_handlers_are_restored_waits_for_the_last(monkeypatch) -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS]
    guard = SignalGuard()
    guard.__enter__()
    guard.allow()
    real = signal.signal

    def interrupted(signum: signal.Signals, handler: object) -> None:
        if signum is SIGNALS[0]:
            signal.raise_signal(signal.SIGTERM)
        real(signum, handler)

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(Interrupted):
        guard.__exit__(None, None, None)
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_interrupted_is_no_exception_that_cleanup_code_swallows() -> None:
    assert not issubclass(Interrupted, Exception)
