"""The package itself: what it exports, and what it says without its libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dspark_convert.runtime as package


def test_exports_are_sorted_and_exist() -> None:
    assert sorted(package.__all__) == package.__all__
    for name in package.__all__:
        assert hasattr(package, name)


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_a_missing_library_is_named_with_the_extra_to_install(library: str) -> None:
    script = f"""
import sys
sys.modules[{library!r}] = None
from dspark_convert.errors import DependencyError
try:
    import dspark_convert.runtime.decode
except DependencyError as error:
    finding = error.findings[0]
    assert finding.code == "dependency-missing", finding
    assert {library!r} in finding.message, finding
    assert "dspark-convert[verify]" in finding.hint, finding
else:
    raise SystemExit("imported")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
