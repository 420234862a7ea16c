"""Checks are rows: what is run, listed, explained, documented and published follows from them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dspark_convert.checks import CHECKS, find_check
from dspark_convert.checks.base import SOURCE, Check, Need
from dspark_convert.cli.verify import app
from dspark_convert.errors import GateError, UsageError
from dspark_convert.reports.compare import DropLimits, compare_reports
from dspark_convert.reports.gate import open_gate
from dspark_convert.reports.read import read_report
from dspark_convert.schemas.numbers import StructureNumbers
from dspark_convert.schemas.report import CHECK_IDS, CheckResult
from tests.conftest import ROOT, Outcome

REDUCED = ROOT / "fixtures/golden/spec_vanilla_reduced_anchor_bf16/checkpoint"

SMALL = Check(
    id="small",
    title="Is the draft small?",
    looks_at="The hidden size.",
    fails_when="It is 1,000 or above.",
    what_to_do="Train a smaller draft.",
    run=lambda context: CheckResult(
        id="small",
        verdict="pass" if context.source.config.hidden_size < 1000 else "fail",
        reason=f"hidden size {context.source.config.hidden_size}",
        numbers=StructureNumbers(errors=0, warnings=0, notes=0, findings=()),
    ),
)
NEVER = Check(
    id="never",
    title="Is it Sunday?",
    looks_at="The sky.",
    fails_when="It rains.",
    what_to_do="Wait.",
    needs=(Need(met=lambda context: False, otherwise="the sky is not known"), SOURCE),
    run=lambda context: pytest.fail("it lacks what it needs"),
)


def command(*arguments: object) -> Outcome:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> tuple[Check, ...]:
    """Two more rows; nothing else is told of them."""
    for check in (SMALL, NEVER):
        monkeypatch.setitem(CHECKS, check.id, check)  # type: ignore[arg-type]
    return SMALL, NEVER


# The rows that there are


def test_a_row_is_found_by_its_own_id() -> None:
    assert {check_id: check.id for check_id, check in CHECKS.items()} == {
        check_id: check_id for check_id in CHECKS
    }


def test_published_schemas_list_the_rows_in_their_order() -> None:
    assert tuple(CHECKS) == CHECK_IDS, "schemas/report.py: CHECK_IDS"


def test_every_row_has_words_of_its_own() -> None:
    assert len({check.explain() for check in CHECKS.values()}) == len(CHECKS)
    for check in CHECKS.values():
        text = check.explain()
        assert text.startswith(f"{check.id}: {check.title}\n\n")
        assert f"Fails when: {check.fails_when}" in text
        assert f"What to do: {check.what_to_do}" in text


def test_an_unknown_check_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        find_check("speed")
    assert caught.value.code == "check-unknown"
    assert caught.value.findings[0].expected == ", ".join(CHECKS)


def test_rows_and_their_words_need_no_pytorch() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from dspark_convert.cli.verify import app; app(['explain', 'parity'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == CHECKS["parity"].explain(), done.stderr


# A row that is added


def test_a_row_is_listed_and_explained(fakes: tuple[Check, ...]) -> None:
    listed = command("explain").out.splitlines()
    assert f"{'small':18} Is the draft small?" in listed
    assert len(listed) == len(CHECKS)
    assert command("explain", "small").out == SMALL.explain()


def test_a_row_is_documented(fakes: tuple[Check, ...], render_page: Callable[[str], str]) -> None:
    page = render_page("checks.md")
    assert "## `small`\n\n**Is the draft small?**\n\nThe hidden size.\n\n" in page
    assert "*Fails when:* It is 1,000 or above.\n\n*What to do:* Train a smaller draft." in page


def test_a_row_is_run_and_reported_or_skipped_for_what_it_lacks(
    fakes: tuple[Check, ...], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "report.json"
    done = command("check", REDUCED, "--source", REDUCED, "--report", path, "--device", "cpu")
    results = {result["id"]: result for result in json.loads(path.read_text())["checks"]}
    assert list(results) == [*CHECKS]
    assert results["small"]["verdict"] == "pass"
    assert results["small"]["reason"].startswith("hidden size ")
    assert (results["never"]["verdict"], results["never"]["reason"]) == (
        "skipped",
        "the sky is not known",
    )
    assert "small" in done.out
    report = read_report(path)
    changes = {
        change.id: change.new for change in compare_reports(report, report, DropLimits()).checks
    }
    assert changes["small"] == "pass"


def test_a_gate_may_require_a_row(fakes: tuple[Check, ...], tmp_path: Path) -> None:
    path = tmp_path / "dspark.toml"
    path.write_text('required_checks = ["small"]')
    assert open_gate(path).required_checks == ("small",)


def test_a_gate_may_not_require_what_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "dspark.toml"
    path.write_text('required_checks = ["small"]')
    with pytest.raises(GateError) as caught:
        open_gate(path)
    assert caught.value.findings[0].key == "required_checks.0"
    assert "'structure', 'pairing'" in caught.value.findings[0].message
