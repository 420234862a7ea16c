"""Pages that are generated are in step; commands and examples of the others run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dspark_convert.cli import convert, verify
from dspark_convert.schemas.catalog import schema_of
from dspark_convert.schemas.gate import GateFile
from tests.conftest import ROOT, Outcome
from tests.hub.conftest import hub, hub_process
from tests.hub.server import HubServer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["hub", "hub_process"]  # fixtures, which a test asks for by name

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall((DOCS / page).read_text()) if kind == language]


def commands(page: str) -> list[list[str]]:
    lines = "".join(blocks(page, "console")).splitlines()
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, which looks like a clone with a build folder of its own."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "fixtures").symlink_to(ROOT / "fixtures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def run(command: list[str]) -> Outcome:
    """Runs a command of a page inside this process, where PyTorch is loaded once."""
    program, *arguments = command
    if program == "mkdir":
        subprocess.run(command, check=True)
        return Outcome(0, "", "")
    app = {"dspark-convert": convert.app, "dspark-verify": verify.app}[program]
    result = CliRunner().invoke(app, arguments, env={"GITHUB_STEP_SUMMARY": ""})
    return Outcome(result.exit_code, result.stdout, result.stderr)


def run_all(page: str) -> None:
    for command in commands(page):
        done = run(command)
        assert done.code == 0, (command, done)


def generate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "generate.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_pages_are_what_the_code_says() -> None:
    done = generate(DOCS, "--check")
    assert done.returncode == 0, done.stderr


def test_drift_is_seen(tmp_path: Path) -> None:
    shutil.copy(DOCS / "generate.py", tmp_path)
    shutil.copy(DOCS / "checks.md", tmp_path)
    (tmp_path / "engines.md").write_text("changed")
    done = generate(tmp_path, "--check")
    assert done.returncode == 1
    assert "cli.md, engines.md" in done.stderr
    assert generate(tmp_path).returncode == 0
    assert generate(tmp_path, "--check").returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.slow
def test_commands_of_getting_started_run(clone: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    run_all("getting-started.md")
    assert "<ins>" in (clone / "build/getting-started/report.html").read_text()


@pytest.fixture(scope="module")
def released(clone: Path) -> Path:
    """The folder in which the commands of the pipeline page ran."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    build = clone / "build" / "pipeline"
    build.mkdir(parents=True)
    (thresholds,) = blocks("pipeline.md", "toml")
    (build / "dspark.toml").write_text(thresholds)
    run_all("pipeline.md")
    return build


def test_commands_of_the_pipeline_run_and_write_every_form(released: Path) -> None:
    forms = {path.suffix for path in released.glob("report.*")}
    assert forms == {".json", ".xml", ".md", ".html"}
    assert json.loads((released / "report.json").read_text())["gate"]["verdict"] == "pass"


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_recipe_of_the_push_publishes_the_draft_and_its_numbers(
    released: Path, hub: HubServer
) -> None:
    (recipe,) = blocks("pipeline.md", "sh")
    assert recipe.startswith("dspark-convert push build/pipeline/dense OWNER/NAME ")
    done = run(shlex.split(recipe))
    assert done.code == 0, done
    repo = hub.repos["OWNER/NAME"]
    assert repo.private
    for name in ("config.json", "model.safetensors", "dspark_conversion.json"):
        assert repo.tree[name] == (released / "dense" / name).read_bytes()
    report = json.loads((released / "report.json").read_text())
    (acceptance,) = [check for check in report["checks"] if check["id"] == "acceptance"]
    card = repo.tree["README.md"]
    assert isinstance(card, bytes)
    assert f"{acceptance['numbers']['accepted_length']:.2f}" in card.decode()


@pytest.mark.parametrize(
    ("flipped", "check"),
    [
        (("sample_from_anchor",), "structure"),
        (("sample_from_anchor", "dspark_bonus_anchor"), "parity"),
    ],
)
def test_the_pipeline_fails_when_the_layout_is_flipped(
    released: Path, tmp_path: Path, flipped: tuple[str, ...], check: str
) -> None:
    draft = shutil.copytree(released / "dense", tmp_path / "dense")
    config = json.loads((draft / "config.json").read_text())
    config |= {key: not config[key] for key in flipped}
    (draft / "config.json").write_text(json.dumps(config))
    (release,) = [command for command in commands("pipeline.md") if "--gate" in command]
    release = [str(draft) if part == "build/pipeline/dense" else part for part in release]
    done = run([*release, "--json"])
    assert done.code == 1
    failed = [result["id"] for result in done.json["checks"] if result["verdict"] == "fail"]
    assert failed == [check]
    assert f"required-check:{check}" in done.out


def test_examples_of_python_run(clone: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    exec("\n".join(blocks("python.md", "python")), {})
    assert "<svg" in (clone / "build/python/report.html").read_text()


def test_every_gate_key_is_explained() -> None:
    (thresholds,) = blocks("pipeline.md", "toml")
    Draft202012Validator(schema_of("gate")).validate(tomllib.loads(thresholds))
    for key in {*GateFile.model_fields} - {"schema_version"}:
        assert key in thresholds
