"""The tokenizer of a target or a draft, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from dspark_convert.runtime.load_target import LOADING_ERRORS, loading_hint
from dspark_convert.traces.prompts import prompt_error

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any | None:
    """The tokenizer of a folder; None when there are no tokenizer files.

    Raises:
        PromptError: ``tokenizer-unreadable``.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except LOADING_ERRORS as error:
        raise prompt_error(
            "tokenizer-unreadable",
            f"transformers cannot load the tokenizer: {error}",
            folder.name,
            hint=loading_hint(error)
            or "repair the tokenizer files, or remove them and give prompt_token_ids",
        ) from error
