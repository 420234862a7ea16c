"""``dspark-verify`` from outside: every exit code, the report, and life without PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dspark_convert import __version__
from dspark_convert.cli.verify import app
from dspark_convert.schemas.catalog import schema_of
from tests.conftest import ROOT, Outcome, write_otherwise

pytest.importorskip("torch")

GOLDEN = ROOT / "fixtures" / "golden"
DENSE = GOLDEN / "dense_gated_fp32" / "checkpoint"
VERIFIER = GOLDEN / "verifier_fp32"
COMMAND = Path(sysconfig.get_path("scripts")) / "dspark-verify"


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    entries = [{"id": f"p{i}", "prompt_token_ids": [7 * i, i + 3, 11 * i, 5]} for i in range(6)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def installed(*arguments: object) -> Outcome:
    """Run the installed command in a process of its own."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, timeout=120, check=False
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def verify(*arguments: object) -> Outcome:
    """Run the same program inside this process, where PyTorch is loaded already."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


# The exit code comes from the same function either way; the slow suite sees each leave the process,
# and test_explain_knows_every_check one that needs no PyTorch.
RUNS = pytest.mark.parametrize("run", [verify, pytest.param(installed, marks=pytest.mark.slow)])


def check(*arguments: object, run: Callable[..., Outcome] = verify) -> Outcome:
    short = ("--max-new-tokens", 40, "--device", "cpu")
    return run("check", DENSE, "--target", VERIFIER, *short, *arguments)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_of_the_package_is_the_program_s(option: str) -> None:
    outcome = verify(option)
    assert (outcome.code, outcome.out) == (0, f"dspark-verify {__version__}\n")


def check_everything(prompts: Path, run: Callable[..., Outcome]) -> Outcome:
    """A draft that passes every check, at a temperature; ``passed.json`` is the report."""
    source = prompts.with_name("source")
    if not source.exists():
        write_otherwise(DENSE, source)
    options = ("--prompts", prompts, "--temperature", 0.8, "--source", source)
    return check(*options, "--report", prompts.with_name("passed.json"), "--json", run=run)


@pytest.fixture(scope="module")
def passed(prompts: Path) -> Outcome:
    return check_everything(prompts, verify)


def test_exit_0_when_every_check_passes(passed: Outcome, prompts: Path) -> None:
    assert_passed(passed, prompts)


@pytest.mark.slow
def test_exit_0_leaves_the_process(prompts: Path) -> None:
    assert_passed(check_everything(prompts, installed), prompts)


def assert_passed(outcome: Outcome, prompts: Path) -> None:
    assert outcome.code == 0, outcome
    document = json.loads(prompts.with_name("passed.json").read_text())
    assert document["verdict"] == "pass"
    assert {result["verdict"] for result in document["checks"]} == {"pass"}
    Draft202012Validator(schema_of("verify-report")).validate(document)
    assert outcome.json == document


@RUNS
def test_exit_1_names_the_check_that_failed(run: Callable[..., Outcome], prompts: Path) -> None:
    report = prompts.with_name("failed.json")
    options = ("--min-accepted-length", 3, "--report", report)
    outcome = check("--prompts", prompts, *options, run=run)
    assert outcome.code == 1
    assert json.loads(report.read_text())["verdict"] == "fail"
    assert "acceptance" in outcome.out
    assert "is below 3" in " ".join(outcome.out.split())


def test_exit_1_when_the_structure_is_broken(prompts: Path, tmp_path: Path) -> None:
    config = json.loads((DENSE / "config.json").read_text())
    del config["mask_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(DENSE / "model.safetensors")
    outcome = verify("check", tmp_path, "--target", VERIFIER, "--prompts", prompts, "--json")
    assert outcome.code == 1
    verdicts = {result["id"]: result["verdict"] for result in outcome.json["checks"]}
    assert verdicts.pop("structure") == "fail"
    assert set(verdicts.values()) == {"skipped"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--temperature", -1),
        ("--max-new-tokens", 0),
        ("--min-acceptance", "often"),
        ("--min-acceptance", "0.5," * 7 + "0.5"),
        ("--stop-token-ids", "one"),
        ("--device", "abacus"),
        ("--dtype", "int8"),
        ("--batch-size", 0),
        ("--num-speculative-tokens", 99),
        ("--draft-sampling", "lucky"),
        ("--nonsense",),
    ],
)
def test_exit_2_for_options_that_cannot_be_meant(
    prompts: Path, arguments: tuple[object, ...]
) -> None:
    assert check("--prompts", prompts, *arguments).code == 2


@RUNS
def test_exit_2_with_nothing_to_check_against(run: Callable[..., Outcome]) -> None:
    assert run("check", DENSE).code == 2


@pytest.mark.parametrize(
    ("draft", "target"),
    [("absent", VERIFIER), (DENSE, "absent"), (DENSE, GOLDEN), (ROOT, VERIFIER)],
)
def test_exit_3_when_an_input_cannot_be_read(draft: Path, target: Path, prompts: Path) -> None:
    assert verify("check", draft, "--target", target, "--prompts", prompts).code == 3


@RUNS
def test_exit_3_when_text_prompts_meet_a_target_without_a_tokenizer(
    run: Callable[..., Outcome],
) -> None:
    outcome = check(run=run)
    assert outcome.code == 3
    assert "tokenizer-missing" in outcome.err


@RUNS
def test_exit_4_when_the_interval_holds_the_threshold(
    run: Callable[..., Outcome], passed: Outcome, prompts: Path
) -> None:
    options = ("--prompts", prompts, "--temperature", 0.8)
    length = passed.json["checks"][5]["numbers"]["accepted_length"]
    outcome = check(*options, "--min-accepted-length", length, run=run)
    assert outcome.code == 4
    assert "prompts decide" in " ".join(outcome.out.split())


def test_exit_4_when_nothing_is_drafted(prompts: Path) -> None:
    assert check("--prompts", prompts, "--confidence-threshold", 1).code == 4


def test_source_alone_checks_parity_and_skips_the_rest(tmp_path: Path) -> None:
    source = write_otherwise(DENSE, tmp_path / "source")
    outcome = verify("check", DENSE, "--source", source, "--json")
    verdicts = {result["id"]: result["verdict"] for result in outcome.json["checks"]}
    assert outcome.code == 0
    assert verdicts["parity"] == "pass"
    assert verdicts["acceptance"] == "skipped"


def test_exit_4_when_the_source_is_the_draft_itself() -> None:
    outcome = verify("check", DENSE, "--source", DENSE)
    assert outcome.code == 4
    assert "--source is the draft itself" in " ".join(outcome.out.split())
    assert re.search("draft weights +SHA-256 [0-9a-f]{16}… of all bytes", outcome.out)


def test_explain_knows_every_check() -> None:
    listed = [line.split()[0] for line in verify("explain").out.splitlines()]
    assert listed == [
        "structure",
        "pairing",
        "parity",
        "lossless-greedy",
        "lossless-sampling",
        "acceptance",
        "confidence",
    ]
    assert all(verify("explain", name).out.startswith(f"{name}: ") for name in listed)
    assert installed("explain", "nothing").code == verify("explain", "nothing").code == 2


@pytest.mark.parametrize(
    "asked", [["check", "x", "--source", "y"], ["diagnose", "x", "--target", "y"]]
)
def test_without_pytorch_the_extra_is_named(asked: list[str], tmp_path: Path) -> None:
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError(name={name!r})")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from dspark_convert.cli.verify import main; "
        f"sys.argv = ['dspark-verify', *{asked!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert b"dspark-convert[verify]" in done.stderr


def test_a_report_goes_through_links_and_into_pipes(tmp_path: Path) -> None:
    source = write_otherwise(DENSE, tmp_path / "source")
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        outputs = ("--report", tmp_path / "link.json", "--junit", pipe)
        assert verify("check", DENSE, "--source", source, *outputs).code == 0
        assert os.read(reader, 5) == b"<?xml"
    finally:
        os.close(reader)
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["verdict"] == "pass"


def test_a_report_never_lands_in_a_folder_that_is_read(tmp_path: Path) -> None:
    for file in DENSE.iterdir():
        (tmp_path / file.name).symlink_to(file)
    outcome = verify("check", tmp_path, "--source", DENSE, "--report", tmp_path / "config.json")
    assert outcome.code == 3
    assert "report-not-written" in outcome.err
    assert (tmp_path / "config.json").is_symlink()
