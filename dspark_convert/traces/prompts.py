"""Prompts, and texts from elsewhere: read from a file or the bundled set, and encoded.

JSON lines may hold ``prompt`` (text), ``prompt_token_ids``, ``messages`` (a chat) or ``turns``
(DeepSpec: user turns, of which the first is used); ``id`` names the line in reports. A text from
elsewhere has a ``response`` (text) or ``response_token_ids`` too, or is a chat whose last turn is
the assistant's. Any other file is plain text, one prompt per line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from dspark_convert.checkpoint.files import read_limited
from dspark_convert.checkpoint.jsonfile import parse_json
from dspark_convert.errors import CheckpointError, Finding, PromptError
from dspark_convert.runtime.library_errors import library_errors
from dspark_convert.traces.generate import TextInput

BUNDLED = "bundled"
MAX_PROMPTS_BYTES = 100_000_000

_FORMS = ("prompt_token_ids", "messages", "turns", "prompt")
_EXAMPLE = 'for instance {"prompt": "2 + 2 =", "response": " 4"}'


@dataclass(frozen=True)
class Prompt:
    """One prompt as given: exactly one of text, ids or messages."""

    id: str
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    response: object = None
    """Of a text from elsewhere, as the line holds it; `encode_given` checks it."""
    response_ids: object = None
    """``response_token_ids``, which override ``response``, as the line holds them."""


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
        PromptError: ``tokenizer-missing``, ``chat-template-missing``, ``tokenizer-failed``.
    """
    return [_encode(prompt, tokenizer) for prompt in prompts]


def encode_given(prompts: Sequence[Prompt], tokenizer: Any | None) -> list[TextInput]:
    """Prompts with their responses, as token ids of the target's tokenizer.

    Raises:
        PromptError: those of ``encode_prompts``, and ``response-missing``, ``response-invalid``,
            ``chat-template-rewrites``.
    """
    return [_encode_given(prompt, tokenizer) for prompt in prompts]


def _encode(prompt: Prompt, tokenizer: Any | None) -> list[int]:
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    if prompt.messages is None:
        return _tokenize(prompt.text or "", _required(tokenizer, prompt.id), prompt.id)
    return _render_chat(prompt, _required(tokenizer, prompt.id), reply=True)


def _encode_given(prompt: Prompt, tokenizer: Any | None) -> TextInput:
    response, ids = prompt.response, prompt.response_ids
    if response is None and ids is None:
        if prompt.messages is not None and prompt.messages[-1].get("role") == "assistant":
            return _encode_chat(prompt, tokenizer)
        raise prompt_error(
            "response-missing", "the text has no response to its prompt", prompt.id, hint=_EXAMPLE
        )
    if ids is None:
        if not isinstance(response, str) or not response:
            raise _invalid_response("response must be a non-empty text", prompt.id)
        tokenizer = _required(tokenizer, prompt.id)
        ids = _tokenize(response, tokenizer, prompt.id, add_special_tokens=False)
    if not isinstance(ids, list) or not _all_are(ids, int):
        raise _invalid_response(
            "response_token_ids must be a non-empty list of token ids", prompt.id
        )
    return TextInput(prompt.id, tuple(_encode(prompt, tokenizer)), tuple(ids))


def _encode_chat(prompt: Prompt, tokenizer: Any | None) -> TextInput:
    """Prompt and response of a chat; the response is what the whole chat adds to its prompt."""
    assert prompt.messages is not None
    asked = replace(prompt, messages=prompt.messages[:-1])
    if not asked.messages:
        raise _invalid_response("a chat starts with a turn that is not the assistant's", prompt.id)
    prompt_ids = _encode(asked, tokenizer)
    whole = _render_chat(prompt, tokenizer, reply=False)
    if whole[: len(prompt_ids)] != prompt_ids or len(whole) == len(prompt_ids):
        raise prompt_error(
            "chat-template-rewrites",
            "the chat template renders the prompt differently once a response follows",
            prompt.id,
            hint="give prompt_token_ids and response_token_ids",
        )
    return TextInput(prompt.id, tuple(prompt_ids), tuple(whole[len(prompt_ids) :]))


def _tokenize(text: str, tokenizer: Any, where: str, **options: bool) -> list[int]:
    with _tokenizing(where):
        return list(tokenizer(text, **options)["input_ids"])


def _render_chat(prompt: Prompt, tokenizer: Any, *, reply: bool) -> list[int]:
    """Token ids of a chat; with ``reply``, up to where the answer begins."""
    assert prompt.messages is not None
    if not getattr(tokenizer, "chat_template", None):
        raise prompt_error(
            "chat-template-missing",
            "the target's tokenizer has no chat template for messages",
            prompt.id,
            hint="give prompts as text or as prompt_token_ids",
        )
    with _tokenizing(prompt.id):
        return list(
            tokenizer.apply_chat_template(
                list(prompt.messages),
                add_generation_prompt=reply,
                tokenize=True,
                return_dict=False,
            )
        )


@contextmanager
def _tokenizing(where: str) -> Iterator[None]:
    """Chat templates raise on purpose (roles that must alternate), tokenizers by accident."""

    def refuse(description: str, hint: str | None) -> PromptError:
        return prompt_error(
            "tokenizer-failed",
            f"the target's tokenizer cannot encode the text: {description}",
            where,
            hint=hint or "correct the prompt, or give prompt_token_ids",
        )

    with library_errors(refuse):
        yield


def _required(tokenizer: Any | None, where: str) -> Any:
    if tokenizer is None:
        raise prompt_error(
            "tokenizer-missing",
            "the target's folder has no tokenizer for texts",
            where,
            hint="add its tokenizer files, or give token ids: prompt_token_ids, and for texts from "
            "elsewhere response_token_ids",
        )
    return tokenizer


def _read_text(path: Path | None) -> tuple[str, str]:
    if path is None:
        bundled = resources.files(__package__) / "prompts.jsonl"
        return bundled.read_text(encoding="utf-8"), BUNDLED
    try:
        return read_limited(path, limit=MAX_PROMPTS_BYTES).decode("utf-8-sig"), path.name
    except CheckpointError as error:
        first = error.findings[0]
        raise prompt_error(
            "prompts-unreadable",
            f"the file cannot be read: {first.message}",
            path.name,
            hint=first.hint,
        ) from None
    except UnicodeDecodeError:
        raise prompt_error(
            "prompts-unreadable",
            "the file cannot be read: it is not UTF-8 text",
            path.name,
            hint="save it as UTF-8",
        ) from None


def _parse_line(line: str, number: int, name: str) -> Prompt:
    try:
        entry = parse_json(line.encode("utf-8"), file=name)
    except CheckpointError as error:
        problem = error.findings[0].message
        raise _invalid(number, name, "a JSON object on each line", problem) from None
    form = next((form for form in _FORMS if isinstance(entry, dict) and form in entry), None)
    if form is None:
        raise _invalid(number, name, f"one of the keys {', '.join(_FORMS)}")
    value, prompt_id = entry[form], str(entry.get("id", number))
    given = {"response": entry.get("response"), "response_ids": entry.get("response_token_ids")}
    if form == "prompt" and isinstance(value, str) and value:
        return Prompt(prompt_id, text=value, **given)
    if form == "turns" and _all_are(value, str):
        turn = {"role": "user", "content": value[0]}
        return Prompt(prompt_id, messages=(turn,), **given)
    if form == "messages" and _all_are(value, dict):
        return Prompt(prompt_id, messages=tuple(value), **given)
    if form == "prompt_token_ids" and _all_are(value, int):
        return Prompt(prompt_id, token_ids=tuple(value), **given)
    raise _invalid(number, name, f"{form} that is not empty and of the right type")


def _all_are(value: object, kind: type) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)
    )


def _invalid(number: int, name: str, expected: str, problem: str | None = None) -> PromptError:
    return PromptError(
        Finding(
            code="prompt-invalid",
            message=f"line {number} is not a prompt" + (f": {problem}" if problem else ""),
            file=name,
            expected=expected,
            hint='for instance {"id": "a", "prompt": "Once upon a time"}',
        )
    )


def _invalid_response(expected: str, where: str) -> PromptError:
    return prompt_error("response-invalid", expected, where, hint=_EXAMPLE)


def prompt_error(code: str, message: str, where: str, hint: str | None = None) -> PromptError:
    """A refusal with one finding."""
    return PromptError(Finding(code=code, message=message, file=where, hint=hint))
