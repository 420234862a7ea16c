"""Texts of one prompt count once in intervals, and different prompts as before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.replay.repetition import group_prompts

PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=12)


def test_texts_of_one_prompt_are_added_up_in_the_order_of_their_first() -> None:
    groups = group_prompts([(5, 1), (2,), (5, 1), (7,), (2,), (5, 1)])
    assert groups.first == (0, 1, 0, 3, 1, 0)
    assert groups.repeated == (None, None, 0, None, 1, 0)
    assert groups.different == 3
    assert groups.sizes.tolist() == [3, 2, 3, 1, 2, 3]
    counts = np.array(
        [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [5.0, 50.0], [6.0, 60.0]]
    )
    assert groups.pool(counts).tolist() == [[10.0, 100.0], [7.0, 70.0], [4.0, 40.0]]
    assert groups.pool(counts[:, 0]).tolist() == [10.0, 7.0, 4.0]
    assert groups.warnings == ("3 of 6 prompts are repetitions, and count once in intervals",)


def test_different_prompts_are_left_as_they_are() -> None:
    groups = group_prompts([(1,), (1, 1), ()])
    values = np.array([0.1, 0.2, 0.3])
    assert groups.pool(values) is values
    assert (groups.warnings, groups.repeated) == ((), (None, None, None))
    assert group_prompts([]).sizes.tolist() == []


@given(PROMPTS)
def test_nothing_is_lost_and_as_many_are_left_as_differ(prompts: list[tuple[int, int]]) -> None:
    groups = group_prompts(prompts)
    values = np.arange(1.0, len(prompts) + 1)
    pooled = groups.pool(values)
    assert len(pooled) == groups.different == len(set(prompts))
    assert pooled.sum() == values.sum()
    assert (1 / groups.sizes).sum() == pytest.approx(groups.different)
