"""Where the installed programs start: Ctrl-C ends them with code 130 before they are even loaded.

This module imports as little as it can. Everything else is imported once the handler is in place,
which ends the process at once, since nothing has been begun that would have to be undone. While a
command works, Ctrl-C is an exception instead: see `cli.exits`.
"""

import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def convert() -> None:
    """The ``dspark-convert`` command."""
    _begin()
    from dspark_convert.cli.convert import main

    main()


def verify() -> None:
    """The ``dspark-verify`` command."""
    _begin()
    from dspark_convert.cli.verify import main

    main()


def end_now(signum: int, frame: object) -> None:
    """The handler of Ctrl-C while there is nothing to undo."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def _begin() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, end_now)
        sys.unraisablehook = _interrupt_again


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Where Python can only print an exception, as in a finaliser, no interrupt may be lost."""
    if unraisable.exc_type is KeyboardInterrupt:
        import threading

        # Not at once: it would strike this function, to be lost for good.
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)
