"""One tree of errors in one file, and findings that say the same whatever their severity."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from dspark_convert import errors
from dspark_convert.errors import MAX_OF_A_KIND, DSparkError, Finding, Findings, Severity
from tests.conftest import ROOT


def test_every_error_of_the_package_is_in_the_tree() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, DSparkError)
    }
    assert classes == set(re.findall(r"\w+Error\b", errors.__doc__ or ""))
    for path in (ROOT / "dspark_convert").rglob("*.py"):
        if path != Path(errors.__file__):
            found = re.findall(r"^class \w+\((\w*Error)\)", path.read_text(), re.MULTILINE)
            assert not classes.intersection(found), path


@pytest.mark.parametrize("severity", ["error", "warning", "note"])
def test_a_finding_keeps_where_it_was_made(severity: Severity) -> None:
    findings = Findings()
    report = getattr(findings, severity)
    report("a-code", "words", file="f", key="k", tensor="t", expected=3, found=[1], hint="h")
    report("a-code", "words")
    assert tuple(findings) == (
        Finding(
            code="a-code",
            message="words",
            severity=severity,
            file="f",
            key="k",
            tensor="t",
            expected="3",
            found="[1]",
            hint="h",
        ),
        Finding(code="a-code", message="words", severity=severity),
    )
    assert findings.of(severity) == tuple(findings)


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(TypeError, match="wher"):
        Findings().error("a-code", "words", wher="here")  # type: ignore[call-arg]


def test_many_findings_of_a_kind_are_counted() -> None:
    findings = Findings()
    for number in range(48_000):
        findings.error("a-code", "words", tensor=str(number))
        findings.error("a-code", "words", tensor="0")
        findings.note("a-code", "other words")
    assert len(findings) == len(list(findings)) == MAX_OF_A_KIND + 2
    *_, last = findings.of("error")
    assert (last.code, last.message) == ("a-code", "and 47,980 more of this kind")
    assert len(findings.of("note")) == 1
    again = Findings()
    again.add(*findings)
    assert set(again) == set(findings)
