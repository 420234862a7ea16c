"""Options of ``dspark-verify check`` that change what is decoded, through the command."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from tests.conftest import ROOT, Outcome, mostly_slow

pytest.importorskip("torch")

TINY = ROOT / "fixtures" / "tiny"
DRAFT, TARGET = TINY / "draft_1plusN_reduced", TINY / "target"
STOPS = tuple(range(0, 1024, 5))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = (TINY / "prompts.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[::4]))
    return path


@pytest.fixture
def edit(tmp_path: Path) -> Any:
    """A copy of the target with changes of one of its files: ``edit(file, **changes)``."""

    def copy(file: str, **changes: object) -> Path:
        folder = tmp_path / "target"
        shutil.copytree(TARGET, folder)
        document = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**document, **changes}))
        return folder

    return copy


def verify(*arguments: object) -> Outcome:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def check(prompts: Path, *options: object, target: Path = TARGET) -> Outcome:
    fixed = ("--max-new-tokens", 12, "--device", "cpu", "--dtype", "float32")
    return verify("check", DRAFT, "--target", target, "--prompts", prompts, *fixed, *options)


def acceptance(outcome: Outcome) -> Any:
    (numbers,) = (c["numbers"] for c in outcome.json["checks"] if c["id"] == "acceptance")
    return numbers


def rounds(outcome: Outcome) -> list[list[int]]:
    return [prompt["accepted_per_round"] for prompt in acceptance(outcome)["prompts"]]


def texts(outcome: Outcome) -> dict[str, str]:
    """The beginning of every output; what the last round adds differs with where it began."""
    return {
        text["id"]: "".join(span["text"] for span in text["spans"])[:20]
        for text in outcome.json["worst"]
    }


# The decoder


def test_the_fast_decoder_counts_what_the_plain_one_counts(prompts: Path) -> None:
    plain = check(prompts, "--json")
    fast = check(prompts, "--decoder", "fast", "--json")
    assert acceptance(fast) == acceptance(plain)
    assert plain.code == fast.code
    assert plain.json["settings"]["engine"] == "plain"
    assert plain.json["settings"]["engine_reason"] == "the device is cpu"
    assert fast.json["settings"]["engine"] == "fast"
    assert fast.json["settings"]["engine_reason"] is None


def test_what_decoded_is_shown(prompts: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.md"
    outcome = check(prompts, "--markdown", page)
    assert re.search("^decoder +plain, since the device is cpu", outcome.out, re.MULTILINE)
    assert "- **decoder**: plain, since the device is cpu\n" in page.read_text()
    assert not re.search("^decoder ", verify("check", DRAFT, "--source", DRAFT).out, re.MULTILINE)


def test_exit_3_for_a_target_that_the_fast_decoder_cannot_decode(prompts: Path, edit: Any) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    target = edit("config.json", rope_parameters=rope)
    outcome = check(prompts, "--decoder", "fast", "--json", target=target)
    assert (outcome.code, outcome.codes) == (3, ["target-not-fast"])
    (finding,) = outcome.json["findings"]
    assert "dynamic" in finding["message"]
    assert "--decoder plain" in finding["hint"]
    assert check(prompts, "--decoder", "plain", "--json", target=target).code != 3


@pytest.mark.parametrize("command", ["check", "diagnose"])
def test_the_decoder_has_a_former_name(command: str, tmp_path: Path) -> None:
    """Both names set the same option: what they hold is refused alike."""
    asked = (command, DRAFT, "--trace", tmp_path / "absent.safetensors")
    new, former = (verify(*asked, name, "quick") for name in ("--decoder", "--engine"))
    assert new.code == former.code == 2
    assert new.err == former.err
    assert "--decoder" in new.err
    known = verify(*asked, "--engine", "plain", "--json")
    assert (known.code, known.codes) == (3, verify(*asked, "--json").codes)


def test_exit_2_for_a_decoder_that_there_is_not(prompts: Path) -> None:
    assert check(prompts, "--decoder", "quick").code == 2


def test_a_trace_is_replayed_by_what_was_asked_for(prompts: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.safetensors"
    made = ("--prompts", prompts, "--max-new-tokens", 4, "--device", "cpu", "--out", trace)
    assert verify("record", TARGET, "--for", DRAFT, *made, "--quiet").code == 0
    auto, plain, fast = (
        verify("check", DRAFT, "--trace", trace, "--decoder", engine, "--device", "cpu", "--json")
        for engine in ("auto", "plain", "fast")
    )
    assert acceptance(auto) == acceptance(plain)
    said = [outcome.json["settings"] for outcome in (auto, plain)]
    assert [settings["engine"] for settings in said] == ["plain", "plain"]
    assert [settings["engine_reason"] for settings in said] == ["the device is cpu", None]
    assert (fast.code, fast.codes) == (3, ["draft-not-fast"])
    assert "--decoder plain" in fast.json["findings"][0]["hint"]


# Sampling and stopping

SAMPLED = ("--temperature", 1.5, "--worst", 6, "--json")


FILTERED = [
    (engine, *one) for engine in ("plain", "fast") for one in (("--top-k", 1), ("--top-p", 1e-6))
]


@pytest.mark.parametrize(
    ("engine", "option", "value"), mostly_slow(FILTERED, fast=[FILTERED[0], FILTERED[3]])
)
def test_one_token_is_left_to_draw(prompts: Path, engine: str, option: str, value: float) -> None:
    """So the text is the greedy one, and with a greedy draft its rounds are too."""
    chosen, filtered = ("--decoder", engine), (option, value)
    greedy = check(prompts, *chosen, "--worst", 6, "--json")
    free = check(prompts, *chosen, *SAMPLED)
    held = check(prompts, *chosen, *SAMPLED, *filtered)
    both = check(prompts, *chosen, *SAMPLED, *filtered, "--draft-sampling", "greedy")
    assert len(texts(greedy)) == 6
    assert texts(held) == texts(both) == texts(greedy)
    assert texts(free) != texts(greedy)
    assert rounds(both) == rounds(greedy)
    assert rounds(held) != rounds(greedy)


def test_stop_tokens_are_the_target_s_unless_others_are_given(prompts: Path, edit: Any) -> None:
    target = edit("generation_config.json", eos_token_id=list(STOPS))
    default = check(prompts, "--json", target=target)
    assert default.json["settings"]["stop_token_ids"] == list(STOPS)
    given = check(prompts, "--stop-token-ids", ",".join(map(str, STOPS)), "--json")
    none = check(prompts, "--stop-token-ids", "", "--json", target=target)
    assert none.json["settings"]["stop_token_ids"] == []
    assert acceptance(default) == acceptance(given)
    assert 0 < acceptance(default)["committed"] < acceptance(none)["committed"]
