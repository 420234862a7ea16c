"""A report that contradicts itself is not read; every rule is seen to catch its case."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.errors import ReportError
from dspark_convert.reports.consistency import find_contradictions
from dspark_convert.reports.read import read_report
from dspark_convert.schemas.report import VerifyReport

from .documents import acceptance, report

Document = dict[str, Any]
Edit = Callable[[Document], object]

GOOD = report(
    verdict="pass",
    verdicts=dict.fromkeys(("parity", "lossless-greedy", "acceptance"), "pass"),
).model_dump(mode="json")
EXPECTED = {"rounds": 1.5, "committed": 3.25}
PLACES = {check["id"]: index for index, check in enumerate(GOOD["checks"])}


def numbers(check: str, **changes: Any) -> Edit:
    return lambda document: document["checks"][PLACES[check]]["numbers"].update(changes)


def verdict(check: str, value: str) -> Edit:
    return lambda document: document["checks"][PLACES[check]].update(verdict=value)


def all_skipped(document: Document) -> None:
    for check in document["checks"]:
        check.update(verdict="skipped", numbers=None)


def without_interval(document: Document) -> None:
    """A threshold was asked for, and only the length itself reaches it."""
    document["settings"]["min_accepted_length"] = 1.95
    document["checks"][PLACES["acceptance"]]["numbers"]["threshold"] = 1.95


DIFFERENCE = {
    "prompt": "a",
    "position": 0,
    "speculative_token_id": 1,
    "plain_token_id": 2,
    "top2_gap": 1.0,
    "gap_in_ulp": 100.0,
    "tie": False,
}
REPEATED = [
    {"id": "0", "accepted_per_round": [0, 2]},
    {"id": "1", "same_prompt_as": 0, "accepted_per_round": [1, 1]},
]
LATER = [
    {"id": "0", "same_prompt_as": 1, "accepted_per_round": [0, 2]},
    {"id": "1", "accepted_per_round": [1, 1]},
]
SAMPLED = {"method": "sampled", "sha256": "0" * 64, "nbytes": 8}
RULES: dict[str, tuple[Edit, str]] = {
    "no checks": (lambda d: d.update(checks=[]), "checks"),
    "all skipped": (all_skipped, "verdict"),
    "a check twice": (lambda d: d["checks"].append(d["checks"][0]), "checks"),
    "a check fails": (verdict("pairing", "fail"), "verdict"),
    "a check is undecided": (verdict("confidence", "inconclusive"), "verdict"),
    "the gate fails": (lambda d: d["gate"].update(verdict="fail"), "verdict"),
    "pass without numbers": (
        lambda d: d["checks"][PLACES["parity"]].update(numbers=None),
        "checks.2.numbers",
    ),
    "skipped with numbers": (verdict("parity", "skipped"), "checks.2.numbers"),
    "errors": (numbers("structure", errors=1), "checks.0.verdict"),
    "tokenizer": (numbers("pairing", tokenizer="different"), "checks.1.verdict"),
    "outputs": (numbers("parity", different=["base_logits"]), "checks.2.verdict"),
    "no tie": (
        numbers("lossless-greedy", identical=1, differences=[DIFFERENCE]),
        "checks.3.verdict",
    ),
    "an output is missing": (numbers("lossless-greedy", identical=1), "checks.3.verdict"),
    "length": (numbers("acceptance", accepted_length=99.0), "checks.5.numbers.accepted_length"),
    "no length": (numbers("acceptance", accepted_length=None), "checks.5.numbers.accepted_length"),
    "committed": (numbers("acceptance", committed=9), "checks.5.numbers.accepted_length"),
    "rounds": (numbers("acceptance", rounds=5), "checks.5.numbers.rounds"),
    "accepted": (numbers("acceptance", accepted=5), "checks.5.numbers.accepted"),
    "survival": (
        numbers("acceptance", survival_by_position=[0.75, 0.5]),
        "checks.5.numbers.survival_by_position.1",
    ),
    "unequal lists": (
        numbers("acceptance", survival_by_position=[0.75]),
        "checks.5.numbers.survival_by_position",
    ),
    "histogram": (numbers("acceptance", histogram=[1, 2]), "checks.5.numbers.histogram"),
    "share": (
        numbers("acceptance", acceptance_by_position=[1.5, 0.5]),
        "checks.5.numbers.acceptance_by_position",
    ),
    "prompts": (
        numbers("acceptance", prompts=[{"id": "0", "accepted_per_round": [0, 2]}]),
        "checks.5.numbers.rounds",
    ),
    "other prompts": (
        numbers("acceptance", prompts=[{"id": "0", "accepted_per_round": [0, 0, 0, 0]}]),
        "checks.5.numbers.committed",
    ),
    "expected rounds": (
        numbers("acceptance", prompts=[{"id": "0", **EXPECTED}]),
        "checks.5.numbers.rounds",
    ),
    "a threshold that is not reached": (numbers("acceptance", threshold=3.0), "checks.5.verdict"),
    "an interval that does not reach it": (without_interval, "checks.5.verdict"),
    "an interval of one prompt": (
        numbers("acceptance", prompts=REPEATED),
        "checks.5.numbers.interval95",
    ),
    "intervals of one prompt": (
        numbers("acceptance", interval95=None, prompts=REPEATED),
        "checks.5.numbers.acceptance_interval95",
    ),
    "the same as a later prompt": (
        numbers("acceptance", prompts=LATER),
        "checks.5.numbers.prompts.0.same_prompt_as",
    ),
    "weights read otherwise": (
        lambda d: d["draft"].update(weights=SAMPLED),
        "draft.weights.method",
    ),
    "no target": (lambda d: d.update(target=None), "target"),
    "confidence": (numbers("confidence", accepted=4), "checks.6.numbers.accepted"),
}


def test_a_report_as_it_is_written_agrees_with_itself() -> None:
    assert list(find_contradictions(VerifyReport.model_validate(GOOD))) == []
    assert list(find_contradictions(report())) == []


@pytest.mark.parametrize(("edit", "key"), RULES.values(), ids=RULES)
def test_a_contradiction_is_named_by_its_key(edit: Edit, key: str, tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD)
    edit(document)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ReportError) as refused:
        read_report(path)
    assert {finding.code for finding in refused.value.findings} == {"report-inconsistent"}
    assert key in [finding.key for finding in refused.value.findings]
    assert all(finding.hint and finding.file == "report.json" for finding in refused.value.findings)


def test_sampled_draws_that_cannot_be_do_not_pass() -> None:
    good = {
        "temperature": 1.0,
        "positions": 10,
        "max_law_error": 1e-12,
        "tokens": 1000,
        "impossible": 0,
        "chi_square": 60.0,
        "degrees_of_freedom": 63,
        "p_value": 0.5,
        "significance": 1e-6,
    }
    for changes, wrong in (({}, 0), ({"impossible": 1}, 1), ({"p_value": 1e-9}, 1)):
        found = report(
            verdict="pass",
            verdicts={"lossless-sampling": "pass", "lossless-greedy": "pass", "acceptance": "pass"},
            numbers={"lossless-sampling": {**good, **changes}},
        )
        assert len(list(find_contradictions(found))) == wrong


def test_expected_counts_of_a_trace_add_up() -> None:
    prompts = ({"id": "0", **EXPECTED}, {"id": "1", "rounds": 2.5, "committed": 4.75})
    found = report(numbers={"acceptance": acceptance(prompts=prompts, method="replayed")})
    assert list(find_contradictions(found)) == []
