"""Prompts: read from a file or the bundled set, and encoded by the target's tokenizer.

JSON lines may hold ``prompt`` (text), ``prompt_token_ids``, ``messages`` (a chat) or ``turns``
(DeepSpec: user turns, of which the first is used); ``id`` names the line in reports. Any other file
is plain text, one prompt per line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dspark_convert.errors import Finding, PromptError

BUNDLED = "bundled"
MAX_PROMPTS_BYTES = 100_000_000

_FORMS = ("prompt_token_ids", "messages", "turns", "prompt")


@dataclass(frozen=True)
class Prompt:
    """One prompt as given: exactly one of text, ids or messages."""

    id: str
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None


def read_prompts(path: Path | None) -> list[Prompt]:
    """The prompts of a file, or the bundled ones.

    Raises:
        PromptError: ``prompts-unreadable``, ``prompts-empty``, ``prompt-invalid``.
    """
    text, name = _read_text(path)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if path is not None and path.suffix not in (".jsonl", ".json", ".ndjson"):
        prompts = [Prompt(id=str(number), text=line) for number, line in lines]
    else:
        prompts = [_parse_line(line, number, name) for number, line in lines]
    if not prompts:
        raise prompt_error(
            "prompts-empty", "the file holds no prompt", name, hint="give one prompt per line"
        )
    return prompts


def encode_prompts(prompts: Sequence[Prompt], tokenizer: Any | None) -> list[list[int]]:
    """Token ids of every prompt.

    Chats go through the tokenizer's chat template with the generation prompt added. Texts get the
    special tokens that the tokenizer adds by itself.

    Raises:
        PromptError: ``tokenizer-missing``, ``chat-template-missing``.
    """
    return [_encode(prompt, tokenizer) for prompt in prompts]


def _encode(prompt: Prompt, tokenizer: Any | None) -> list[int]:
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    if tokenizer is None:
        raise prompt_error(
            "tokenizer-missing",
            "the target's folder has no tokenizer for text prompts",
            prompt.id,
            hint="add its tokenizer files, or give --prompts with prompt_token_ids",
        )
    if prompt.messages is None:
        return list(tokenizer(prompt.text)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise prompt_error(
            "chat-template-missing",
            "the target's tokenizer has no chat template for messages",
            prompt.id,
            hint="give prompts as text or as prompt_token_ids",
        )
    return list(
        tokenizer.apply_chat_template(
            list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def _read_text(path: Path | None) -> tuple[str, str]:
    if path is None:
        bundled = resources.files(__package__) / "prompts.jsonl"
        return bundled.read_text(encoding="utf-8"), BUNDLED
    try:
        if path.stat().st_size > MAX_PROMPTS_BYTES:
            raise prompt_error("prompts-unreadable", "the file is larger than 100 MB", path.name)
        return path.read_text(encoding="utf-8-sig"), path.name
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise prompt_error(
            "prompts-unreadable", f"the file cannot be read: {reason}", path.name
        ) from None


def _parse_line(line: str, number: int, name: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise _invalid(number, name, "a JSON object on each line") from None
    form = next((form for form in _FORMS if isinstance(entry, dict) and form in entry), None)
    if form is None:
        raise _invalid(number, name, f"one of the keys {', '.join(_FORMS)}")
    value, prompt_id = entry[form], str(entry.get("id", number))
    if form == "prompt" and isinstance(value, str) and value:
        return Prompt(prompt_id, text=value)
    if form == "turns" and _all_are(value, str):
        return Prompt(prompt_id, messages=({"role": "user", "content": value[0]},))
    if form == "messages" and _all_are(value, dict):
        return Prompt(prompt_id, messages=tuple(value))
    if form == "prompt_token_ids" and _all_are(value, int):
        return Prompt(prompt_id, token_ids=tuple(value))
    raise _invalid(number, name, f"{form} that is not empty and of the right type")


def _all_are(value: object, kind: type) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)
    )


def _invalid(number: int, name: str, expected: str) -> PromptError:
    return PromptError(
        Finding(
            code="prompt-invalid",
            message=f"line {number} is not a prompt",
            file=name,
            expected=expected,
            hint='for instance {"id": "a", "prompt": "Once upon a time"}',
        )
    )


def prompt_error(code: str, message: str, where: str, hint: str | None = None) -> PromptError:
    """A refusal with one finding."""
    return PromptError(Finding(code=code, message=message, file=where, hint=hint))
