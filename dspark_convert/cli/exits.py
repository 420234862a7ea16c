"""From exceptions to messages and exit codes, the same for both programs.

0 done, every check passed; 1 a check failed; 2 wrong usage; 3 the input was refused;
4 inconclusive. After a signal: 128 + its number.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from dspark_convert.checkpoint.interrupts import Interrupted
from dspark_convert.cli.console import Sink
from dspark_convert.errors import DSparkError
from dspark_convert.schemas.refusal import Refusal

CHECK_FAILED = 1
INCONCLUSIVE = 4
VERDICT_CODES = {"pass": 0, "fail": CHECK_FAILED, "inconclusive": INCONCLUSIVE}
DIAGNOSIS_CODES = {"healthy": 0, "cause-found": CHECK_FAILED, "undecided": INCONCLUSIVE}


@contextmanager
def refusals(sink: Sink) -> Iterator[Sink]:
    """Turn a ``DSparkError`` or a signal inside the block into a message and an exit code."""
    try:
        yield sink
    except DSparkError as error:
        if sink.as_json:
            refusal = Refusal(exit_code=error.exit_code, findings=error.findings)
            sink.data(refusal.model_dump(mode="json"))
        sink.findings(error.findings)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        sink.note("interrupted; nothing was left behind")
        raise typer.Exit(128 + signal.SIGINT) from None
    except Interrupted as interrupted:
        sink.note("interrupted; nothing was left behind")
        raise typer.Exit(128 + interrupted.signum) from None
