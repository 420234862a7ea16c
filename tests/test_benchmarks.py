"""The benchmarks run, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import convert, decode
from benchmarks.decode import PART_NAMES


def test_decoding_is_measured_part_by_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "WARM_UP", 1)
    output = tmp_path / "figures.json"
    originals = [getattr(owner, name) for _, owner, name in decode.PARTS]
    decode.main(["--tiny", "--rounds", "2", "--json", str(output)])
    assert [getattr(owner, name) for _, owner, name in decode.PARTS] == originals

    settings = json.loads(output.read_text())["settings"]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(settings)
    assert len({row.count("|") for row in rows}) == 1
    assert {(s["draft_vocabulary"], s["batch"], s["temperature"]) for s in settings} == {
        (vocabulary, batch, temperature)
        for vocabulary in (128, 512)
        for batch in (1, 3)
        for temperature in (0.0, 1.0)
    }
    for setting in settings:
        assert setting["rounds"] == 2
        assert setting["accepted_length"] >= 1
        assert all(setting["milliseconds"][part] > 0 for part in PART_NAMES)


def test_parts_add_up_to_the_round_and_are_counted_once() -> None:
    size, device = decode.TINY, torch.device("cpu")
    setting = next(decode.settings(size, device))
    stopwatch = decode.Stopwatch(device)
    seen = []
    with stopwatch.attached():
        decode.run_rounds(setting, 3, seen.append)
    rounds = stopwatch.milliseconds()
    assert len(seen) == 1 + len(rounds) == 4
    assert all(len(observation.prompts) == setting.batch for observation in seen)
    for split in rounds:
        assert sum(split[part] for part in PART_NAMES) == pytest.approx(split["total"])


def test_weights_that_a_round_reads_leave_out_the_embeddings() -> None:
    setting = next(decode.settings(decode.TINY, torch.device("cpu")))
    draft, size = setting.draft, decode.TINY
    every = sum(parameter.nbytes for parameter in draft.parameters())
    embeddings = 2 * size.vocabulary * (size.hidden + size.markov_rank)
    assert decode.weight_bytes(draft) == every - embeddings


def test_conversion_is_measured_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "HIDDEN": 64,
        "INTERMEDIATE": 96,
        "HEADS": 4,
        "KV_HEADS": 2,
        "HEAD_DIM": 16,
        "RANK": 8,
        "TARGET_VOCABULARY": 1000,
        "DRAFT_VOCABULARY": 200,
        "SHARD_BYTES": 1 << 16,
        "report_startup": lambda runs: None,  # its processes take longer than all the rest
    }
    for name, value in small.items():
        monkeypatch.setattr(convert, name, value)
    folder = tmp_path / "work"
    arguments = ["convert.py", "--gib", "0.0005", "--runs", "1", "--folder", str(folder)]
    monkeypatch.setattr("sys.argv", arguments)
    convert.main()
    out = capsys.readouterr().out
    assert "| one file | " in out
    assert "| shards | " in out
    assert not folder.exists()
