"""The bins of the reliability diagram are those of the calibration error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.checks.confidence import decide_confidence
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.schemas.numbers import ConfidenceNumbers

TOKENS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 3)), min_size=1)


def numbers(tokens: list[tuple[float, float, float]]) -> ConfidenceNumbers:
    scores, accepted, weights = np.array(tokens, dtype=float).T
    ones, texts = np.ones(len(tokens), dtype=int), np.zeros(len(tokens), dtype=int)
    groups = group_prompts(["one"])
    found = decide_confidence(
        ones, scores, accepted, weights, 1, texts=texts, groups=groups
    ).numbers
    assert isinstance(found, ConfidenceNumbers)
    return found


@given(TOKENS)
def test_bins_hold_every_token_and_give_the_calibration_error(
    tokens: list[tuple[float, float, float]],
) -> None:
    found = numbers(tokens)
    gaps = [
        x.tokens * abs((x.mean_confidence or 0) - (x.acceptance or 0)) for x in found.reliability
    ]
    assert sum(x.tokens for x in found.reliability) == pytest.approx(found.tokens)
    assert sum(gaps) / found.tokens == pytest.approx(found.expected_calibration_error, abs=1e-9)


def test_bins_are_tenths_and_the_last_holds_1() -> None:
    found = numbers([(0.0, 0, 1), (0.1, 1, 1), (0.15, 0, 1), (1.0, 1, 1)])
    assert [(x.low, x.high) for x in found.reliability][:2] == [(0.0, 0.1), (0.1, 0.2)]
    assert [x.tokens for x in found.reliability] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    assert found.reliability[1].acceptance == 0.5
