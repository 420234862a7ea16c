"""A command opens and validates each draft and each target once, and reads each tensor once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - the modules below need PyTorch
from dspark_convert.cli import convert, verify
from tests.conftest import ROOT
from tests.reads import Reads

TINY = ROOT / "fixtures" / "tiny"
SOURCE, TARGET = TINY / "draft_1plusN_reduced", TINY / "target"
FEW = ("--max-new-tokens", 4, "--device", "cpu")


def run(program: object, *arguments: object) -> None:
    result = CliRunner().invoke(program.app, [str(each) for each in arguments])  # type: ignore[attr-defined]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 4), result.stderr


class Inputs(NamedTuple):
    """A dense draft beside its tokenizer, prompts, and a trace for it."""

    draft: Path
    prompts: Path
    trace: Path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    found = Inputs(folder / "draft", folder / "prompts.jsonl", folder / "trace.safetensors")
    run(convert, "to-dense", SOURCE, found.draft)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, found.draft)
    found.prompts.write_text("".join((TINY / "prompts.jsonl").read_text().splitlines(True)[::8]))
    record(found, found.trace)
    return found


def record(inputs: Inputs, out: Path) -> None:
    where = ("--for", inputs.draft, "--out", out, "--prompts", inputs.prompts)
    run(verify, "record", TARGET, *where, *FEW, "--neighbours")


def read_once(reads: Reads, folder: Path, *also: str) -> Mapping[str, int]:
    """What was read of a folder: its config, its header and ``also``, each once, as every tensor;
    returns the tensors.
    """
    counts = reads.of(folder.name)
    assert {what: count for what, count in counts.items() if count != 1} == {}
    files = {"config", "header", *also}
    assert counts.keys() & {"config", "header", "tokenizer", "model"} == files
    return {what: count for what, count in counts.items() if what not in files}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, inputs: Inputs) -> Reads:
    return Reads(monkeypatch)


def test_check_with_target_and_source(inputs: Inputs, reads: Reads) -> None:
    texts = ("--target", TARGET, "--prompts", inputs.prompts)
    run(verify, "check", inputs.draft, *texts, "--source", SOURCE, *FEW)
    tensors = read_once(reads, inputs.draft, "tokenizer")
    assert "lm_head.weight" in tensors
    assert read_once(reads, SOURCE).keys() == tensors.keys()
    lent = read_once(reads, TARGET, "tokenizer", "model")
    assert list(lent) == ["model.embed_tokens.weight"], "that both drafts borrow"
    weights = reads.of(TARGET.name, "transformers")
    assert weights["model.embed_tokens.weight"] == 1, "the target was loaded once"


def test_check_with_a_trace(inputs: Inputs, reads: Reads) -> None:
    run(verify, "check", inputs.draft, "--trace", inputs.trace, "--device", "cpu")
    assert read_once(reads, inputs.draft)
    assert not reads.of(TARGET.name)


def test_check_with_a_trace_source_and_target_weights(inputs: Inputs, reads: Reads) -> None:
    beside = ("--target-weights", TARGET, "--source", SOURCE, "--worst", 1, "--device", "cpu")
    run(verify, "check", inputs.draft, "--trace", inputs.trace, *beside)
    assert read_once(reads, inputs.draft).keys() == read_once(reads, SOURCE).keys()
    lent = read_once(reads, TARGET, "tokenizer")
    assert list(lent) == ["model.embed_tokens.weight"]


def test_diagnose_with_a_target(inputs: Inputs, reads: Reads) -> None:
    run(verify, "diagnose", inputs.draft, "--target", TARGET, "--prompts", inputs.prompts, *FEW)
    assert "markov_head.markov_w2.weight" in read_once(reads, inputs.draft)
    lent = read_once(reads, TARGET, "tokenizer", "model")
    assert list(lent) == ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]


def test_diagnose_with_a_trace(inputs: Inputs, reads: Reads) -> None:
    run(verify, "diagnose", inputs.draft, "--trace", inputs.trace, "--device", "cpu")
    assert read_once(reads, inputs.draft)
    assert not reads.of(TARGET.name)


def test_diagnose_with_a_trace_and_target_weights(inputs: Inputs, reads: Reads) -> None:
    beside = ("--target-weights", TARGET, "--device", "cpu")
    run(verify, "diagnose", inputs.draft, "--trace", inputs.trace, *beside)
    assert read_once(reads, inputs.draft)
    lent = read_once(reads, TARGET, "tokenizer")
    assert list(lent) == ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]


def test_record(inputs: Inputs, reads: Reads, tmp_path: Path) -> None:
    record(inputs, tmp_path / "trace.safetensors")
    assert not read_once(reads, inputs.draft), "only its header is needed"
    assert not read_once(reads, TARGET, "tokenizer", "model"), "bytes are copied"


def test_a_second_read_would_be_counted(reads: Reads) -> None:
    from dspark_convert.runtime import load_draft

    for _ in range(2):
        load_draft(SOURCE, target=TARGET)
    counts = reads.of(SOURCE.name)
    assert {count for what, count in counts.items()} == {2}
    assert reads.of(TARGET.name) == {"config": 2, "header": 2, "model.embed_tokens.weight": 2}
