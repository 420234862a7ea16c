"""JUnit XML: one case each, counted right, and parsed whatever the texts are."""

from __future__ import annotations

from xml.etree import ElementTree as XML

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.reports.junit import render_junit
from dspark_convert.reports.text import visible
from tests.reports.documents import HOSTILE, report


def test_every_check_and_rule_is_a_case_with_its_outcome() -> None:
    suite = XML.fromstring(render_junit(report()).encode())[0]
    outcomes = {case.get("name"): [child.tag for child in case] for case in suite}
    assert outcomes == {
        "structure": ["system-out"],
        "pairing": ["system-out"],
        "parity": ["skipped"],
        "lossless-greedy": ["error"],
        "lossless-sampling": ["skipped"],
        "acceptance": ["failure"],
        "confidence": ["system-out"],
        "required-check:parity": ["failure"],
    }
    counted = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")}
    assert counted == {
        "tests": "8",
        "failures": "2",
        "errors": "1",
        "skipped": "2",
        "time": "1.250",
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_arrive_whole(text: str) -> None:
    document = render_junit(report(text))
    failure = XML.fromstring(document.encode()).find(".//failure")
    assert failure is not None
    assert failure.text == failure.get("message") == visible(text)
    assert not any(ord(character) < 32 and character != "\n" for character in document)


@given(st.text(st.characters()))
def test_any_text_is_well_formed(text: str) -> None:
    XML.fromstring(render_junit(report(text)).encode())


def test_a_report_without_a_gate_has_only_its_checks() -> None:
    assert len(XML.fromstring(render_junit(report(gate=None)))[0]) == 7
