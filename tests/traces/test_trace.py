"""Traces on disk: read back exactly, and never trusted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from dspark_convert.errors import CheckpointError, DSparkError, TraceError
from dspark_convert.formats.target import find_target_weights
from dspark_convert.schemas.catalog import schema_of
from dspark_convert.traces.file import METADATA_KEY
from dspark_convert.traces.plan import identify_target
from dspark_convert.traces.trace import (
    Trace,
    open_trace,
    require_draft,
    require_layers,
    require_target,
)
from tests.runtime.helpers import GOLDEN, make_config

from .helpers import VERIFIER, assert_same, header_document, make_header, write_trace


def codes(error: pytest.ExceptionInfo[DSparkError]) -> set[str]:
    return {finding.code for finding in error.value.findings}


def rewrite(path: Path, edit: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> None:
    """Edit the tensors and the header of a trace with the library, which checks nothing of ours."""
    tensors = load_file(path)
    header = open_trace(path).header.model_dump(mode="json")
    edit(tensors, header)
    save_file(tensors, path, {METADATA_KEY: json.dumps(header)})


def test_reading_gives_back_what_was_written(path: Path) -> None:
    header = make_header()
    written = write_trace(path, header)
    trace = open_trace(path)
    assert trace.header == header
    assert len(trace) == 2
    for found, wanted in zip(trace, written, strict=True):
        assert_same(found, wanted)
    assert trace.stand_ins() == {}


def test_features_come_in_the_order_asked_for(path: Path) -> None:
    (sequence, _) = write_trace(path, make_header())
    found = open_trace(path)[0].features_of((3, -1))
    assert len(found) == 2
    assert torch.equal(found[0], sequence.features[:, 2])
    assert torch.equal(found[1], sequence.features[:, 0])
    with pytest.raises(TraceError, match="trace-layers-missing") as error:
        sequence.features_of((0, 1, 2))
    assert "missing [0, 2]" in str(error.value)


def test_the_header_validates_against_the_published_schema(path: Path) -> None:
    write_trace(path, make_header())
    document = open_trace(path).header.model_dump(mode="json")
    Draft202012Validator(schema_of("trace-header")).validate(document)


# What is wrong with a file


def test_a_truncated_trace_is_refused(path: Path) -> None:
    write_trace(path, make_header())
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 20, 4, 0):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="file-truncated"):
            open_trace(path)


def test_other_files_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="trace-foreign"):
        open_trace(VERIFIER / "model.safetensors")
    with pytest.raises(TraceError, match="trace-missing"):
        open_trace(tmp_path)
    with pytest.raises(CheckpointError, match="file-missing"):
        open_trace(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad-json"),
        ("[" * 100_000, "bad-json"),
        ('{"schema_version": NaN}', "bad-json"),
        ("[]", "trace-header-invalid"),
        ("{}", "trace-header-invalid"),
        ('{"schema_version": 2}', "trace-version-unsupported"),
        ('{"schema_version": true}', "trace-header-invalid"),
    ],
)
def test_hostile_metadata_is_refused(path: Path, text: str, code: str) -> None:
    save_file({"x": torch.zeros(1)}, path, {METADATA_KEY: text})
    with pytest.raises(DSparkError, match=code):
        open_trace(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown": 1},
        {"layer_ids": [1, -1, 3]},
        {"layer_ids": [1, 1]},
        {"layer_ids": [4]},
        {"layer_ids": [-2]},
        {"layer_ids": []},
        {"top_log_probs": 51},
        {"top_log_probs": 0},
        {"top_temperature": None},
        {"max_new_tokens": 0},
        {"max_new_tokens": 4},
        {"text_origin": "elsewhere"},
        {"sampling": {"temperature": -1.0, "top_k": None, "top_p": None}},
        {"sequences": []},
        {"sequences": [{"id": "a", "num_tokens": 3, "first_generated": 3}]},
        {"sequences": [{"id": "a", "num_tokens": 3, "first_generated": 0}]},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_header(**changes)
    write_trace(path, make_header())
    rewrite(path, lambda tensors, header: header.update(changes))
    with pytest.raises(TraceError, match="trace-header-invalid"):
        open_trace(path)


def drop(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    del tensors["seq.00001.features"]


def add(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    tensors["seq.00002.features"] = torch.zeros(3)


def widen(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    tensors["seq.00000.token_ids"] = tensors["seq.00000.token_ids"].int()


def reshape(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    tensors["seq.00000.features"] = tensors["seq.00000.features"].flatten(1)


def enlarge(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    header["target"]["hidden_size"] = 10**18


def forget_layer(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    header["layer_ids"] = [-1, 1]


def promise_head(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    header["has_lm_head"] = True


def misfit_head(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    header["has_lm_head"] = True
    tensors["lm_head.weight"] = torch.zeros(50, 7)


def whole_head(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    header["has_lm_head"] = True
    tensors["lm_head.weight"] = torch.zeros(50, 6, dtype=torch.int32)


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (drop, "trace-tensor-missing"),
        (add, "trace-tensor-unexpected"),
        (widen, "trace-tensor-mismatch"),
        (reshape, "trace-tensor-mismatch"),
        (enlarge, "trace-tensor-mismatch"),
        (forget_layer, "trace-tensor-mismatch"),
        (promise_head, "trace-tensor-missing"),
        (misfit_head, "trace-tensor-mismatch"),
        (whole_head, "trace-tensor-mismatch"),
    ],
)
def test_tensors_must_be_those_of_the_header(path: Path, edit: Any, code: str) -> None:
    write_trace(path, make_header())
    rewrite(path, edit)
    with pytest.raises(TraceError) as error:
        open_trace(path)
    assert codes(error) == {code}
    assert all(finding.tensor for finding in error.value.findings)


PROBABILITIES, IDS = (
    ["log_probs", "top_log_probs", "tail_mass"],
    ["token_ids", "argmax_ids", "top_ids"],
)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *(
            (name, value, "trace-probability-invalid")
            for name in PROBABILITIES
            for value in (float("nan"), 5.0)
        ),
        *((name, value, "trace-token-unknown") for name in IDS for value in (-1, 50)),
    ],
)
def test_values_that_cannot_be_are_refused(path: Path, name: str, value: float, code: str) -> None:
    write_trace(path, make_header())
    rewrite(path, lambda tensors, header: tensors[f"seq.00001.{name}"].view(-1)[1:2].fill_(value))
    trace = open_trace(path)
    trace[0]
    with pytest.raises(TraceError, match=code) as error:
        trace[1]
    assert error.value.findings[0].tensor == f"seq.00001.{name}"


def test_a_sampled_text_must_be_whole_and_a_given_one_need_not(path: Path, tmp_path: Path) -> None:
    write_trace(path, make_header(has_log_probs=False))
    rewrite(path, lambda tensors, header: tensors["seq.00001.token_ids"][-1:].fill_(1))
    trace = open_trace(path)
    trace[0]
    with pytest.raises(TraceError, match="trace-text-incomplete"):
        trace[1]
    rewrite(path, lambda tensors, header: header.update(text_origin="given"))
    assert len(list(open_trace(path))) == 2


@pytest.mark.parametrize("missing", [0, 1])
def test_a_text_is_whole_to_the_token(path: Path, missing: int) -> None:
    entry = {"id": "a", "num_tokens": 3 + 8 - missing, "first_generated": 3}
    write_trace(path, make_header(sequences=[entry], stop_token_ids=[]))
    trace = open_trace(path)
    if not missing:
        assert len(trace[0].token_ids) == 11
        return
    with pytest.raises(TraceError, match="trace-text-incomplete"):
        trace[0]


# Sets


def test_files_of_one_run_are_a_set(tmp_path: Path) -> None:
    first = write_trace(tmp_path / "a.safetensors", make_header())
    second = write_trace(tmp_path / "b.safetensors", make_header(seed=1), seed=9)
    for trace in (
        open_trace(tmp_path),
        open_trace(tmp_path / "a.safetensors", tmp_path / "b.safetensors"),
    ):
        assert [entry.id for entry in trace.header.sequences] == ["a", "b", "a", "b"]
        for found, wanted in zip(trace, [*first, *second], strict=True):
            assert_same(found, wanted)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("sampling", {"sampling": {"temperature": 0.5, "top_k": None, "top_p": None}}),
        ("target", {"target": {**header_document()["target"], "config_sha256": "d" * 64}}),
        ("layer_ids", {"layer_ids": [-1, 0, 3]}),
        ("text_origin", {"text_origin": "given"}),
    ],
)
def test_files_of_different_runs_are_no_set(
    tmp_path: Path, key: str, changes: dict[str, Any]
) -> None:
    write_trace(tmp_path / "a.safetensors", make_header())
    write_trace(tmp_path / "b.safetensors", make_header(**changes))
    with pytest.raises(TraceError, match="trace-set-mixed") as error:
        open_trace(tmp_path)
    assert error.value.findings[0].key == key


# What a trace is used for


def trace_of(path: Path, **changes: Any) -> Trace:
    write_trace(path, make_header(**changes))
    return open_trace(path)


def test_another_target_is_refused(path: Path) -> None:
    weights, other = map(find_target_weights, (VERIFIER, GOLDEN / "verifier_bf16"))
    sha256 = weights.checkpoint.config_sha256
    trace = trace_of(path, target={**header_document()["target"], "config_sha256": sha256})
    require_target(trace, weights)
    with pytest.raises(TraceError, match=r"trace-other-target.*config"):
        require_target(trace, other)


def test_a_fine_tune_with_the_config_of_its_base_is_another_target(
    path: Path, tmp_path: Path
) -> None:
    verifier = identify_target(find_target_weights(VERIFIER), "float32")
    trace = trace_of(path, target={**verifier.model_dump(), "hidden_size": 6, "vocab_size": 50})
    require_target(trace, find_target_weights(VERIFIER))
    tuned = tmp_path / "tuned"
    shutil.copytree(VERIFIER, tuned)
    tensors = load_file(tuned / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] += 1
    save_file(tensors, tuned / "model.safetensors", {"format": "pt"})
    with pytest.raises(TraceError, match=r"trace-other-target.*weights"):
        require_target(trace, find_target_weights(tuned))


def test_missing_layers_are_named(path: Path) -> None:
    trace = trace_of(path)
    require_layers(trace, (3, -1))
    with pytest.raises(TraceError, match=r"trace-layers-missing.*missing \[0, 2\]"):
        require_layers(trace, (0, 1, 2))


def test_a_draft_must_fit_the_trace(path: Path) -> None:
    trace = trace_of(path)
    draft = make_config(
        vocab_size=50,
        draft_vocab_size=50,
        hidden_size=6,
        target_layer_ids=(1, 3),
        layout="bonus_anchor",
        block_size=3,
    )
    require_draft(trace, draft)
    for changes, code in (
        ({"target_layer_ids": (0, 1)}, "trace-layers-missing"),
        ({"block_size": 4}, "trace-too-short"),
        ({"target_hidden_size": 7}, "target-hidden-size-mismatch"),
        ({"vocab_size": 40}, "target-vocabulary-mismatch"),
        ({"target_layer_ids": (1, 9)}, "layer-ids-invalid"),
    ):
        with pytest.raises(TraceError) as error:
            require_draft(trace, draft.model_copy(update=changes))
        assert codes(error) == {code}


@pytest.mark.parametrize("how", ["replaced", "shortened", "gone"])
def test_a_trace_that_changes_while_it_is_read_is_refused(path: Path, how: str) -> None:
    write_trace(path, make_header())
    trace = open_trace(path)
    trace[0]
    if how == "shortened":
        os.truncate(path, path.stat().st_size - 8)
    else:
        path.unlink()
    if how == "replaced":
        write_trace(path, make_header(), seed=7)
    with pytest.raises(CheckpointError, match="file-changed"):
        trace[1]
