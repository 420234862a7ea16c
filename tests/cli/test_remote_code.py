"""Code in the target's folder: it runs with ``--trust-remote-code``, and never without."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from tests.conftest import ROOT, Outcome

pytest.importorskip("torch")

GOLDEN = ROOT / "fixtures" / "golden"
DRAFT = GOLDEN / "dense_gated_fp32" / "checkpoint"
TARGET = GOLDEN / "verifier_fp32"
CODE = """
from pathlib import Path
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen2Tokenizer as MyTokenizer

(Path({folder!r}) / "ran").touch()

class MyConfig(Qwen3Config):
    model_type = "mine"

class MyModel(Qwen3ForCausalLM):
    config_class = MyConfig
"""


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies the code that it runs; not into the user's cache here."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The golden target as a model of its own type, which only its own code knows."""
    folder = shutil.copytree(TARGET, tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "mine"
    config["auto_map"] = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(CODE.format(folder=str(tmp_path)))
    return folder


def run(command: str, target: Path, *options: object) -> Outcome:
    folder = target.parent
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "p", "prompt_token_ids": [1, 2, 3]}) + "\n")
    line: dict[str, tuple[object, ...]] = {
        "check": ("check", DRAFT, "--target", target),
        "diagnose": ("diagnose", DRAFT, "--target", target),
        "record": ("record", target, "--for", DRAFT, "--out", folder / "trace.safetensors"),
    }
    settings = ("--prompts", prompts, "--max-new-tokens", 4, "--device", "cpu", "--json")
    arguments = [str(argument) for argument in (*line[command], *settings, *options)]
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("command", ["check", "diagnose", "record"])
def test_code_of_the_target_runs_only_when_it_is_trusted(
    command: str, target: Path, tmp_path: Path
) -> None:
    refused = run(command, target)
    assert (refused.code, refused.codes) == (3, ["target-unreadable"])
    assert "--trust-remote-code" in refused.json["findings"][0]["hint"]
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "trace.safetensors").exists()
    trusted = run(command, target, "--trust-remote-code")
    assert (tmp_path / "ran").exists()
    if command == "check":
        verdicts = {check["id"]: check["verdict"] for check in trusted.json["checks"]}
        assert verdicts["lossless-greedy"] == "pass"
        assert trusted.json["target"]["name"] == "target"
    elif command == "diagnose":
        assert (trusted.code, trusted.json["texts"]) == (4, 1)
    else:
        assert trusted.code == 0
        assert (tmp_path / "trace.safetensors").is_file()


def test_code_of_a_tokenizer_runs_only_when_it_is_trusted(target: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "fixtures" / "tiny" / "target" / name, target)
    settings = json.loads((target / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "MyTokenizer"
    settings["auto_map"] = {"AutoTokenizer": ["mine.MyTokenizer", None]}
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    refused = run("check", target)
    assert (refused.code, refused.codes) == (3, ["tokenizer-unreadable"])
    assert "--trust-remote-code" in refused.json["findings"][0]["hint"]
    assert not (tmp_path / "ran").exists()
    trusted = run("check", target, "--trust-remote-code")
    assert trusted.json["checks"][1]["numbers"]["tokenizer"] == "draft has none"
    assert (tmp_path / "ran").exists()


def test_library_that_the_code_wants_is_asked_for(target: Path) -> None:
    (target / "mine.py").write_text("import a_library_that_is_not_there\n")
    outcome = run("check", target, "--trust-remote-code")
    assert (outcome.code, outcome.codes) == (3, ["target-unreadable"])
    (finding,) = outcome.json["findings"]
    assert "a_library_that_is_not_there" in finding["message"]
    assert finding["hint"] == "install what it needs"


def test_weights_beside_a_trace_are_of_a_target_that_is_not_trusted_either(
    target: Path, tmp_path: Path
) -> None:
    """A diagnosis wants the target's norm; transformers would ask on stdout for leave to run."""
    recorded = run("record", target, "--trust-remote-code")
    assert recorded.code == 0
    (tmp_path / "ran").unlink()
    with (target / "mine.py").open("a") as code:
        code.write("# other code, which is not loaded yet\n")
    line = ("diagnose", DRAFT, "--trace", tmp_path / "trace.safetensors", "--json")
    arguments = [str(argument) for argument in (*line, "--target-weights", target)]
    plain = CliRunner().invoke(app, arguments, input="y\n")
    assert (plain.exit_code, json.loads(plain.stdout)["texts"]) == (4, 1)
    assert not (tmp_path / "ran").exists()
    trusted = CliRunner().invoke(app, [*arguments, "--trust-remote-code"])
    assert (trusted.exit_code, json.loads(trusted.stdout)["texts"]) == (4, 1)
    assert (tmp_path / "ran").exists()
