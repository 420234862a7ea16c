"""One digest for the weights of a checkpoint: what changes it, and what it may miss."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dspark_convert.checkpoint import fingerprint as module
from dspark_convert.checkpoint.fingerprint import Fingerprint, fingerprint
from dspark_convert.checkpoint.folder import open_checkpoint

from .helpers import write_sharded, write_weights

LONG = bytes(range(256)) * 200


def of(folder: Path) -> Fingerprint:
    return fingerprint(open_checkpoint(folder).tensors.values())


def single(folder: Path, tensor: bytes = LONG, **metadata: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write_weights(folder / "model.safetensors", {"a": b"short", "b": tensor}, **metadata)
    return folder


@pytest.fixture(params=["all-bytes", "sampled"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sampled":
        monkeypatch.setattr(module, "ALL_BYTES_LIMIT", 0)
    return str(request.param)


def test_a_copy_has_the_same_and_the_config_does_not_matter(tmp_path: Path, method: str) -> None:
    first = write_sharded(tmp_path / "first")
    shutil.copytree(first, tmp_path / "second")
    (tmp_path / "second" / "config.json").write_text('{"other": 1}')
    assert of(first) == of(tmp_path / "second")
    assert of(first).method == method
    assert of(first).nbytes == len(b"firstsecondthird")


@pytest.mark.parametrize("position", [0, len(LONG) // 2, len(LONG) - 1])
def test_another_tensor_changes_it(tmp_path: Path, method: str, position: int) -> None:
    other = bytearray(LONG)
    other[position] ^= 1
    first, second = single(tmp_path / "a"), single(tmp_path / "b", bytes(other))
    assert of(first).sha256 != of(second).sha256


def test_a_byte_between_the_samples_shows_in_all_bytes_only(tmp_path: Path, method: str) -> None:
    other = bytearray(LONG)
    other[len(LONG) // 4] ^= 1
    first, second = single(tmp_path / "a"), single(tmp_path / "b", bytes(other))
    assert (of(first) == of(second)) == (method == "sampled")


def test_files_and_metadata_do_not_count(tmp_path: Path, method: str) -> None:
    first, second = single(tmp_path / "a"), single(tmp_path / "b", note="other")
    assert of(first) == of(second)
    sharded = write_sharded(tmp_path / "sharded")
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text("{}")
    tensors = {"c": b"third", "a": b"first", "b": b"second"}
    write_weights(whole / "model.safetensors", tensors)
    assert of(sharded) == of(whole)


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": b"first", "b": b"second", "d": b"third"},
        {"a": b"first", "b": b"second"},
        {"a": b"second", "b": b"first", "c": b"third"},
    ],
)
def test_names_count(tmp_path: Path, method: str, tensors: dict[str, bytes]) -> None:
    write_weights(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text("{}")
    assert of(tmp_path).sha256 != of(write_sharded(tmp_path / "sharded")).sha256
