"""JUnit XML: a test case for each check and each rule of the gate, so that CI shows them.

JUnit has no word for "inconclusive", so it becomes an ``error``: the run ends with exit code 4, and
a check that decided nothing must not look green.
"""

from __future__ import annotations

from xml.etree import ElementTree as XML

from dspark_convert.reports.text import visible
from dspark_convert.schemas.report import VerifyReport

_ELEMENTS = {"fail": "failure", "inconclusive": "error", "skipped": "skipped"}


def render_junit(report: VerifyReport) -> str:
    """The document, with a final newline."""
    suite = XML.Element("testsuite", name="dspark-verify")
    for check in report.checks:
        seconds = float(report.seconds.get(check.id, 0.0))
        _add_case(suite, report.draft.name, check.id, check.verdict, check.reason, seconds)
    for rule in report.gate.rules if report.gate else ():
        _add_case(suite, f"{report.draft.name}.gate", rule.rule, rule.verdict, rule.reason, 0.0)
    suite.set("tests", str(len(suite)))
    for attribute, element in (
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        suite.set(attribute, str(len(suite.findall(f"testcase/{element}"))))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in suite):.3f}")
    suites = XML.Element("testsuites")
    suites.append(suite)
    XML.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{XML.tostring(suites, encoding="unicode")}\n'


def _add_case(
    suite: XML.Element, owner: str, name: str, verdict: str, reason: str, seconds: float
) -> None:
    case = XML.SubElement(
        suite, "testcase", classname=visible(owner), name=visible(name), time=f"{seconds:.3f}"
    )
    if verdict in _ELEMENTS:
        outcome = XML.SubElement(case, _ELEMENTS[verdict], message=visible(reason))
        if verdict != "skipped":
            outcome.set("type", verdict)
            outcome.text = visible(reason)
    else:
        XML.SubElement(case, "system-out").text = visible(reason)
