"""Prompt files: every form, and what is not one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.errors import PromptError
from dspark_convert.traces import prompts as module
from dspark_convert.traces.prompts import encode_given, encode_prompts, read_prompts


def write_lines(folder: Path, *entries: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


class WordTokenizer:
    """One id per word; chats end in an id of their own."""

    chat_template = "anything"

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        assert options["add_generation_prompt"]
        return [*self(messages[-1]["content"])["input_ids"], 99]


def test_every_form_becomes_token_ids(tmp_path: Path) -> None:
    prompts = read_prompts(
        write_lines(
            tmp_path,
            {"id": "text", "prompt": "a bb ccc"},
            {"id": "ids", "prompt_token_ids": [5, 6]},
            {"id": "chat", "messages": [{"role": "user", "content": "dddd"}]},
            {"turns": ["ee", "a later turn"]},
        )
    )
    assert [prompt.id for prompt in prompts] == ["text", "ids", "chat", "4"]
    assert encode_prompts(prompts, WordTokenizer()) == [[1, 2, 3], [5, 6], [4, 99], [2, 99]]


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo words\n")
    assert [(p.id, p.text) for p in read_prompts(path)] == [("1", "one"), ("3", "two words")]


def test_the_bundled_set_is_readable_and_its_ids_are_unique() -> None:
    prompts = read_prompts(None)
    assert len({prompt.id for prompt in prompts}) == len(prompts) >= 16


@pytest.mark.parametrize(
    "entry",
    [
        {"text": "x"},
        {"prompt": ""},
        {"prompt": 3},
        {"prompt_token_ids": []},
        {"prompt_token_ids": [1, True]},
        {"prompt_token_ids": [1.5]},
        {"messages": "x"},
        {"turns": [1]},
        ["prompt"],
        None,
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(tmp_path: Path, entry: object) -> None:
    with pytest.raises(PromptError) as caught:
        read_prompts(write_lines(tmp_path, {"prompt": "fine"}, entry))
    assert caught.value.code == "prompt-invalid"
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "prompts-empty"), (b"\n\n", "prompts-empty"), (b"\xff\xfe\xfa", "prompts-unreadable")],
)
def test_files_without_prompts_are_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    assert caught.value.code == code


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError) as caught:
        read_prompts(tmp_path / "absent.jsonl")
    assert caught.value.code == "prompts-unreadable"


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    prompts = read_prompts(write_lines(tmp_path, {"prompt": "x"}))
    with pytest.raises(PromptError) as caught:
        encode_prompts(prompts, None)
    assert caught.value.code == "tokenizer-missing"


def test_a_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    tokenizer = WordTokenizer()
    tokenizer.chat_template = ""
    prompts = read_prompts(write_lines(tmp_path, {"turns": ["x"]}))
    with pytest.raises(PromptError) as caught:
        encode_prompts(prompts, tokenizer)
    assert caught.value.code == "chat-template-missing"


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "\\ud800"}',
        '{"prompt": "a", "prompt": "b"}',
        '{"prompt": "a", "x": NaN}',
        '{"prompt_token_ids": [' + "9" * 5000 + "]}",
        '{"prompt": "a", "x": ' + "[" * 100 + "]" * 100 + "}",
    ],
)
def test_lines_are_strict_json(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(PromptError, match="prompt-invalid"):
        read_prompts(path)


def test_a_file_that_never_ends_or_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("fifo.jsonl", "zero.jsonl", "folder.jsonl", "missing.jsonl"):
        with pytest.raises(PromptError, match="prompts-unreadable") as caught:
            read_prompts(tmp_path / name)
        assert caught.value.findings[0].hint


def test_the_size_of_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path, {"prompt": "a bb", "response": "ccc"})
    prompts = read_prompts(path)
    assert [*encode_given(prompts, WordTokenizer())[0].response_ids] == [3]
    monkeypatch.setattr(module, "MAX_PROMPTS_BYTES", 10)
    with pytest.raises(PromptError, match="prompts-unreadable"):
        read_prompts(path)


class FailingTokenizer(WordTokenizer):
    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        raise TypeError("TextEncodeInput must be Union[TextInputSequence]")

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        raise ZeroDivisionError("Conversation roles must alternate user/assistant")


@pytest.mark.parametrize(
    "prompt",
    [{"prompt": "a"}, {"messages": [{"role": "user", "content": "x"}]}],
)
def test_what_a_tokenizer_raises_is_a_refusal_of_the_prompt(
    prompt: dict[str, Any], tmp_path: Path
) -> None:
    prompts = read_prompts(write_lines(tmp_path, {"id": "one", **prompt}))
    with pytest.raises(PromptError, match="tokenizer-failed") as caught:
        encode_prompts(prompts, FailingTokenizer())
    assert caught.value.findings[0].file == "one"
