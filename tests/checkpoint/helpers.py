"""Small checkpoints, raw files and staged outputs for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dspark_convert.checkpoint.header import layout_entries, render_header
from dspark_convert.checkpoint.staging import staged_folder
from dspark_convert.errors import DSparkError


def codes(action: Callable[[], object]) -> list[str]:
    """The codes with which ``action`` is refused."""
    with pytest.raises(DSparkError) as caught:
        action()
    assert all(finding.hint for finding in caught.value.findings)
    return [finding.code for finding in caught.value.findings]


def pack(header: object, data: bytes = b"") -> bytes:
    """A file with any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_weights(path: Path, tensors: Mapping[str, bytes], **metadata: str) -> None:
    """A safetensors file of U8 vectors."""
    entries = layout_entries((name, "U8", (len(data),)) for name, data in tensors.items())
    data = b"".join(tensors[item.name] for item in entries)
    path.write_bytes(render_header(entries, metadata) + data)


def write_index(folder: Path, weight_map: Mapping[str, object], **metadata: object) -> None:
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_single(folder: Path) -> Path:
    """A whole checkpoint of one file."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"a": 1}')
    write_weights(folder / "model.safetensors", {"a": b"first", "b": b"second"})
    return folder


def write_sharded(folder: Path) -> Path:
    """A whole checkpoint of two files, one.safetensors and two.safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    write_weights(folder / "one.safetensors", {"a": b"first", "b": b"second"}, format="pt")
    write_weights(folder / "two.safetensors", {"c": b"third"}, format="pt")
    one, two = "one.safetensors", "two.safetensors"
    write_index(folder, {"a": one, "b": one, "c": two}, total_size=16)
    return folder


def ours(folder: Path) -> bool:
    return (folder / "manifest").exists()


def staged(output: Path, **options) -> AbstractContextManager[Path]:
    defaults = {"overwrite": False, "owned": ours, "protected": (), "needed_bytes": 0}
    return staged_folder(output, **(defaults | options))


def write(output: Path, text: str = "new", **options) -> None:
    with staged(output, **options) as folder:
        (folder / "manifest").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text)


def content(folder: Path) -> dict[str, str]:
    """Every file under ``folder``, temporary ones too."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def tree(text: str) -> dict[str, str]:
    return {"output/manifest": text, "output/sub/file": text}
