"""The tokenizer of a target or a draft, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from dspark_convert.checkpoint.files import require_model_documents
from dspark_convert.errors import PromptError
from dspark_convert.runtime.library_errors import library_errors
from dspark_convert.traces.prompts import prompt_error

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any | None:
    """The tokenizer of a folder; None if there are no tokenizer files.

    Raises:
        PromptError: ``tokenizer-unreadable``.
        CheckpointError: see ``require_model_documents``.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    require_model_documents(folder)

    def refuse(description: str, hint: str | None) -> PromptError:
        return prompt_error(
            "tokenizer-unreadable",
            f"transformers cannot load the tokenizer: {description}",
            folder.name,
            hint=hint or "repair the tokenizer files, or remove them and give prompt_token_ids",
        )

    with library_errors(refuse):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
