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
    return fingerprint(open_checkpoint(folder).files)


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
    assert of(first).nbytes == sum(path.stat().st_size for path in first.glob("*.safetensors"))


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


def test_header_and_file_names_count(tmp_path: Path, method: str) -> None:
    first, second = single(tmp_path / "a"), single(tmp_path / "b", note="other")
    assert of(first).sha256 != of(second).sha256
    sharded = write_sharded(tmp_path / "sharded")
    before = of(sharded)
    (sharded / "one.safetensors").rename(sharded / "won.safetensors")
    index = sharded / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("one.safetensors", "won.safetensors"))
    assert of(sharded).sha256 != before.sha256
