"""Functions and classes of an engine, taken out of its source and run without the rest of it.

An engine cannot be installed beside everything else, but the few functions that read a config or
name a weight need nothing of it. They are parsed, cut out, and run against stand-ins.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

SOURCES = "DSPARK_ENGINE_SOURCES"
"""Environment variable: a folder that holds ``vllm/`` and ``sglang/``, unpacked wheels."""


def engine_root(package: str) -> Path:
    """The folder of a package's source; skips the test where it is not at hand."""
    folder = os.environ.get(SOURCES)
    if folder and (Path(folder) / package).is_dir():
        return Path(folder) / package
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed, and {SOURCES} names no folder with it")
    return Path(next(iter(spec.submodule_search_locations)))


def lift(
    path: Path,
    names: Mapping[str, Iterable[str]] | Iterable[str],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the definitions called ``names`` of a file.

    A mapping also says which members of a class are taken; none: all. Decorators that are not in
    ``known`` are left out, and so are bases. Annotations are never evaluated.
    """
    members = names if isinstance(names, Mapping) else dict.fromkeys(names, ())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    chosen = [node for node in tree.body if _name(node) in members]
    missing = set(members) - {_name(node) for node in chosen}
    assert not missing, f"{path.name} has no {missing}"
    known_names = {*known, *members}
    for node in chosen:
        _strip(node, tuple(members[_name(node)]), known_names)
    module = ast.Module(body=chosen, type_ignores=[])
    flags = __future__.annotations.compiler_flag
    scope = dict(known)
    exec(compile(module, str(path), "exec", flags=flags, dont_inherit=True), scope)
    return scope


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return targets[0].id if targets and isinstance(targets[0], ast.Name) else ""


def _strip(node: ast.stmt, members: tuple[str, ...], known: set[str]) -> None:
    if isinstance(node, ast.ClassDef):
        node.bases = [base for base in node.bases if _root(base) in known]
        if members:
            node.body = [item for item in node.body if _name(item) in members]
        for item in node.body:
            _strip(item, (), known)
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        node.decorator_list = [
            item for item in node.decorator_list if _root(item) in {*known, "property"}
        ]


def _root(node: ast.expr) -> str:
    while not isinstance(node, ast.Name):
        node = node.func if isinstance(node, ast.Call) else node.value  # type: ignore[attr-defined]
    return node.id


class Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None
