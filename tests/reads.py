"""What a command reads from the folders of its models: each config, header, tokenizer and tensor.

Reads of ours are counted apart from those of transformers, which opens a target's files in its own
way.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import safetensors
import transformers
from transformers import core_model_loading, modeling_utils

from dspark_convert.checkpoint import folder as checkpoint_folder

Reader = Literal["ours", "transformers"]
PACKAGES: dict[str, Reader] = {"dspark_convert": "ours", "transformers": "transformers"}


class Read(NamedTuple):
    """One thing in a folder: ``what`` is a config, a header, a tokenizer, a model or a tensor."""

    folder: str
    what: str
    reader: Reader


class Reads:
    """Counts reads from when it is made until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[Read] = Counter()
        for module in (builtins, io, os):
            patch.setattr(module, "open", self._counting_open(module.open))
        header = checkpoint_folder.read_header
        patch.setattr(checkpoint_folder, "read_header", self._counting("header", header))
        for loader, what in (
            (transformers.AutoTokenizer, "tokenizer"),
            (transformers.AutoModelForCausalLM, "model"),
        ):
            method = loader.from_pretrained
            patch.setattr(loader, "from_pretrained", self._counting(what, method))
        self._count_tensors(patch)

    def of(self, folder: str, reader: Reader = "ours") -> dict[str, int]:
        """How often each thing in a folder was read."""
        return {
            read.what: count
            for read, count in sorted(self.counts.items())
            if (read.folder, read.reader) == (folder, reader)
        }

    def _note(self, path: Any, what: str) -> None:
        reader = reader_of_frame()
        if reader is not None and isinstance(path, (str, os.PathLike)):
            place = Path(path)
            name = place.name if what in ("tokenizer", "model") else place.parent.name
            self.counts[Read(name, what, reader)] += 1

    def _counting_open(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        def count(path: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(path, (str, os.PathLike)) and Path(path).name == "config.json":
                self._note(path, "config")
            return opened(path, *rest, **options)

        return count

    def _counting(self, what: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def count(path: Any, *rest: Any, **options: Any) -> Any:
            self._note(path, what)
            return read(path, *rest, **options)

        return count

    def _count_tensors(self, patch: pytest.MonkeyPatch) -> None:
        note, real = self._note, safetensors.safe_open

        class CountingFile:
            """A safetensors file that counts the tensors that are asked for."""

            def __init__(self, path: Any, *rest: Any, **options: Any) -> None:
                self.path, self.file = path, real(path, *rest, **options)

            def __enter__(self) -> CountingFile:
                self.file.__enter__()
                return self

            def __exit__(self, *error: Any) -> None:
                self.file.__exit__(*error)

            def get_tensor(self, name: str) -> Any:
                note(self.path, name)
                return self.file.get_tensor(name)

            def get_slice(self, name: str) -> Any:
                note(self.path, name)
                return self.file.get_slice(name)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

        for module in [core_model_loading, modeling_utils, *sys.modules.values()]:
            if vars(module).get("safe_open") is real:
                patch.setattr(module, "safe_open", CountingFile)


def reader_of_frame() -> Reader | None:
    """Whose code asked: the package of the innermost frame that belongs to one of them."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in PACKAGES:
            return PACKAGES[package]
        frame = frame.f_back
    return None
