"""No module says the name of a row but the module of the row, and what is about it alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_convert.engines import ENGINES
from dspark_convert.formats.decoders import DECODERS
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.quantisation import SCHEMES
from tests.conftest import ROOT

PACKAGE = ROOT / "dspark_convert"
OWN = ("engines/", "formats/decoders/", "formats/dialects/", "formats/quantisation.py")
"""Where the rows are."""
ABOUT_ONE = {
    "conversion/plan.py": "one function for each of two commands, which are named after a dialect",
    "conversion/speculators.py": "what only speculators drafts say: the use, and the verifier",
    "conversion/verifier.py": "what only speculators drafts say: the verifier",
    "schemas/draft.py": "the decoder of documents that were written before there was a second one",
    "schemas/plan.py": "the dialect of manifests that were written before there was a second one",
    "schemas/trace.py": "vLLM as the writer of a trace, whatever the draft",
    "traces/consistency.py": "vLLM as the writer of a trace, whatever the draft",
    "traces/import_vllm.py": "vLLM as the writer of a trace, whatever the draft",
}
ROW_MODULES = tuple(
    f"dspark_convert.{room}.{path.stem}"
    for room in ("engines", "formats.decoders", "formats.dialects")
    for path in (PACKAGE / room.replace(".", "/")).glob("*.py")
    if path.stem not in ("__init__", "base", "shared", "view")
)
NAMES = {*ENGINES, *DECODERS, *DIALECTS, *SCHEMES}
OBJECTS = {name.upper().replace(".", "_").replace("-", "_") for name in NAMES}


def said(path: Path) -> Iterator[str]:
    """Names of rows in a module: as a string, as an import, as the object of a row."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield str(node.value)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in ROW_MODULES:
                yield node.module
            yield from (name.name for name in node.names if name.name in OBJECTS)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_rows_are_named_only_where_they_are(path: Path) -> None:
    where = str(path.relative_to(PACKAGE))
    if not where.startswith(OWN):
        assert bool(list(said(path))) == (where in ABOUT_ONE), list(said(path))


def test_a_name_is_found_however_it_is_said(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "from dspark_convert.engines.vllm import VLLM\n"
        "from dspark_convert.formats.dialects import SPECULATORS\n"
        'if dialect.name == "dense" or scheme == "modelopt": pass\n'
    )
    found = set(said(module))
    assert found == {"dspark_convert.engines.vllm", "VLLM", "SPECULATORS", "dense", "modelopt"}
