"""The public interface: what ``import dspark_convert`` offers, what it costs, and its types."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dspark_convert
from dspark_convert import _HOMES
from tests.conftest import ROOT

HEAVY = {"huggingface_hub", "matplotlib", "numpy", "pydantic", "rich", "torch", "transformers"}
HEAVY |= {"typer"}
PYTORCH = {"torch", "transformers"}
PROMISED = {
    "DSparkError",
    "check_draft",
    "compare_reports",
    "decode",
    "diagnose",
    "inspect_draft",
    "load_draft",
    "load_target",
    "open_trace",
    "plan_to_dense",
    "plan_to_speculators",
    "record",
    "report_engines",
    "run_conversion",
    "verify",
}
WITH_PYTORCH = sorted(
    name
    for name, home in _HOMES.items()
    if home.split(".")[0] in {"runtime", "traces", "replay", "checks", "diagnosis"}
)
WITHOUT_PYTORCH = sorted(set(_HOMES) - set(WITH_PYTORCH))


def python(script: str) -> str:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def loaded_by(script: str) -> set[str]:
    """The top-level modules that a script loads."""
    show = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    return set(json.loads(python(f"{script}\n{show}")))


def test_names_are_sorted_and_each_has_a_home() -> None:
    assert sorted(dspark_convert.__all__) == dspark_convert.__all__
    assert list(_HOMES) == dspark_convert.__all__
    assert set(dspark_convert.__all__) >= PROMISED


@pytest.mark.parametrize("name", dspark_convert.__all__)
def test_every_name_leads_to_what_its_home_defines(name: str) -> None:
    pytest.importorskip("torch")
    home = sys.modules[f"dspark_convert.{_HOMES[name]}"] if name in vars(dspark_convert) else None
    value = getattr(dspark_convert, name)
    assert value.__name__ == name
    assert value.__module__.startswith(f"dspark_convert.{_HOMES[name].split('.')[0]}")
    assert value.__doc__
    assert home is None or getattr(home, name) is value


def test_type_checkers_read_the_names_where_they_are_loaded_from() -> None:
    tree = ast.parse(Path(dspark_convert.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    read = {
        alias.name: (node.module or "").removeprefix("dspark_convert.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert read == _HOMES


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by("import dspark_convert; dir(dspark_convert); dspark_convert.__version__")
    assert not loaded & HEAVY


def test_converting_and_comparing_load_no_pytorch() -> None:
    loaded = loaded_by(f"from dspark_convert import {', '.join(WITHOUT_PYTORCH)}")
    assert "pydantic" in loaded
    assert not loaded & PYTORCH


def test_without_pytorch_the_extra_is_named_by_every_name_that_needs_it() -> None:
    script = f"""
import sys
sys.modules["torch"] = None
import dspark_convert
for name in {WITHOUT_PYTORCH}:
    getattr(dspark_convert, name)
for name in {WITH_PYTORCH}:
    try:
        getattr(dspark_convert, name)
    except dspark_convert.DSparkError as error:
        print(name, error.code, error.findings[0].hint)
"""
    said = 'dependency-missing pip install "dspark-convert[verify]"'
    assert python(script).splitlines() == [f"{name} {said}" for name in WITH_PYTORCH]


def test_names_are_listed_and_others_are_an_attribute_error() -> None:
    assert set(dspark_convert.__all__) <= set(dir(dspark_convert))
    assert dir(dspark_convert) == sorted(dir(dspark_convert))
    with pytest.raises(AttributeError, match="'dspark_convert' has no attribute 'nonsense'"):
        dspark_convert.nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(dspark_convert, "__path_of_nothing__")


@pytest.mark.slow
def test_users_see_the_types(tmp_path: Path) -> None:
    """mypy on a user's file: the names have their own types, and a misspelt one is an error."""
    pytest.importorskip("mypy")
    user = tmp_path / "user.py"
    user.write_text(
        "import dspark_convert\n"
        "from dspark_convert import VerifyOptions, plan_to_dense, verify\n"
        "reveal_type(plan_to_dense)\n"
        "reveal_type(verify)\n"
        "reveal_type(VerifyOptions.worst)\n"
        "reveal_type(dspark_convert.run_conversion)\n"
        "dspark_convert.run_conversoin\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(user)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == 4, done.stdout
    assert revealed[0].startswith("def (folder: pathlib"), revealed
    assert "-> dspark_convert.schemas.report.VerifyReport" in revealed[1]
    assert revealed[2] in ("int", "builtins.int")
    assert "dspark_convert.conversion.plan.Conversion" in revealed[3]
    assert 'Module has no attribute "run_conversoin"' in done.stdout
    assert done.stdout.count("error:") == 1, done.stdout


def test_the_page_about_python_shows_every_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\w+", page))
    assert set(dspark_convert.__all__) <= shown
    assert not re.search(r"from dspark_convert\.\w+", page)
