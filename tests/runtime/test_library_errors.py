"""Whatever a library raises for a user's file is one refusal; what is ours passes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark_convert.errors import CheckpointError, DraftError, Finding
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.library_errors import describe_error, library_errors
from dspark_convert.runtime.load_target import load_target
from tests.conftest import ROOT

TARGET = ROOT / "fixtures" / "tiny" / "target"


def refuse(description: str, hint: str | None) -> CheckpointError:
    return CheckpointError(Finding(code="target-unreadable", message=description, hint=hint))


def run(target: CausalTarget) -> None:
    target.start([0]).prefill(torch.tensor([[1, 2, 3]]), [3])


class PanicException(BaseException):
    """As the Rust code of tokenizers raises it."""


@pytest.mark.parametrize(
    ("error", "description", "hint"),
    [
        (ValueError("bad\n  value"), "bad value", None),
        (KeyError("x"), "KeyError: 'x'", None),
        (ZeroDivisionError(), "ZeroDivisionError", None),
        (TypeError("x" * 1000), "TypeError: " + "x" * 400 + " ...", None),
        (Exception("data did not match any variant"), "Exception: data did not match", None),
        (PanicException("index out of bounds"), "PanicException: index out of bounds", None),
        (ImportError("No module named 'tiktoken'"), "No module named 'tiktoken'", "install"),
        (ValueError("give trust_remote_code=True"), "give trust_remote_code=True", "--trust"),
    ],
)
def test_an_error_of_a_library_becomes_the_refusal(
    error: BaseException, description: str, hint: str | None
) -> None:
    with pytest.raises(CheckpointError) as caught, library_errors(refuse):
        raise error
    (finding,) = caught.value.findings
    assert finding.message.startswith(description)
    assert (finding.hint is None) if hint is None else (hint in str(finding.hint))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        DraftError(Finding(code="tensor-missing", message="ours")),
        KeyboardInterrupt(),
        SystemExit(3),
    ],
)
def test_errors_of_ours_and_interrupts_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, library_errors(refuse):
        raise error
    assert caught.value is error


def test_a_message_is_one_line() -> None:
    assert describe_error(OSError("a\n\nb\tc")) == "a b c"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"num_key_value_heads": 0},
        {"layer_types": ["x"]},
        {"layer_types": 7},
        {"eos_token_id": "x"},
        {"eos_token_id": [[1]]},
        {"hidden_act": "x"},
        {"rope_parameters": []},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"hidden_size": "128"},
        {"hidden_size": -1},
        {"num_hidden_layers": None},
        {"num_hidden_layers": 10**400},
        {"model_type": ["qwen3"]},
        {"model_type": "x"},
        {"vocab_size": 0.5},
        {"dtype": "x"},
        {"dtype": 7},
        {"auto_map": {"AutoConfig": 3}},
        {"rms_norm_eps": "x"},
    ],
    ids=json.dumps,
)
def test_a_target_with_odd_values_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        run(load_target(folder))
    assert caught.value.code in {"target-unreadable", "target-not-runnable"}
    assert all(finding.hint for finding in caught.value.findings)


def test_what_fails_only_when_the_target_runs_is_refused_too() -> None:
    target = load_target(TARGET)
    target.model.model.rotary_emb = None
    with pytest.raises(CheckpointError, match="target-not-runnable"):
        run(target)
