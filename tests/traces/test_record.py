"""Recording: a trace of the target that serves a draft alone, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from dspark_convert.errors import DSparkError, TraceError, UsageError
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime import DecodeOptions, SamplingOptions, decode_plain, load_draft
from dspark_convert.traces import record as record_module
from dspark_convert.traces.record import record
from dspark_convert.traces.trace import open_trace, require_draft
from tests.runtime.helpers import GOLDEN, golden_target

from .helpers import FULL, PROMPTS, REDUCED, VERIFIER, record_options, write_prompts


def test_a_recorded_trace_serves_a_draft_without_its_target(tmp_path: Path) -> None:
    sizes: list[int] = []
    news: list[tuple[str, int, int]] = []
    options = record_options(tmp_path)
    header = record(options, on_size=sizes.append, on_progress=lambda *item: news.append(item))
    trace = open_trace(options.output)
    assert trace.header == header
    assert sizes == [sum(tensor.nbytes for tensor in load_file(options.output).values())]
    assert news == [("recording", count, 3) for count in (1, 2, 3)]
    draft = load_draft(FULL, target=VERIFIER)
    alone = load_draft(FULL, stand_ins=trace.stand_ins())
    for name, tensor in draft.state_dict().items():
        assert torch.equal(tensor, alone.state_dict()[name]), name
    require_draft(trace, draft.config)
    assert header.layer_ids == tuple(sorted(draft.config.target_layer_ids))
    assert header.extra_tokens == draft.config.num_speculative_tokens + 1
    assert header.target.config_sha256
    assert (header.top_temperature, header.seed, header.feature_dtype) == (1.0, None, "float32")
    for sequence, prompt in zip(trace, PROMPTS, strict=True):
        plain = decode_plain(golden_target(), prompt, DecodeOptions(max_new_tokens=10))
        assert tuple(sequence.token_ids[len(prompt) :][:10].tolist()) == plain


def test_the_same_options_give_the_same_bytes(tmp_path: Path) -> None:
    options = record_options(tmp_path, sampling=SamplingOptions(temperature=0.7), seed=4)
    record(options)
    again = replace(options, output=tmp_path / "again.safetensors")
    header = record(again)
    assert (header.seed, header.top_temperature) == (4, 0.7)
    assert header.sampling.temperature == 0.7
    assert options.output.read_bytes() == again.output.read_bytes()


def test_a_draft_with_tensors_of_its_own_borrows_only_the_rest(tmp_path: Path) -> None:
    for draft, flags in (
        (FULL, (True, True)),
        (REDUCED, (True, False)),
        (GOLDEN / "dense_gated_fp32" / "checkpoint", (False, False)),
    ):
        options = record_options(tmp_path, draft=draft, output=tmp_path / f"{flags}.safetensors")
        header = record(options)
        assert (header.has_embedding, header.has_lm_head) == flags
        names = {EMBEDDING, LM_HEAD} & load_file(options.output).keys()
        assert len(names) == sum(flags)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layers": "all"}, (-1, 0, 1, 2, 3)),
        ({"layers": (3, 0, 1, 2)}, (0, 1, 2, 3)),
        ({"neighbours": True, "draft": GOLDEN / "dense_vanilla_bf16" / "checkpoint"}, None),
    ],
)
def test_layers(tmp_path: Path, changes: dict[str, Any], expected: tuple[int, ...] | None) -> None:
    options = record_options(tmp_path, **changes)
    header = record(options)
    if expected is None:
        own = load_draft(options.draft).config.target_layer_ids
        expected = tuple(sorted({i + d for i in own for d in (-1, 0, 1)} & set(range(-1, 4))))
    assert header.layer_ids == expected


def test_features_are_kept_in_bf16_on_request(tmp_path: Path) -> None:
    record(record_options(tmp_path, output=tmp_path / "fp32.safetensors"))
    record(record_options(tmp_path, output=tmp_path / "bf16.safetensors", feature_dtype="bfloat16"))
    full, half = (
        open_trace(tmp_path / "fp32.safetensors"),
        open_trace(tmp_path / "bf16.safetensors"),
    )
    for one, other in zip(full, half, strict=True):
        assert torch.equal(one.features.bfloat16(), other.features)
        assert torch.equal(one.token_ids, other.token_ids)


def test_given_texts_are_marked_as_given(tmp_path: Path) -> None:
    lines = [
        {"prompt_token_ids": [5, 6, 7], "response_token_ids": [8, 9, 10]},
        {"prompt_token_ids": [5], "response_token_ids": list(range(2, 60))},
    ]
    options = record_options(tmp_path, given=True, prompts=write_prompts(tmp_path, lines))
    header = record(options)
    assert (header.text_origin, header.seed) == ("given", None)
    lengths = [entry.num_tokens - entry.first_generated for entry in header.sequences]
    assert lengths == [3, 10 + header.extra_tokens]
    assert [len(sequence.token_ids) for sequence in open_trace(options.output)] == [
        6,
        1 + lengths[1],
    ]


def test_refusals_come_before_the_target_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("the target was loaded")

    monkeypatch.setattr(record_module, "load_target", fail)
    sizes: list[int] = []
    options = record_options(tmp_path)
    other_vocabulary = write_prompts(tmp_path, [{"prompt_token_ids": [320]}])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_bytes": 1000}, "trace-too-large"),
        ({"layers": (1, 4)}, "layers-unknown"),
        ({"layers": (1,)}, "layers-lack-draft"),
        ({"target": GOLDEN / "nowhere"}, "folder-missing"),
        ({"output": tmp_path / "no" / "trace.safetensors"}, "output-parent-missing"),
        ({"output": other_vocabulary}, "output-exists"),
        ({"output": FULL / "trace.safetensors"}, "output-protected"),
        ({"output": VERIFIER / "trace.safetensors"}, "output-protected"),
    ]
    for changes, code in cases:
        prompts = tmp_path / "known.jsonl"
        prompts.write_text('{"prompt_token_ids": [3]}\n')
        with pytest.raises(DSparkError, match=code):
            record(replace(options, prompts=prompts, **changes), on_size=sizes.append)
    with pytest.raises(UsageError, match="prompt-token-unknown"):
        record(replace(options, prompts=other_vocabulary))
    assert sizes
    assert sizes[0] > 1000
    assert not options.output.exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"max_new_tokens": 0}, "option-out-of-range"),
        ({"batch_size": 0}, "option-out-of-range"),
        ({"top_log_probs": -1}, "option-out-of-range"),
        ({"stop_token_ids": frozenset({-1})}, "option-out-of-range"),
        ({"given": True, "prompts": None}, "given-needs-prompts"),
    ],
)
def test_options_without_a_meaning(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        record_options(tmp_path, **changes)


def test_more_largest_log_probs_than_tokens_are_all_of_them(tmp_path: Path) -> None:
    options = record_options(tmp_path, top_log_probs=1000)
    assert record(options).top_log_probs == 320
    for sequence in open_trace(options.output):
        assert sequence.tail_mass is not None
        assert float(sequence.tail_mass.max()) < 1e-6


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["record", str(VERIFIER), *map(str, arguments)])


def test_the_command_says_the_size_first_and_prints_the_header(tmp_path: Path) -> None:
    out = tmp_path / "trace.safetensors"
    common = ("--for", FULL, "--prompts", write_prompts(tmp_path), "--max-new-tokens", 8)
    done = run(*common, "--out", out, "--temperature", 1, "--top", 4, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == open_trace(out).header.model_dump(mode="json")
    assert "the trace takes at most" in done.stderr
    again = run(*common, "--out", out)
    assert again.exit_code == 3
    assert "output-exists" in again.stderr
    assert run(*common, "--out", out, "--overwrite", "--layers", "-1,0,1,2,3").exit_code == 0
    assert open_trace(out).header.layer_ids == (-1, 0, 1, 2, 3)
    small = run(*common, "--out", tmp_path / "small.safetensors", "--max-size", "1kB")
    assert small.exit_code == 3
    assert "the trace takes at most" in small.stderr
    assert "trace-too-large" in small.stderr


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--max-size", "lots", "size-invalid"),
        ("--layers", "1,x", "ids-invalid"),
        ("--stop-token-ids", "x", "ids-invalid"),
        ("--feature-dtype", "fp8", "dtype-unknown"),
        ("--dtype", "int8", "dtype-unknown"),
        ("--device", "abacus", "device-unavailable"),
        ("--device", "meta", "device-unavailable"),
        ("--device", "cpu:1", "device-unavailable"),
        ("--temperature", "-1", "option-out-of-range"),
    ],
)
def test_wrong_usage(tmp_path: Path, option: str, value: str, code: str) -> None:
    done = run("--for", FULL, "--out", tmp_path / "trace.safetensors", option, value)
    assert done.exit_code == 2
    assert code in done.stderr


def test_a_trace_error_is_a_refusal() -> None:
    assert TraceError.exit_code == 3
