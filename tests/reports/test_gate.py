"""``dspark.toml``: read, applied, judged, and refused with every fault named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_convert.errors import CheckpointError, GateError, ReportError, UsageError
from dspark_convert.reports.gate import Gate, apply_gate, open_gate
from dspark_convert.reports.read import read_report
from dspark_convert.schemas.identity import WeightsIdentity
from tests.reports.documents import acceptance, report

WHOLE = """
min_accepted_length = 2.5
min_acceptance = [0.7, 0.5]
required_checks = ["structure", "acceptance"]

[baseline]
report = "base/report.json"
max_drop = 0.1
max_drop_standard_errors = 2

[prompt_sets.chat]
trace = "chat.safetensors"
min_accepted_length = 3.0

[prompt_sets.code]
prompts = "code.jsonl"
required_checks = []
min_acceptance = []
"""


@pytest.fixture
def gate_file(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/report.json").write_text(report().model_dump_json())
    path = tmp_path / "dspark.toml"
    path.write_text(WHOLE)
    return path


def gate(**changes: object) -> Gate:
    nothing = {
        "file": "dspark.toml",
        "prompt_set": None,
        "prompts": None,
        "trace": None,
        "min_accepted_length": None,
        "min_acceptance": (),
        "required_checks": (),
        "baseline": None,
    }
    return Gate(**{**nothing, **changes})  # type: ignore[arg-type]


def test_the_file_without_a_prompt_set(gate_file: Path) -> None:
    found = open_gate(gate_file)
    assert (found.min_accepted_length, found.min_acceptance) == (2.5, (0.7, 0.5))
    assert found.required_checks == ("structure", "acceptance")
    assert (found.prompts, found.trace) == (None, None)
    assert found.baseline is not None
    assert found.baseline[0].max_drop == 0.1
    assert found.baseline[1] == report()


def test_a_prompt_set_replaces_what_it_says_and_keeps_the_rest(gate_file: Path) -> None:
    chat, code = (open_gate(gate_file, name) for name in ("chat", "code"))
    assert chat.trace == gate_file.parent / "chat.safetensors"
    assert (chat.min_accepted_length, chat.min_acceptance) == (3.0, (0.7, 0.5))
    assert code.prompts == gate_file.parent / "code.jsonl"
    assert (code.required_checks, code.min_acceptance) == ((), ())
    assert chat.baseline is not None
    assert code.baseline == chat.baseline


def test_an_unknown_prompt_set_is_refused_with_those_there_are(gate_file: Path) -> None:
    with pytest.raises(UsageError) as refused:
        open_gate(gate_file, "prose")
    assert refused.value.code == "prompt-set-unknown"
    assert refused.value.findings[0].expected == "chat, code"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("min_accepted_lenght = 2", ["min_accepted_lenght"]),
        ("min_accepted_length = -1", ["min_accepted_length"]),
        ("min_accepted_length = nan", ["min_accepted_length"]),
        ("min_accepted_length = inf", ["min_accepted_length"]),
        ("min_acceptance = [nan]", ["min_acceptance.0"]),
        ('[baseline]\nreport = "b"\nmax_drop = nan', ["baseline.max_drop"]),
        ('[baseline]\nreport = "b"\nmax_drop = inf', ["baseline.max_drop"]),
        (
            '[baseline]\nreport = "b"\nmax_drop_standard_errors = inf',
            ["baseline.max_drop_standard_errors"],
        ),
        ('min_acceptance = [0.5, 1.5, "x"]', ["min_acceptance.1", "min_acceptance.2"]),
        ('required_checks = ["speed"]', ["required_checks.0"]),
        ('[baseline]\nreport = "b.json"', ["baseline"]),
        ('[baseline]\nreport = ""\nmax_drop = 1', ["baseline.report"]),
        ("[prompt_sets.a]", ["prompt_sets.a"]),
        ('[prompt_sets.a]\ntrace = "t"\nprompts = "p"', ["prompt_sets.a"]),
        ("schema_version = 2", ["schema_version"]),
        ("not toml", [None]),
        ("a = " + "[" * 5000, [None]),
        ("\x00", [None]),
    ],
)
def test_faults_are_named_by_key(tmp_path: Path, text: str, keys: list[str | None]) -> None:
    path = tmp_path / "dspark.toml"
    path.write_text(text)
    with pytest.raises(GateError) as refused:
        open_gate(path)
    assert [finding.key for finding in refused.value.findings] == keys
    assert {finding.code for finding in refused.value.findings} == {"gate-invalid"}


def test_bytes_that_are_not_utf8_and_absent_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dspark.toml"
    with pytest.raises(CheckpointError):
        open_gate(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(GateError):
        open_gate(path)
    path.write_text('[baseline]\nreport = "absent.json"\nmax_drop = 1')
    with pytest.raises(CheckpointError) as refused:
        open_gate(path)
    assert refused.value.findings[0].file == "absent.json"


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("structure", "pass"),
        ("acceptance", "fail"),
        ("lossless-greedy", "inconclusive"),
        ("parity", "fail"),
    ],
)
def test_a_required_check_must_pass(check: str, expected: str) -> None:
    judged = apply_gate(gate(required_checks=(check,)), report(verdict="pass")).gate
    assert judged is not None
    assert judged.verdict == expected
    assert [rule.rule for rule in judged.rules] == [f"required-check:{check}"]


def test_the_worse_verdict_is_that_of_the_report() -> None:
    strict, none = gate(required_checks=("parity",)), gate()
    assert apply_gate(strict, report(verdict="pass")).verdict == "fail"
    assert apply_gate(strict, report(verdict="inconclusive")).verdict == "fail"
    assert apply_gate(none, report(verdict="inconclusive")).verdict == "inconclusive"
    assert apply_gate(none, report(verdict="pass")).verdict == "pass"


def test_a_drop_against_the_baseline_fails(gate_file: Path) -> None:
    worse = report(numbers={"acceptance": acceptance(1.8)})
    judged = apply_gate(open_gate(gate_file), worse).gate
    assert judged is not None
    assert judged.baseline == "report.json"
    found = {rule.rule: rule.verdict for rule in judged.rules}
    assert found["max-drop"] == "fail"


def test_a_gate_says_that_the_name_of_the_baseline_has_other_weights(gate_file: Path) -> None:
    judged = []
    for digest in ("a", "b"):
        found = report()
        weights = WeightsIdentity(method="all-bytes", sha256=digest, nbytes=8)
        draft = found.draft.model_copy(update={"weights": weights})
        found = found.model_copy(update={"draft": draft})
        (gate_file.parent / "base/report.json").write_text(found.model_dump_json())
        judged.append(found)
    same, other = (apply_gate(open_gate(gate_file), each).gate for each in reversed(judged))
    assert same is not None
    assert same.notes == ()
    assert other is not None
    assert other.notes == ("the draft has the same name in both reports, and other weights",)


def test_a_report_reads_back_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(report("\u202e<b>").model_dump_json())
    assert read_report(path) == report("\u202e<b>")
    document = json.loads(path.read_text())
    document["settings"]["seed"] = "first"
    path.write_text(json.dumps(document))
    with pytest.raises(ReportError) as refused:
        read_report(path)
    assert refused.value.findings[0].key == "settings.seed"
    path.write_text("[]")
    with pytest.raises(ReportError):
        read_report(path)
