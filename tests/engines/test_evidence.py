"""The files that claims cite exist in the versions that they name."""

from __future__ import annotations

import re

import pytest

from dspark_convert.conversion.engines import CLAIMS

from .lift import engine_root

CITED = sorted(
    {
        (package, match[1], int(match[2] or 0))
        for claim in CLAIMS
        for engine, package in (("vLLM", "vllm"), ("SGLang", "sglang"))
        if claim.engine == engine
        and (match := re.fullmatch(r"(\S+\.py)(?::(?:\d+-)?(\d+))?", claim.evidence))
    }
)


@pytest.mark.parametrize(("package", "file", "line"), CITED)
def test_cited_lines_exist(package: str, file: str, line: int) -> None:
    text = (engine_root(package) / file).read_text(encoding="utf-8")
    assert len(text.splitlines()) >= line
