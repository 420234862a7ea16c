"""Gate, forms, ``compare`` and ``render`` from outside: files, exit codes, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as XML

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from dspark_convert.reports.gate import read_gate
from dspark_convert.schemas.catalog import schema_of
from dspark_convert.schemas.diagnosis import DecisionRule, Diagnosis, HypothesisResult
from tests.conftest import ROOT, Outcome, write_otherwise
from tests.reports.documents import HOSTILE, acceptance, report

GOLDEN = ROOT / "fixtures" / "golden"
DENSE = GOLDEN / "dense_gated_fp32" / "checkpoint"
VERIFIER = GOLDEN / "verifier_fp32"
FORBIDDEN = set("\x1b\x07\x00\x9b\u202e\u2066\u200b")

Save = Callable[..., Path]


def verify(*arguments: object, **env: str) -> Outcome:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a report with all checks passed; returns the file."""

    def save_report(name: str, text: str = "draft", **changes: Any) -> Path:
        passed = dict.fromkeys(("parity", "lossless-greedy", "acceptance"), "pass")
        changes = {"verdicts": passed, "verdict": "pass", **changes}
        path = tmp_path / name
        path.write_text(report(text, **changes).model_dump_json())
        return path

    return save_report


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    entries = [{"id": f"p{i}", "prompt_token_ids": [7 * i, i + 3, 11 * i, 5]} for i in range(3)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture
def gate(tmp_path: Path, prompts: Path) -> Path:
    """Thresholds that the golden draft reaches, but for the prompt set ``strict``."""
    path = tmp_path / "dspark.toml"
    path.write_text(
        'required_checks = ["acceptance"]\n'
        f'[prompt_sets.short]\nprompts = "{prompts.name}"\n'
        f'[prompt_sets.strict]\nprompts = "{prompts.name}"\nmin_accepted_length = 7\n'
        'required_checks = ["parity"]\n'
    )
    return path


def check(*arguments: object, **env: str) -> Outcome:
    pytest.importorskip("torch")
    short = ("--max-new-tokens", 12, "--device", "cpu", "--temperature", 0.8)
    return verify("check", DENSE, "--target", VERIFIER, *short, *arguments, **env)


def test_gate_passes_and_every_form_is_written(gate: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    files = {form: tmp_path / f"out.{form}" for form in ("report", "junit", "markdown")}
    options = [part for form, path in files.items() for part in (f"--{form}", path)]
    outcome = check(
        "--gate", gate, "--prompt-set", "short", *options, GITHUB_STEP_SUMMARY=str(summary)
    )
    assert outcome.code == 4, outcome  # too few tokens for the confidence head
    document = json.loads(files["report"].read_text())
    assert document["settings"]["prompts"] == "prompts.jsonl"
    assert document["gate"]["prompt_set"] == "short"
    assert document["example"]["rounds"]
    names = [case.get("name") for case in XML.fromstring(files["junit"].read_text())[0]]
    assert names[-1] == "required-check:acceptance"
    assert summary.read_text() == "before\n" + files["markdown"].read_text()
    assert "required-check:acceptance" in outcome.out


def test_gate_fails_with_exit_1_and_names_the_rule(gate: Path) -> None:
    outcome = check("--gate", gate, "--prompt-set", "strict", "--json")
    assert outcome.code == 1
    assert outcome.json["settings"]["min_accepted_length"] == 7
    assert outcome.json["gate"]["rules"] == [
        {
            "rule": "required-check:parity",
            "verdict": "fail",
            "reason": "skipped: no --source was given",
        }
    ]


def test_options_overrule_the_gate(gate: Path, tmp_path: Path) -> None:
    options = ("--gate", gate, "--prompt-set", "strict", "--min-accepted-length", 0.5)
    outcome = check(*options, "--source", write_otherwise(DENSE, tmp_path / "source"), "--json")
    assert outcome.json["settings"]["min_accepted_length"] == 0.5
    assert outcome.json["gate"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--prompt-set", "short"), "gate-missing"),
        (("--gate", "{gate}", "--prompt-set", "none"), "prompt-set-unknown"),
        (("--gate", "{gate}", "--prompt-set", "short", "--prompts", "x"), "prompt-set-conflict"),
    ],
)
def test_exit_2_for_prompt_sets_that_cannot_be_meant(
    gate: Path, options: tuple[str, ...], code: str
) -> None:
    outcome = check(*(option.format(gate=gate) for option in options), "--json")
    assert (outcome.code, outcome.codes) == (2, [code])


def test_exit_3_before_the_work_when_a_form_cannot_be_written(tmp_path: Path) -> None:
    options = ("check", "absent", "--target", "absent", "--json")
    for option in ("--report", "--junit", "--markdown"):
        for path in (tmp_path / "absent" / "file", tmp_path):
            outcome = verify(*options, option, path)
            assert (outcome.code, outcome.codes) == (3, ["report-not-written"])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, save: Save) -> None:
    report, page = save("r.json"), tmp_path / "r.html"
    program = (
        "import sys; sys.modules['matplotlib'] = None; "
        "from dspark_convert.cli.verify import main; "
        f"sys.argv = ['dspark-verify', 'render', {str(report)!r}, '--html', {str(page)!r}]; "
        "main()"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "dspark-convert[report]" in done.stderr
    assert not page.exists()


@pytest.mark.parametrize("form", ["junit", "markdown", "html"])
def test_render_makes_each_form(form: str, save: Save, tmp_path: Path) -> None:
    if form == "html":
        pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert verify("render", save("r.json"), f"--{form}", out).code == 0
    assert "draft" in out.read_text()
    assert not list(tmp_path.glob(".*tmp"))


def test_a_planted_link_is_not_written_through(save: Save, tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "r.md"
    victim.write_text("precious")
    (tmp_path / ".r.md.tmp").symlink_to(victim)
    assert verify("render", save("r.json"), "--markdown", out).code == 0
    assert (victim.read_text(), out.is_symlink()) == ("precious", False)


def test_a_report_is_written_under_a_long_name_or_refused(save: Save, tmp_path: Path) -> None:
    report, out = save("r.json"), tmp_path / ("r" * 252)
    assert verify("render", report, "--markdown", out).code == 0
    assert out.read_text().startswith("## ")
    for path in (tmp_path / ("r" * 256), Path("/proc/r.md"), Path("/dev/full")):
        outcome = verify("render", report, "--markdown", path)
        assert (outcome.code, "report-not-written" in outcome.err) == (3, True), path


@pytest.mark.parametrize(
    "text",
    [
        '[baseline]\nreport = "a\\u0000b"\nmax_drop = 1\n',
        '[prompt_sets.a]\ntrace = "a\\u0000b"\n',
        '[prompt_sets.a]\nprompts = "\\u0000"\n',
        "a." * 201 + "a = 1",
        "x = " + "[" * 5_000,
        "\ud800",
    ],
)
def test_a_gate_that_no_editor_writes_is_refused_at_once(tmp_path: Path, text: str) -> None:
    gate = tmp_path / "g.toml"
    gate.write_text(text, errors="surrogatepass")
    outcome = verify("check", "absent", "--gate", gate, "--prompt-set", "a", "--json")
    assert (outcome.code, set(outcome.codes)) == (3, {"gate-invalid"})


def test_dots_in_the_comments_of_a_gate_mean_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "g.toml"
    gate.write_text("  # " + "." * 300 + "\nmin_accepted_length = 2.5\n")
    assert read_gate(gate).min_accepted_length == 2.5


def test_render_refuses_nothing_to_make_and_what_is_no_report(save: Save, tmp_path: Path) -> None:
    assert verify("render", save("r.json")).code == 2
    other = tmp_path / "other.json"
    other.write_text("{}")
    outcome = verify("render", other, "--junit", tmp_path / "out")
    assert outcome.code == 3
    assert "report-invalid" in outcome.err


def test_compare_says_pass_fail_and_inconclusive(save: Save) -> None:
    base = save("base.json")
    worse = save("worse.json", numbers={"acceptance": acceptance(1.5)})
    unlike = save("unlike.json", settings={"temperature": 1.0})
    assert verify("compare", base, base).code == 0
    assert verify("compare", base, worse, "--max-drop", 0.4).code == 1
    assert verify("compare", base, worse, "--max-drop", 0.6).code == 0
    assert verify("compare", worse, base, "--max-drop", 0).code == 0
    assert verify("compare", base, unlike).code == 4
    assert verify("compare", base, worse, "--max-drop", -1).code == 2
    assert verify("compare", base, base.parent / "absent.json").code == 3


def test_compare_shows_what_changed(save: Save) -> None:
    base, new = save("base.json"), save("new.json", numbers={"acceptance": acceptance(1.5)})
    options = ("compare", base, new, "--max-drop", 0.4)
    outcome = verify(*options, COLUMNS="200")
    assert "2.000 -> 1.500, a drop of 0.500" in outcome.out
    assert "a drop of 0.4 is allowed" in outcome.out
    document = verify(*options, "--json").json
    Draft202012Validator(schema_of("comparison")).validate(document)
    assert document["verdict"] == "fail"
    assert document["accepted_length"]["drop"] == 0.5
    assert verify(*options, "--quiet").out == ""


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_as_data(text: str, save: Save) -> None:
    outcome = verify("compare", save("base.json"), save("new.json", text), COLUMNS="300")
    assert not FORBIDDEN & set(outcome.out + outcome.err)


def test_compare_and_render_need_no_pytorch(save: Save, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
        "from dspark_convert.cli.verify import app; "
        "app(sys.argv[1:], standalone_mode=False)"
    )
    report = str(save("r.json"))
    form = ("--junit", str(tmp_path / "r.xml"))
    for arguments in (("compare", report, report), ("render", report, *form)):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_diagnosis_goes_into_the_page(tmp_path: Path, save: Save) -> None:
    pytest.importorskip("matplotlib")
    rule = DecisionRule(
        comparisons=2,
        error=0.01,
        level=0.995,
        min_overlap_gain=0.005,
        min_accepted_tokens_gain=0.03,
        min_texts=8,
    )
    reading = HypothesisResult(
        id="layer-ids-minus-1", status="cause", reason=HOSTILE[0], anchors=90
    )
    early = HypothesisResult(id="mask-other", status="rejected", reason="", anchors=45)
    diagnosis = Diagnosis(
        tool_version="1",
        verdict="cause-found",
        best="layer-ids-minus-1",
        reason="it drafts better",
        draft="draft",
        target="target",
        texts=9,
        anchors=90,
        temperature=0.0,
        overlap_temperature=1.0,
        seed=0,
        decision=rule,
        hypotheses=(reading, early),
        findings=(),
    )
    file, page = tmp_path / "diagnosis.json", tmp_path / "page.html"
    file.write_text(diagnosis.model_dump_json())
    report_file = save("report.json")
    assert verify("render", report_file, "--diagnosis", file, "--html", page).code == 0
    assert "layer-ids-minus-1" in page.read_text()
    assert "<td>cause</td>" in page.read_text()
    assert "<td>rejected, judged on 45 of 90 anchors</td>" in page.read_text()
    refused = verify("render", report_file, "--diagnosis", report_file, "--html", page)
    assert refused.code == 3
    assert "diagnosis-invalid" in refused.err


@pytest.mark.parametrize(
    "options",
    [
        ("--trace", "{input}", "--report", "{input}"),
        ("--target", "{folder}", "--prompts", "{input}", "--markdown", "{input}"),
        ("--trace", "{other}", "--gate", "{input}", "--junit", "{input}"),
        ("--trace", "{other}", "--target-weights", "{folder}", "--report", "{folder}/config.json"),
        ("--trace", "{other}", "--report", "{new}", "--junit", "{new}"),
    ],
)
def test_a_report_replaces_no_input_and_no_other_form(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    places = {name: tmp_path / name for name in ("input", "other", "folder", "new")}
    for name in ("input", "other", "folder/config.json"):
        (tmp_path / name).write_text("precious")
    (tmp_path / "link").symlink_to("input")
    filled = [option.format(**places) for option in options]
    for arguments in (
        filled,
        [each.replace("/input", "/link") for each in filled[:-1]] + filled[-1:],
    ):
        outcome = verify("check", DENSE, *arguments)
        assert outcome.code == 3
        assert "report-not-written" in outcome.err
    for name in ("input", "other", "folder/config.json"):
        assert (tmp_path / name).read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_render_does_not_replace_what_it_reads(save: Save) -> None:
    path = save("report.json")
    before = path.read_bytes()
    assert verify("render", path, "--markdown", path).code == 3
    assert path.read_bytes() == before
