"""The benchmark of replay runs, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import diagnose, replay
from dspark_convert.diagnosis import screening
from tests.runtime.helpers import GOLDEN


def test_replay_is_measured_against_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "figures.json"
    replay.main(["--tiny", "--tokens", "12", "--long", "320", "--json", str(output)])
    speeds, memories = json.loads(output.read_text())
    assert [(entry["name"], entry["temperature"]) for entry in speeds] == [
        (f"random, D = {vocabulary}", temperature)
        for vocabulary in (128, 512)
        for temperature in (0.0, 1.0)
    ]
    assert [(entry["texts"], entry["length"]) for entry in memories] == [(16, 20), (1, 320)]
    for entry in speeds:
        assert entry["tokens"] >= 12
        assert 1 <= entry["replayed_length"] <= 5
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(speeds) + 2 + len(memories)


def test_a_pair_on_disk(capsys: pytest.CaptureFixture[str]) -> None:
    draft = GOLDEN / "spec_vanilla_full_anchor_fp32" / "checkpoint"
    pair = [str(GOLDEN / "verifier_fp32"), str(draft)]
    replay.main(["--pair", *pair, "--prompts", "2", "--tokens", "12"])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "| checkpoint | 0 |" in line]
    assert row.count("±") == 2


def test_a_diagnosis_is_measured_in_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screening, "SCREENING_ANCHORS", 50)
    monkeypatch.setattr(diagnose, "WARM_UP", 0)
    monkeypatch.setattr(diagnose, "RUNS", 1)
    output = tmp_path / "figures.json"
    diagnose.main(["--tiny", "--texts", "8", "--tokens", "20", "--json", str(output)])
    costs = json.loads(output.read_text())
    assert costs[1]["best"] == diagnose.BETTER
    for cost in costs:
        assert (cost["texts"], cost["anchors"]) == (8, 160)
        assert (cost["readings"], cost["backbones"]) == (20, 16)
        assert 1 <= cost["whole"] < 10
    assert costs[1]["whole"] >= 2
    rows = [line for line in capsys.readouterr().out.splitlines() if "| random" in line]
    assert [row.count("|") for row in rows] == [11, 11]
