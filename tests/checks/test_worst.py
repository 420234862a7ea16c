"""Texts marked up by what happened to the draft's tokens: by hand, and decoded against replayed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dspark_convert.checks.marked_texts import Marks, mark_decoded, mark_replayed, worst_texts
from dspark_convert.cli.verify import app
from dspark_convert.replay.expectation import Expectation
from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.records import DecodeResult, Round
from dspark_convert.schemas.report import VerifyReport
from dspark_convert.traces.record import RecordOptions, record

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"
TARGET, DRAFT = TINY / "target", TINY / "draft_dense_full"


def kinds(marks: Marks) -> list[str]:
    spans = worst_texts([marks], 1, None)[0].spans
    return [f"{span.kind}{span.text}" for span in spans]


def test_a_decoded_text_by_hand() -> None:
    rounds = (
        Round(5, (11, 12, 99), 2, (11, 12, 13), None),
        Round(8, (14, 15, 16), 3, (14, 15, 16, 17), None),
        Round(12, (98, 97, 96), 0, (18,), None),
        Round(13, (19, 0, 95), 2, (19, 0), None),
    )
    marks = mark_decoded("p", DecodeResult((10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 0), rounds))
    assert kinds(marks) == [
        *("first 10", "accepted 11 12", "rejected 13", "accepted 14 15 16"),
        *("bonus 17", "rejected 18", "accepted 19 0"),
    ]
    assert marks.accepted_length == 10 / 4


def test_a_replayed_text_by_hand() -> None:
    """Anchors 0 and 1, two tokens each; the first is accepted half the time, then never."""
    expectation = Expectation(
        acceptance=np.array([[0.5, 0.0], [1.0, 0.25]]),
        proposed=np.ones((2, 2), dtype=bool),
        left=np.array([9, 9]),
    )
    chances = mark_replayed("p", range(20, 26), expectation).chances
    # Columns: first, accepted, rejected, bonus. Token 1 is drafted from anchor 0. Token 2 comes as
    # its rejected second token, or from a round at anchor 1, where it is accepted for certain.
    np.testing.assert_allclose(chances, [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0]])


@given(st.data())
def test_every_token_within_the_rounds_comes_about_in_one_way(data: st.DataObject) -> None:
    anchors, tokens = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    chance = st.lists(st.floats(0, 1), min_size=tokens, max_size=tokens)
    acceptance = data.draw(st.lists(chance, min_size=anchors, max_size=anchors))
    cut = data.draw(st.lists(st.integers(0, tokens), min_size=anchors, max_size=anchors))
    proposed = np.arange(tokens) < np.array(cut)[:, None]
    left = np.arange(anchors + tokens, tokens, -1)
    expectation = Expectation(np.array(acceptance), proposed, left)
    marks = mark_replayed("p", list(range(anchors + tokens + 1)), expectation)
    np.testing.assert_allclose(marks.chances.sum(-1), 1.0)


def test_the_worst_come_first_and_texts_without_rounds_not_at_all() -> None:
    def marks(name: str, rounds: float, committed: float) -> Marks:
        return Marks(name, (1,), np.eye(4)[[0]], rounds, committed)

    texts = [marks("good", 2, 8), marks("none", 0, 0), marks("bad", 4, 5), marks("fair", 4, 8)]
    assert [text.id for text in worst_texts(texts, 2, None)] == ["bad", "fair"]
    assert worst_texts(texts, 0, None) == ()


def check(*options: object) -> VerifyReport:
    arguments = ["check", DRAFT, *options, "--dtype", "float32", "--worst", "2", "--json"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return VerifyReport.model_validate(json.loads(result.stdout))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join((TINY / "prompts.jsonl").read_text().splitlines(True)[:4]))
    return path


@pytest.fixture(scope="module")
def trace(prompts: Path) -> Path:
    path = prompts.parent / "trace.safetensors"
    record(
        RecordOptions(
            target=TARGET,
            draft=DRAFT,
            output=path,
            prompts=prompts,
            max_new_tokens=24,
            machine=Machine(device="cpu", dtype="float32"),
        )
    )
    return path


def test_a_replayed_greedy_text_is_marked_as_the_decoded_one(prompts: Path, trace: Path) -> None:
    decoded = check("--target", TARGET, "--max-new-tokens", 24, "--prompts", prompts).worst
    replayed = check("--trace", trace, "--target-weights", TARGET).worst
    assert [text.id for text in decoded] == [text.id for text in replayed]
    for one, other in zip(decoded, replayed, strict=True):
        assert one.accepted_length == other.accepted_length
        # The decoded output is cut at the limit only, a last round may go past it.
        shared = min(len(one.spans), len(other.spans)) - 1
        assert shared > 5
        assert one.spans[:shared] == other.spans[:shared]
        assert {span.probability for span in other.spans} == {1.0}


def test_marks_are_shown_without_colour_and_diagnosis_is_offered(trace: Path) -> None:
    arguments = ["check", str(DRAFT), "--trace", str(trace), "--target-weights", str(TARGET)]
    options = ["--worst", "1", "--min-accepted-length", "6.9", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*arguments, *options], env={"COLUMNS": "120"})
    assert result.exit_code == 1
    assert "Among the worst" in result.stdout
    body = result.stdout.partition("(..): prefill")[2]
    assert "[" in body
    assert f"dspark-verify diagnose {DRAFT} --trace {trace}" in result.stderr.replace("\n", "")


def test_no_diagnosis_is_offered_for_a_draft_that_passes(trace: Path) -> None:
    arguments = ["check", str(DRAFT), "--trace", str(trace), "--target-weights", str(TARGET)]
    result = CliRunner().invoke(app, [*arguments, "--dtype", "float32"])
    assert result.exit_code == 0, result.output
    assert "diagnose" not in result.stderr
    assert CliRunner().invoke(app, [*arguments, "--worst", "-1"]).exit_code == 2
