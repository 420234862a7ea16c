"""The compiled layers that the benchmark of the fast path measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import compiled_layers, decode_fast
from dspark_convert.runtime import fast
from dspark_convert.runtime.decode import decode
from dspark_convert.runtime.records import DecodeOptions
from tests.runtime.helpers import bigram_pair, random_prompts


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled computes the same, but takes a C++ compiler most of a minute."""
    monkeypatch.setattr(compiled_layers, "compile_function", lambda function: function)


@pytest.mark.parametrize("sliding_window", [None, 6])
def test_tokens_are_those_of_the_plain_path(sliding_window: int | None) -> None:
    target, draft = bigram_pair(layout="anchor_first", sliding_window=sliding_window)
    prompts, options = random_prompts(64, (1, 4, 9, 20, 13)), DecodeOptions(max_new_tokens=30)
    plain = [result.token_ids for result in decode(target, draft, prompts, options)]
    for _ in range(2):  # the weights are joined the first time only
        with compiled_layers.compiled_layers():
            results = fast.decode_fast(target, draft, prompts, options, rows=2)
        assert [result.token_ids for result in results] == plain


def test_each_setting_is_measured_with_kernels_and_without(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    decode_fast.main(["--tiny", "--rounds", "1", "--compiled", "--json", str(tmp_path / "figures")])
    figures = json.loads((tmp_path / "figures").read_text())["settings"]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(figures)
    assert len({row.count("|") for row in rows}) == 1
    settings = [(each["draft_vocabulary"], each["batch"], each["temperature"]) for each in figures]
    assert settings[::2] == settings[1::2]
    assert len(set(settings)) == 8
    assert [each["compiled"] for each in figures] == [False, True] * 8
