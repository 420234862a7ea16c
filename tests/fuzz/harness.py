"""Run readers on damaged inputs: each must end in time, with a result or with a refusal of ours."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from dspark_convert.errors import DSparkError

SECONDS_EACH = 5.0
"""Of processor time; the slowest honest input takes a tenth of it."""


@dataclass(frozen=True)
class Reader:
    """One way into the product: ``prepare`` makes a case of a seed, which is then run."""

    name: str
    prepare: Callable[[random.Random, Path], Case]


@dataclass(frozen=True)
class Case:
    """A damaged input, and the call that reads it."""

    data: bytes
    read: Callable[[], Any]


@dataclass
class Outcome:
    """What a reader made of its inputs."""

    cases: int = 0
    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class _TooLong(BaseException):
    """No ``Exception``, so that nothing on the way takes it for an error of the input."""


def run_reader(
    reader: Reader, folder: Path, *, seed: int, until: float, most: int, keep: Path | None = None
) -> Outcome:
    """Run cases of consecutive seeds until the time ``until`` (of ``time.monotonic``).

    Args:
        reader: what is run.
        folder: an empty place that the reader writes its inputs to.
        seed: of the first case; the same seed makes the same cases.
        until: when to stop.
        most: the number of cases after which to stop.
        keep: where inputs that failed are kept; None: nowhere.
    """
    outcome = Outcome()
    while outcome.cases < most and time.monotonic() < until:
        number = seed * 1_000_000 + outcome.cases
        case = reader.prepare(random.Random(f"{reader.name} {number}"), folder)
        outcome.cases += 1
        fault = _fault_of(case, outcome)
        if fault is not None:
            outcome.faults.append(f"{reader.name} {number}: {fault}")
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{reader.name}-{number}").write_bytes(case.data)
    return outcome


def _fault_of(case: Case, outcome: Outcome) -> str | None:
    try:
        with _time_limit(SECONDS_EACH):
            case.read()
        outcome.read += 1
    except DSparkError as error:
        outcome.refused[error.code] += 1
        if not all(finding.message for finding in error.findings):
            return f"{error.code} says nothing"
    except _TooLong:
        return f"more than {SECONDS_EACH:g} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"[:500]
    return None


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
