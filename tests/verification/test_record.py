"""Recording: the texts are the target's, and every number is that of an independent full pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from dspark_convert.cli.trace_commands import parse_ids, parse_size
from dspark_convert.cli.verify import app
from dspark_convert.errors import DSparkError, UsageError
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime import DecodeOptions, SamplingOptions, decode, decode_plain, load_draft
from dspark_convert.verification import record as record_module
from dspark_convert.verification import texts as texts_module
from dspark_convert.verification.given import read_given
from dspark_convert.verification.prompts import PromptError
from dspark_convert.verification.record import record
from dspark_convert.verification.texts import TextInput, cut_response, read_texts, sample_texts
from dspark_convert.verification.trace import TraceError, TraceSequence, open_trace, require_draft
from tests.runtime.helpers import GOLDEN, ChainTarget, golden_draft, golden_target

from .traces import (
    FULL,
    PROMPTS,
    REDUCED,
    VERIFIER,
    record_options,
    text_settings,
    write_prompts,
)

INPUTS = [TextInput(str(index), prompt) for index, prompt in enumerate(PROMPTS)]
GREEDY = SamplingOptions()


def sampled(seed: int = 0, batch_size: int = 8, **changes: Any) -> list[TraceSequence]:
    generator = torch.Generator().manual_seed(seed)
    settings = text_settings(**changes)
    return list(
        sample_texts(golden_target(), INPUTS, settings, batch_size=batch_size, generator=generator)
    )


def chi_square(observed: Tensor, expected: Tensor) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def full_pass(token_ids: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits [T, V] and residual streams by layer id, by transformers alone and without a cache.

    The state of the last layer is caught before the final norm.
    """
    model = golden_target().model
    caught: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with torch.no_grad():
        output = model(input_ids=token_ids[None], output_hidden_states=True, use_cache=False)
    hook.remove()
    states = dict(enumerate((state[0] for state in output.hidden_states[:-1]), start=-1))
    return output.logits[0], {**states, len(states) - 1: caught[0][0]}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_number_is_that_of_a_full_pass(batch_size: int, temperature: float) -> None:
    sequences = sampled(
        sampling=SamplingOptions(temperature=temperature),
        batch_size=batch_size,
        layer_ids=(-1, 0, 1, 2, 3),
    )
    for sequence, prompt in zip(sequences, PROMPTS, strict=True):
        logits, states = full_pass(sequence.token_ids)
        before = logits[sequence.first_generated - 1 : -1]
        generated = sequence.token_ids[sequence.first_generated :]
        assert tuple(sequence.token_ids[: len(prompt)].tolist()) == prompt
        assert len(generated) == 12
        for column, layer_id in enumerate(sequence.layer_ids):
            torch.testing.assert_close(
                sequence.features[:, column], states[layer_id], atol=1e-4, rtol=1e-4
            )
        law = (before / (temperature or 1.0)).log_softmax(-1)
        assert sequence.top_ids is not None
        assert sequence.log_probs is not None
        assert sequence.argmax_ids is not None
        own = law.gather(1, generated[:, None]).squeeze(1) if temperature else torch.zeros(12)
        torch.testing.assert_close(sequence.log_probs, own, atol=1e-4, rtol=0)
        torch.testing.assert_close(
            sequence.top_log_probs, law.gather(1, sequence.top_ids.long()), atol=1e-4, rtol=0
        )
        assert torch.equal(sequence.top_ids.long(), law.topk(8).indices)
        tail = 1 - law.topk(8).values.exp().sum(-1)
        torch.testing.assert_close(sequence.tail_mass, tail, atol=1e-5, rtol=0)
        assert torch.equal(sequence.argmax_ids, before.argmax(-1))
        two = before.topk(2).values
        torch.testing.assert_close(sequence.top2_gap, two[:, 0] - two[:, 1], atol=1e-4, rtol=0)
        if not temperature:
            assert torch.equal(generated, before.argmax(-1))


def test_greedy_text_is_that_of_the_plain_loop() -> None:
    for sequence, prompt in zip(sampled(sampling=GREEDY), PROMPTS, strict=True):
        plain = decode_plain(golden_target(), prompt, DecodeOptions(max_new_tokens=12))
        assert tuple(sequence.token_ids[len(prompt) :].tolist()) == plain


@pytest.mark.parametrize("variant", ["spec_gated_reduced_1plusN_bf16", "dense_rnn_bf16"])
def test_the_last_round_of_a_decode_run_lies_within_the_text(variant: str) -> None:
    draft, limit = golden_draft(variant), 9
    kept = limit + draft.config.num_speculative_tokens + 1
    results = decode(golden_target(), draft, PROMPTS, DecodeOptions(max_new_tokens=limit))
    for sequence, result in zip(sampled(sampling=GREEDY, max_generated=kept), results, strict=True):
        committed = [token for round_ in result.rounds for token in round_.committed_ids]
        text = sequence.token_ids[sequence.first_generated :].tolist()
        assert text[1 : len(committed) + 1] == committed
        last = result.rounds[-1]
        assert last.anchor_position < sequence.first_generated + limit
        assert last.anchor_position + len(last.proposed_ids) + 1 < len(sequence.token_ids)


def test_texts_do_not_depend_on_the_batch_and_do_on_the_seed() -> None:
    one, three = sampled(batch_size=1), sampled(batch_size=3)
    for alone, together in zip(one, three, strict=True):
        assert torch.equal(alone.token_ids, together.token_ids)
        torch.testing.assert_close(alone.features, together.features, atol=1e-4, rtol=1e-4)
    other = sampled(seed=1)
    assert any(not torch.equal(a.token_ids, b.token_ids) for a, b in zip(one, other, strict=True))


def test_sampled_tokens_follow_the_law_of_the_target() -> None:
    """Chi-square of 6,000 transitions of a chain, conditional on each state, at 1e-4."""
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    sampling = SamplingOptions(temperature=0.8)
    settings = text_settings(layer_ids=(0,), sampling=sampling, max_generated=15, top_log_probs=0)
    inputs = [TextInput(str(index), (index % 4,)) for index in range(400)]
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(4, 4)
    for sequence in sample_texts(
        ChainTarget(logits), inputs, settings, batch_size=400, generator=generator
    ):
        for before, after in zip(sequence.token_ids, sequence.token_ids[1:], strict=False):
            counts[before, after] += 1
        assert sequence.top_ids is None
    assert int(counts.sum()) == 6000
    law = (logits / 0.8).softmax(-1)
    visits = counts.sum(1, keepdim=True)
    assert float(visits.min()) > 100
    # 4 states with 3 degrees of freedom each; the chance of more is 1e-4.
    assert chi_square(counts, visits * law) < 39.1
    assert chi_square(counts, visits * logits.softmax(-1)) > 39.1


def test_filters_shape_the_recorded_law() -> None:
    for sequence in sampled(sampling=SamplingOptions(temperature=1.0, top_k=5, top_p=0.9)):
        assert sequence.top_log_probs is not None
        assert sequence.tail_mass is not None
        assert sequence.log_probs is not None
        assert bool((sequence.top_log_probs[:, 5:] == float("-inf")).all())
        total = sequence.top_log_probs.exp().sum(-1)
        torch.testing.assert_close(total, torch.ones(12), atol=1e-6, rtol=0)
        assert float(sequence.tail_mass.max()) < 1e-6
        assert bool(torch.isfinite(sequence.log_probs).all())


def test_a_stop_token_ends_the_text() -> None:
    whole = sampled()
    stop = int(whole[1].token_ids[whole[1].first_generated + 4])
    for sequence, uncut in zip(sampled(stop_token_ids=frozenset({stop})), whole, strict=True):
        text = uncut.token_ids[uncut.first_generated :].tolist()
        expected = text[: text.index(stop) + 1] if stop in text else text
        assert sequence.token_ids[sequence.first_generated :].tolist() == expected
        assert len(sequence.features) == len(sequence.token_ids)
        assert sequence.log_probs is not None
        assert len(sequence.log_probs) == len(expected)


def test_sampling_without_a_generator_is_refused() -> None:
    with pytest.raises(UsageError, match="generator-required"):
        list(sample_texts(golden_target(), INPUTS, text_settings(), batch_size=8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_that_overflowed_is_refused(bad: float, temperature: float) -> None:
    logits = torch.zeros(4, 4)
    logits[2, 1] = bad
    settings = text_settings(
        layer_ids=(0,), sampling=SamplingOptions(temperature=temperature), top_log_probs=0
    )
    inputs = [TextInput("a", (0, 2))]
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(TraceError, match="trace-not-finite"):
        list(sample_texts(ChainTarget(logits), inputs, settings, batch_size=1, generator=generator))


# Given texts


@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_reading_a_text_gives_what_writing_it_gave(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts_module, "_CHUNK", chunk)
    written = sampled()
    texts = [
        TextInput(
            sequence.id,
            tuple(sequence.token_ids[: sequence.first_generated].tolist()),
            tuple(sequence.token_ids[sequence.first_generated :].tolist()),
        )
        for sequence in written
    ]
    for found, wanted in zip(
        read_texts(golden_target(), texts, text_settings()), written, strict=True
    ):
        for name in ("token_ids", "argmax_ids", "top_ids", "first_generated"):
            assert torch.equal(
                torch.as_tensor(getattr(found, name)), torch.as_tensor(getattr(wanted, name))
            )
        for name in ("features", "log_probs", "top_log_probs", "tail_mass", "top2_gap"):
            torch.testing.assert_close(
                getattr(found, name), getattr(wanted, name), atol=1e-4, rtol=1e-4
            )


def test_a_given_token_may_be_impossible() -> None:
    greedy = sampled(sampling=GREEDY)[0]
    first = int(greedy.token_ids[greedy.first_generated])
    (sequence,) = read_texts(
        golden_target(),
        [TextInput("a", PROMPTS[0], (first, (first + 1) % 320))],
        text_settings(sampling=GREEDY),
    )
    assert sequence.log_probs is not None
    assert sequence.log_probs.tolist() == [0.0, float("-inf")]


def test_responses_are_cut_at_stop_and_limit() -> None:
    stop = frozenset({7})
    assert cut_response((1, 2, 7, 3, 7), stop, 5) == (1, 2, 7)
    assert cut_response((1, 2, 3, 7), stop, 3) == (1, 2, 3)
    assert cut_response((1, 2), stop) == (1, 2)


class WordTokenizer:
    """One token a character; a chat is ``<role>text`` turns, each closed by ``|``."""

    chat_template = "a template"

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, **_: Any
    ) -> list[int]:
        turns = [f"<{turn['role'][0]}>{turn['content']}|" for turn in messages]
        text = "".join(turns) + "<a>" * add_generation_prompt
        return [ord(letter) for letter in text]


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(chr(token_id) for token_id in token_ids)


def test_given_files_hold_text_ids_and_chats(tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
    path = write_prompts(
        tmp_path,
        [
            {"id": "text", "prompt": "ab", "response": "cd"},
            {"id": "ids", "prompt_token_ids": [5, 6], "response_token_ids": [7]},
            {"id": "chat", "messages": [user, answer]},
            {"id": "both", "messages": [user], "response": "ok"},
        ],
    )
    text, ids, chat, both = read_given(path, WordTokenizer())
    assert text == TextInput("text", (1, 97, 98), (99, 100))
    assert ids == TextInput("ids", (5, 6), (7,))
    assert (text_of(chat.prompt_ids), text_of(chat.response_ids)) == ("<u>hi|<a>", "yo|")
    assert (text_of(both.prompt_ids), text_of(both.response_ids)) == ("<u>hi|<a>", "ok")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"prompt": "a"}, "response-missing"),
        ({"messages": [{"role": "user", "content": "a"}]}, "response-missing"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "response-invalid"),
        ({"prompt": "a", "response": ""}, "response-invalid"),
        ({"prompt": "a", "response": 3}, "response-invalid"),
        ({"prompt": "a", "response_token_ids": []}, "response-invalid"),
        ({"prompt": "a", "response_token_ids": [1, True]}, "response-invalid"),
        ({"prompt": "a", "response_token_ids": "12"}, "response-invalid"),
    ],
)
def test_responses_that_are_none_are_refused(
    tmp_path: Path, line: dict[str, Any], code: str
) -> None:
    with pytest.raises(PromptError, match=code):
        read_given(write_prompts(tmp_path, [line]), WordTokenizer())


def test_given_needs_a_tokenizer_for_text_and_a_template_that_keeps_its_prompt(
    tmp_path: Path,
) -> None:
    path = write_prompts(tmp_path, [{"prompt_token_ids": [1], "response": "a"}])
    with pytest.raises(PromptError, match="tokenizer-missing"):
        read_given(path, None)

    class Forgetful(WordTokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
            return super().apply_chat_template(messages[-1:], **options)

    turns = [{"role": role, "content": "x"} for role in ("user", "assistant")]
    with pytest.raises(PromptError, match="chat-template-rewrites"):
        read_given(write_prompts(tmp_path, [{"messages": turns}]), Forgetful())
    plain = tmp_path / "prompts.txt"
    plain.write_text("just a prompt\n")
    with pytest.raises(PromptError, match="response-missing"):
        read_given(plain, WordTokenizer())


# The whole command


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
        ("--temperature", "-1", "option-out-of-range"),
    ],
)
def test_wrong_usage(tmp_path: Path, option: str, value: str, code: str) -> None:
    done = run("--for", FULL, "--out", tmp_path / "trace.safetensors", option, value)
    assert done.exit_code == 2
    assert code in done.stderr


def test_sizes_and_ids_as_typed() -> None:
    wanted = {
        "500": 500,
        "2kB": 2000,
        "2KiB": 2048,
        "1.5GB": 1_500_000_000,
        "2g": 2 * 10**9,
        "1TiB": 2**40,
        "7 MB": 7_000_000,
    }
    assert {text: parse_size(text) for text in wanted} == wanted
    assert parse_size(None) is None
    for text in ("", "GB", "-1", "1e9", "1XB", "2iB"):
        with pytest.raises(UsageError, match="size-invalid"):
            parse_size(text)
    assert parse_ids("-1, 2,3,", "--layers") == (-1, 2, 3)


def test_a_trace_error_is_a_refusal() -> None:
    assert TraceError.exit_code == 3
