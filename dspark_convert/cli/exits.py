"""From exceptions to messages and exit codes, the same for both programs.

0 done, every check passed; 1 a check failed; 2 wrong usage; 3 the input was refused;
4 inconclusive. After a signal: 128 + its number.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import typer

from dspark_convert.checkpoint.interrupts import Interrupted
from dspark_convert.cli.console import Sink
from dspark_convert.cli.entry import INTERRUPTED, end_now
from dspark_convert.errors import DSparkError, Finding
from dspark_convert.schemas.refusal import Refusal

CHECK_FAILED = 1
INCONCLUSIVE = 4
VERDICT_CODES = {"pass": 0, "fail": CHECK_FAILED, "inconclusive": INCONCLUSIVE}
DIAGNOSIS_CODES = {"healthy": 0, "cause-found": CHECK_FAILED, "undecided": INCONCLUSIVE}


@contextmanager
def refusals(sink: Sink) -> Iterator[Sink]:
    """Turn a ``DSparkError`` or a signal inside the block into a message and an exit code."""
    try:
        with _interrupt_handler(end_now, signal.default_int_handler), _memory_errors():
            yield sink
    except DSparkError as error:
        if sink.as_json:
            refusal = Refusal(exit_code=error.exit_code, findings=error.findings)
            sink.data(refusal.model_dump(mode="json"))
        sink.findings(error.findings)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        sink.note("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Interrupted as interrupted:
        sink.note("interrupted")
        raise typer.Exit(128 + interrupted.signum) from None


def loading() -> AbstractContextManager[None]:
    """Around imports of libraries in C++, which abort when ``KeyboardInterrupt`` strikes them.

    For a command that has begun nothing yet: inside the block Ctrl-C ends the process at once.
    """
    return _interrupt_handler(signal.default_int_handler, end_now)


@contextmanager
def _interrupt_handler(usual: Any, inside: Callable[[int, Any], Any]) -> Iterator[None]:
    """Handle SIGINT by ``inside`` in the block, if it is handled by ``usual`` outside."""
    changed = signal.getsignal(signal.SIGINT) is usual
    if changed:
        signal.signal(signal.SIGINT, inside)
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGINT, usual)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn what Python and PyTorch raise for want of memory into ``memory-exhausted``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not known and "can't allocate memory" not in str(error):
            raise
        raise DSparkError(
            Finding(
                code="memory-exhausted",
                message="the memory does not suffice",
                found=str(error).partition("\n")[0][:200] or None,
                hint="use fewer new tokens, a smaller batch, or a machine with more memory",
            )
        ) from error
