"""A few cases of every reader, and that the harness sees what it is there to see."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dspark_convert.errors import DraftError, Finding

from . import harness
from .harness import Case, Reader, run_reader
from .mutate import damaged, mutated
from .readers import READERS

CASES = {"tokenizer": 12, "target": 6, "config": 20, "tensors": 20, "index": 20}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_damaged_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    most = CASES.get(name, 40)
    outcome = run_reader(READERS[name], tmp_path, seed=0, until=time.monotonic() + 60, most=most)
    assert outcome.faults == []
    # A manifest that cannot be used is noted, and the draft is read without it.
    assert outcome.refused or name == "manifest", "the damage is too small"


def of(read: Callable[[], object]) -> Reader:
    return Reader("planted", lambda random_, folder: Case(b"the input", read))


def raise_(error: BaseException) -> None:
    raise error


def spin() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (lambda: raise_(KeyError("x")), "KeyError: 'x'"),
        (lambda: raise_(SystemExit(1)), "SystemExit: 1"),
        (lambda: raise_(DraftError(Finding(code="tensor-missing", message=""))), "says nothing"),
        (spin, "more than 0.2 s"),
    ],
)
def test_a_planted_fault_is_seen_and_its_input_kept(
    read: Callable[[], object], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "SECONDS_EACH", 0.2)
    kept = tmp_path / "kept"
    until = time.monotonic() + 60
    outcome = run_reader(of(read), tmp_path, seed=3, until=until, most=1, keep=kept)
    (said,) = outcome.faults
    assert fault in said
    assert (kept / "planted-3000000").read_bytes() == b"the input"


def test_results_and_refusals_are_no_faults(tmp_path: Path) -> None:
    refusal = DraftError(Finding(code="tensor-missing", message="it is missing"))
    until = time.monotonic() + 60
    outcome = run_reader(of(lambda: raise_(refusal)), tmp_path, seed=0, until=until, most=3)
    assert (outcome.cases, outcome.refused, outcome.faults) == (3, {"tensor-missing": 3}, [])
    outcome = run_reader(of(lambda: None), tmp_path, seed=0, until=until, most=3)
    assert (outcome.read, outcome.faults) == (3, [])


def test_the_same_seed_damages_alike_and_another_otherwise() -> None:
    document = {"a": [1, 2, {"b": "text"}], "c": None}

    def many(seed: int) -> list[bytes]:
        random_ = random.Random(seed)
        return [mutated(random_, document) for _ in range(50)] + [
            damaged(random_, b"0123456789") for _ in range(50)
        ]

    assert many(1) == many(1)
    assert many(1) != many(2)
    assert document == {"a": [1, 2, {"b": "text"}], "c": None}
