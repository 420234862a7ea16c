"""Codes are stable, since pipelines match on them: every code of the package is in a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "dspark_convert"
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
REPORTING = {"error", "warning", "note", "usage", "_usage", "_refusal", "_mismatch", "_report"}
"""Functions that take a code first."""
NO_CODES = {
    "bit-equal": "a word of a reason",
    "draft-dspark": "an option of llama.cpp",
    "llama-server": "a program of llama.cpp",
    "mlx-dspark": "a program that serves drafts",
    "utf-8-sig": "an encoding",
}


def strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def codes_of(text: str) -> set[str]:
    """Whatever is spelled like a code, and every single word that is used as one."""
    tree = ast.parse(text)
    found = {value for value in strings(tree) if KEBAB.fullmatch(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            found |= set(strings(node.value))
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in REPORTING:
                found |= set(strings(node.args[0]))
    return {value for value in found if WORD.fullmatch(value)}


def mentioned_in(text: str) -> set[str]:
    """The codes inside the strings of a test, documentation apart."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            del node.body[0]
    return {
        code for value in strings(tree) for code in re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", value)
    }


def texts(*folders: Path) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path != Path(__file__):
                yield path.read_text(encoding="utf-8")


def test_every_code_is_mentioned_by_a_test() -> None:
    codes = set().union(*map(codes_of, texts(PACKAGE)))
    mentioned = set().union(*map(mentioned_in, texts(ROOT / "tests", ROOT / "fixtures")))
    assert set(NO_CODES) <= codes
    assert sorted(codes - mentioned - set(NO_CODES)) == []


def test_codes_are_found_wherever_they_are_written() -> None:
    source = (
        'Finding(code="one-two", message="no-code here")\n'
        'Finding(code="three" if x else "four-a")\n'
        'findings.error("five", "some text")\n'
        'TABLE = (OSError, "six-seven", "what is wrong")\n'
        'raise _usage("eight", "nine")\n'
    )
    assert codes_of(source) == {"one-two", "three", "four-a", "five", "six-seven", "eight"}


def test_a_comment_or_a_docstring_is_no_test() -> None:
    test = 'def test():\n    """one-two"""\n    # three-four\n    assert x == "note five-six: y"\n'
    assert mentioned_in(test) == {"note", "five-six", "y"}
