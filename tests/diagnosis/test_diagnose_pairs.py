"""Diagnosis of drafts with two faults at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_convert.schemas.diagnosis import ReadingId
from dspark_convert.traces.trace import Trace
from tests.conftest import mostly_slow

from .helpers import DENSE, ONE_PLUS_N_DECLARED, Plant, put, record_trace, run
from .test_diagnose import EMBEDDING, layers, noise, rope, show

PAIRS: dict[tuple[ReadingId, ReadingId], tuple[Plant, ...]] = {
    ("layout-other", "layer-ids-minus-1"): (ONE_PLUS_N_DECLARED, layers(1, 3, 5)),
    ("rope-base", "mask-other"): (rope(rope_theta=10000.0), put(mask_token_id=0)),
    ("target-embedding", "rope-unscaled"): (noise(EMBEDDING), rope(rope_type="linear", factor=4.0)),
    ("layout-other", "target-embedding"): (ONE_PLUS_N_DECLARED, noise(EMBEDDING)),
}


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Long enough for a fault that another one hides."""
    return record_trace(tmp_path_factory.mktemp("longer"), every=1, max_new_tokens=96)


# Two plain faults show in the shorter trace too.
CASES = [
    (*pair, "trace" if pair == ("rope-base", "mask-other") else "long_trace") for pair in PAIRS
]


@pytest.mark.parametrize(("one", "other", "texts"), mostly_slow(CASES, fast=[CASES[1]]))
def test_of_two_faults_one_is_named(
    one: ReadingId,
    other: ReadingId,
    texts: str,
    build: Callable[..., Path],
    request: pytest.FixtureRequest,
) -> None:
    diagnosis = run(build(DENSE, *PAIRS[one, other]), request.getfixturevalue(texts))
    show(f"{one} and {other}", diagnosis)
    assert diagnosis.verdict == "cause-found"
    assert diagnosis.best in (one, other)
