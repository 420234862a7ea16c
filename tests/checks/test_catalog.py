"""Every check is explained."""

from __future__ import annotations

from typing import get_args

from dspark_convert.checks.base import CATALOG, explain
from dspark_convert.schemas.report import CheckId


def test_every_check_has_a_text_of_its_own() -> None:
    assert set(CATALOG) == set(get_args(CheckId))
    assert len({explain(check_id) for check_id in CATALOG}) == len(CATALOG)


def test_a_text_says_what_fails_and_what_to_do() -> None:
    for check_id in CATALOG:
        text = explain(check_id)
        assert text.startswith(f"{check_id}: ")
        assert "Fails when: " in text
        assert "What to do: " in text
