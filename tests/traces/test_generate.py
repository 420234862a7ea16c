"""Texts are the target's, and every number is that of an independent full pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark_convert.errors import PromptError, TraceError, UsageError
from dspark_convert.runtime import DecodeOptions, SamplingOptions, decode, decode_plain
from dspark_convert.traces import generate as texts_module
from dspark_convert.traces.generate import TextInput, cut_response, read_texts, sample_texts
from dspark_convert.traces.prompts import encode_given, read_prompts
from dspark_convert.traces.trace import TraceSequence
from tests.runtime.helpers import ChainTarget, golden_draft, golden_target

from .helpers import PROMPTS, text_settings, write_prompts

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
    text, ids, chat, both = encode_given(read_prompts(path), WordTokenizer())
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
        encode_given(read_prompts(write_prompts(tmp_path, [line])), WordTokenizer())


def test_given_needs_a_tokenizer_for_text_and_a_template_that_keeps_its_prompt(
    tmp_path: Path,
) -> None:
    path = write_prompts(tmp_path, [{"prompt_token_ids": [1], "response": "a"}])
    with pytest.raises(PromptError, match="tokenizer-missing"):
        encode_given(read_prompts(path), None)

    class Forgetful(WordTokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
            return super().apply_chat_template(messages[-1:], **options)

    turns = [{"role": role, "content": "x"} for role in ("user", "assistant")]
    with pytest.raises(PromptError, match="chat-template-rewrites"):
        encode_given(read_prompts(write_prompts(tmp_path, [{"messages": turns}])), Forgetful())
    plain = tmp_path / "prompts.txt"
    plain.write_text("just a prompt\n")
    with pytest.raises(PromptError, match="response-missing"):
        encode_given(read_prompts(plain), WordTokenizer())
