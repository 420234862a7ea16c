"""What holds the habits of the repository: workflows, hooks, targets, and the pages about them."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.test_layers import BELOW, WITH_PYTORCH

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [ROOT / name for name in ("AGENTS.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")]
CONTEXT = re.compile(r"\$\{\{(.*?)\}\}")
TRUSTED = re.compile(r"matrix\.\w+|github\.(token|repository)")
LOWER_BOUND = re.compile(r"([\w.-]+)>=([\w.]+)(?:;.*)?")


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: Any) -> list[Any]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def scripts(path: Path) -> list[str]:
    return [step["run"] for step in steps(load(path)) if "run" in step]


def test_there_are_workflows_for_changes_nights_and_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "nightly", "release"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_otherwise(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "uses" in job or job["runs-on"]
        for step in job.get("steps", ()):
            assert ("run" in step) != ("uses" in step)
            assert "@" in step.get("uses", "@")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_from_outside_is_pasted_into_a_script(path: Path) -> None:
    assert not any(CONTEXT.search(script) for script in scripts(path))
    for expression in CONTEXT.findall(path.read_text(encoding="utf-8")):
        assert TRUSTED.fullmatch(expression.strip()), expression


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_the_repository_has(path: Path) -> None:
    for script in scripts(path):
        for line in script.splitlines():
            program, *arguments = shlex.split(line)
            if program == "make":
                assert set(arguments) <= targets(), line
            elif program == "python" and arguments[0] != "-m":
                assert (ROOT / arguments[0]).is_file(), line
            elif program.startswith("."):
                assert (ROOT / program).stat().st_mode & 0o100, line


def test_a_release_is_checked_before_it_is_published() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"check", "build"}
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert any(".ci/release.py" in step.get("run", "") for step in jobs["build"]["steps"])
    # Trusted publishing: the job proves who it is, and holds no secret.
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()


def test_ci_runs_the_readme_s_tests_the_slow_ones_and_the_checks() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    made = [re.sub(r"^\w+=\S+ ", "", line) for line in lines]
    made = [line for line in made if line.startswith("make ") and "--version" not in line]
    assert made == ["make setup", "make test", "make test-slow", "make check"]
    assert "make test " in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_targets_and_places_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^    |\(|\$ )make ([a-z][a-z-]*)", text, re.MULTILINE):
        assert target in targets(), target
    for place in re.findall(
        r"`((?:dspark_convert|tests|fixtures|docs|\.ci|\.github)/[\w./]*)`", text
    ):
        assert (ROOT / place).exists(), place
    for place in re.findall(r"`((\w+)/[\w./]+\.py)`", text):
        if place[1] in BELOW and "NAME" not in place[0]:
            assert (ROOT / "dspark_convert" / place[0]).exists(), place[0]


def test_every_table_is_where_the_page_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"`([A-Z]+)` in `([\w/]+\.py)` \|", text))
    assert set(tables) == {
        "ARITHMETIC",
        "CHECKS",
        "DECODERS",
        "DIALECTS",
        "ENGINES",
        "HYPOTHESES",
        "SCHEMES",
        "UNSUPPORTED",
    }
    for table, place in tables.items():
        module = (ROOT / "dspark_convert" / place).read_text(encoding="utf-8")
        assert re.search(rf"^{table}\b.* = ", module, re.MULTILINE), f"{table} in {place}"


@pytest.mark.parametrize("page", ["AGENTS.md", "CONTRIBUTING.md"])
def test_every_room_is_on_the_map(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for room in BELOW:
        assert re.search(rf"^\| `(dspark_convert/)?{room}(/|\.py)` \|", text, re.MULTILINE), room
    if page == "AGENTS.md":
        (sentence,) = re.findall(r"Only (.*) may import PyTorch", text)
        assert set(re.findall(r"`(\w+)`", sentence)) == WITH_PYTORCH


def test_rooms_stand_in_the_order_of_their_imports() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, re.MULTILINE)
    for place, room in enumerate(order):
        assert BELOW[room] <= set(order[place + 1 :]), room


def test_hooks_run_tools_of_the_environment() -> None:
    (repo,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    entries = {hook["id"]: shlex.split(hook["entry"]) for hook in repo["hooks"]}
    assert {"ruff", "ruff-format", "mypy", "schemas"} <= set(entries)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repo["hooks"]:
        program, *arguments = shlex.split(hook["entry"])
        assert hook["language"] == "system"
        assert program.startswith(".venv/bin/")
        assert program.removeprefix(".venv/bin/") in ("python", *TOOLS)
        assert f"$(BIN)/{program.removeprefix('.venv/bin/')}" in makefile
        for argument in arguments:
            assert not argument.endswith((".py", "/")) or (ROOT / argument).exists()
        re.compile(hook.get("files", ""))


TOOLS = ("dspark-convert", "mypy", "ruff")


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_of_the_hooks_are_installed_with_the_rest(tool: str) -> None:
    assert shutil.which(tool, path=str(Path(sys.executable).parent))


def shorten(version: str) -> str:
    """Without zeros at the end: 2.0 and 2.0.0 are one release."""
    return re.sub(r"(\.0)+$", "", version)


def test_lowest_releases_are_the_lower_bounds() -> None:
    bounds: dict[str, str] = {}
    extras = project()["optional-dependencies"]
    for requirement in (*project()["dependencies"], *extras["verify"], *extras["report"]):
        match = LOWER_BOUND.fullmatch(requirement.replace(" ", ""))
        assert match, f"{requirement} has no lower bound"
        bounds[match[1]] = match[2]
    pinned = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in pinned if not line.startswith("#"))
    assert list(pins) == sorted(pins)
    assert {name: shorten(pin) for name, pin in pins.items()} == {
        name: shorten(bound) for name, bound in bounds.items()
    }


def test_what_decides_is_pinned() -> None:
    pinned = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8")
    assert re.findall(r"^(\w+)==", pinned, re.MULTILINE) == ["mypy", "ruff", "torch"]


def test_urls_lead_to_pages_of_the_repository() -> None:
    urls = project()["urls"]
    for name in ("Documentation", "Changelog"):
        place = re.sub(r"^.*/(?:tree|blob)/main/", "", urls[name])
        assert (ROOT / place).exists()
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
