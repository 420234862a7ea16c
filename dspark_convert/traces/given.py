"""Texts from elsewhere: a prompt and the response to it, from JSON lines.

A line is that of a prompts file with an additional ``response`` (text) or ``response_token_ids``,
or a chat (``messages``) whose last turn is the assistant's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspark_convert.errors import PromptError
from dspark_convert.traces.generate import TextInput
from dspark_convert.traces.prompts import Prompt, encode_prompts, prompt_error, read_prompts

_EXAMPLE = 'for instance {"prompt": "2 + 2 =", "response": " 4"}'


def read_given(path: Path, tokenizer: Any | None) -> list[TextInput]:
    """The texts of a file, as token ids of the target's tokenizer.

    Raises:
        PromptError: those of ``read_prompts`` and ``encode_prompts``, and ``response-missing``,
            ``response-invalid``, ``chat-template-rewrites``.
    """
    prompts = read_prompts(path)
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    return [_encode(prompt, line, tokenizer) for prompt, line in zip(prompts, lines, strict=True)]


def _encode(prompt: Prompt, line: str, tokenizer: Any | None) -> TextInput:
    entry = _entry(line)
    if "response_token_ids" in entry:
        response = _token_ids(entry["response_token_ids"], prompt.id)
    elif "response" in entry:
        response = _encode_response(entry["response"], prompt.id, tokenizer)
    elif prompt.messages is not None and prompt.messages[-1].get("role") == "assistant":
        return _encode_chat(prompt, tokenizer)
    else:
        raise prompt_error(
            "response-missing", "the text has no response to its prompt", prompt.id, hint=_EXAMPLE
        )
    (prompt_ids,) = encode_prompts([prompt], tokenizer)
    return TextInput(prompt.id, tuple(prompt_ids), response)


def _entry(line: str) -> dict[str, Any]:
    """The line as an object; plain text, which ``read_prompts`` may have taken, has no keys."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _token_ids(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    raise _invalid("response_token_ids must be a non-empty list of token ids", where)


def _encode_response(value: object, where: str, tokenizer: Any | None) -> tuple[int, ...]:
    if not isinstance(value, str) or not value:
        raise _invalid("response must be a non-empty text", where)
    if tokenizer is None:
        raise prompt_error(
            "tokenizer-missing",
            "the target's folder has no tokenizer for text responses",
            where,
            hint="add its tokenizer files, or give prompt_token_ids and response_token_ids",
        )
    return tuple(tokenizer(value, add_special_tokens=False)["input_ids"])


def _encode_chat(prompt: Prompt, tokenizer: Any | None) -> TextInput:
    """Prompt and response of a chat; the response is what the whole chat adds to its prompt."""
    assert prompt.messages is not None
    asked = replace(prompt, messages=prompt.messages[:-1])
    if not asked.messages:
        raise _invalid("a chat must start with a turn that is not the assistant's", prompt.id)
    (prompt_ids,) = encode_prompts([asked], tokenizer)
    assert tokenizer is not None, "encode_prompts refuses chats without one"
    whole = tokenizer.apply_chat_template(
        list(prompt.messages), add_generation_prompt=False, tokenize=True, return_dict=False
    )
    if whole[: len(prompt_ids)] != prompt_ids or len(whole) == len(prompt_ids):
        raise prompt_error(
            "chat-template-rewrites",
            "the chat template renders the prompt differently once a response follows",
            prompt.id,
            hint="give prompt_token_ids and response_token_ids",
        )
    return TextInput(prompt.id, tuple(prompt_ids), tuple(whole[len(prompt_ids) :]))


def _invalid(expected: str, where: str) -> PromptError:
    return prompt_error("response-invalid", expected, where, hint=_EXAMPLE)
