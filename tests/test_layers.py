"""Imports go down the layers only, and only the upper ones know PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "dspark_convert"
_READING = {"errors", "schemas", "checkpoint", "formats"}
_CONVERTING = {*_READING, "engines", "conversion"}
_RUNNING = {*_READING, "runtime"}
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "schemas": {"errors"},
    "checkpoint": {"schemas", "errors"},
    "formats": {"checkpoint", "schemas", "errors"},
    "engines": _READING,
    "conversion": {*_READING, "engines"},
    "hub": _CONVERTING,
    "runtime": _READING,
    "traces": _RUNNING,
    "replay": {*_RUNNING, "traces"},
    "checks": {*_CONVERTING, "runtime", "traces", "replay"},
    "diagnosis": {*_CONVERTING, "runtime", "traces", "replay", "checks"},
    "reports": {"checks", "replay", "checkpoint", "schemas", "errors"},
}
BELOW["cli"] = set(BELOW)
HEAVY = {"torch", "transformers"}
WITH_PYTORCH = {"runtime", "traces", "replay", "checks", "diagnosis"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if layer != "__init__":
            yield layer, path


def imported(path: Path) -> Iterator[str]:
    yield from names_of(ast.walk(ast.parse(path.read_text())))


def imported_at_once(path: Path) -> Iterator[str]:
    """What importing the module itself imports, its functions not called."""
    yield from names_of(ast.parse(path.read_text()).body)


def names_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@pytest.mark.parametrize(
    ("layer", "path"),
    list(modules()),
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_a_module_imports_only_from_below(layer: str, path: Path) -> None:
    allowed = BELOW[layer] | {layer}
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "dspark_convert" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_pytorch_is_known_only_to_what_runs_models() -> None:
    for layer, path in modules():
        if layer not in WITH_PYTORCH:
            # The programs silence transformers, inside the commands that load it.
            names = imported_at_once(path) if layer == "cli" else imported(path)
            heavy = {name.split(".")[0] for name in names} & HEAVY
            assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"
