from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dspark_convert.checkpoint.folder import StoredTensor, open_checkpoint, read_bytes
from dspark_convert.errors import CheckpointError

from .helpers import codes, pack, write_index, write_sharded, write_single, write_weights

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
SHA256 = "0123456789abcdef" * 4


def refused(folder: Path) -> list[str]:
    return codes(lambda: open_checkpoint(folder))


def test_tensors_lie_where_the_library_finds_them(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(5, dtype=np.uint8),
        "c": np.zeros((0, 4), dtype=np.int64),
    }
    write_single(tmp_path)
    save_file(arrays, tmp_path / "model.safetensors", {"format": "np"})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == {"a": 1}
    assert checkpoint.config_sha256 == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert checkpoint.metadata == {"format": "np"}
    (file,) = checkpoint.files
    assert (file.name, file.path, file.hub_sha256) == (
        "model.safetensors",
        tmp_path / "model.safetensors",
        None,
    )
    assert file.size == file.path.stat().st_size
    assert checkpoint.notes == ()
    found = {name: read_bytes(item, limit=24) for name, item in checkpoint.tensors.items()}
    assert found == {name: array.tobytes() for name, array in arrays.items()}
    assert {name: item.shape for name, item in checkpoint.tensors.items()} == {
        name: array.shape for name, array in arrays.items()
    }


@pytest.mark.parametrize(
    "folder", sorted(GOLDEN.glob("*/checkpoint")), ids=lambda path: path.parent.name
)
def test_golden_checkpoints_open(folder: Path) -> None:
    expected = json.loads((folder.parent / "expected.json").read_text())["tensor_names"]
    checkpoint = open_checkpoint(folder)
    names = {"BF16": "bfloat16", "F32": "float32", "I64": "int64", "BOOL": "bool"}
    assert {
        name: [names[item.dtype], list(item.shape)] for name, item in checkpoint.tensors.items()
    } == expected


def test_shards_come_in_order(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_sharded(tmp_path))
    assert [file.name for file in checkpoint.files] == ["one.safetensors", "two.safetensors"]
    assert {name: item.file for name, item in checkpoint.tensors.items()} == {
        "a": "one.safetensors",
        "b": "one.safetensors",
        "c": "two.safetensors",
    }
    for file in checkpoint.files:
        for name, array in load_file(file.path).items():
            assert read_bytes(checkpoint.tensors[name], limit=9) == array.tobytes()


def test_index_of_the_single_file_is_harmless(tmp_path: Path) -> None:
    write_single(tmp_path)
    write_index(tmp_path, dict.fromkeys("ab", "model.safetensors"))
    assert list(open_checkpoint(tmp_path).tensors) == ["a", "b"]


def test_wrong_total_size_and_differing_metadata_are_notes(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_weights(tmp_path / "two.safetensors", {"c": b"third"}, format="np", more="x")
    one, two = "one.safetensors", "two.safetensors"
    write_index(tmp_path, {"a": one, "b": one, "c": two}, total_size=15)
    checkpoint = open_checkpoint(tmp_path)
    assert [note.code for note in checkpoint.notes] == ["index-total-size", "metadata-conflict"]
    assert (checkpoint.notes[0].expected, checkpoint.notes[0].found) == ("16", "15")
    assert checkpoint.metadata == {"format": "pt", "more": "x"}


@pytest.mark.parametrize(
    ("blob", "known"), [(SHA256, SHA256), ("ab" * 20, None), (SHA256 + "0", None)]
)
def test_hub_snapshot_links_are_followed(tmp_path: Path, blob: str, known: str | None) -> None:
    snapshot = tmp_path / "snapshots" / "revision"
    snapshot.parent.mkdir()
    write_single(snapshot)
    (tmp_path / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(tmp_path / "blobs" / blob)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob}")
    checkpoint = open_checkpoint(snapshot)
    (file,) = checkpoint.files
    assert (file.name, file.hub_sha256) == ("model.safetensors", known)
    assert checkpoint.tensors["b"].path == tmp_path / "blobs" / blob
    assert read_bytes(checkpoint.tensors["b"], limit=6) == b"second"
    (tmp_path / "blobs" / blob).unlink()
    assert refused(snapshot) == ["link-dangling"]


def test_blob_in_a_store_of_all_repositories_is_known_by_its_own_name(tmp_path: Path) -> None:
    """The store names a file by a hash that is not of its bytes."""
    repository, store = tmp_path / "models--a--b", tmp_path / "blobs" / "cd"
    snapshot, shared = repository / "snapshots" / "revision", store / ("cd" * 32)
    snapshot.parent.mkdir(parents=True)
    write_single(snapshot)
    store.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(shared)
    (repository / "blobs" / SHA256).symlink_to(f"../../blobs/cd/{shared.name}")
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{SHA256}")
    (file,) = open_checkpoint(snapshot).files
    assert (file.path, file.hub_sha256) == (shared, SHA256)


def test_hash_like_name_outside_a_blob_store_says_nothing(tmp_path: Path) -> None:
    write_single(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / SHA256)
    (tmp_path / "model.safetensors").symlink_to(SHA256)
    assert open_checkpoint(tmp_path).files[0].hub_sha256 is None


def test_folder_must_exist_and_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "model.gguf").touch()
    assert refused(tmp_path / "absent") == ["folder-missing"]
    assert refused(tmp_path / "file") == ["not-a-folder"]
    assert refused(tmp_path / "model.gguf") == ["gguf"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_unreadable_folder_and_file(tmp_path: Path) -> None:
    write_single(tmp_path)
    (tmp_path / "config.json").chmod(0)
    assert refused(tmp_path) == ["file-unreadable"]
    tmp_path.chmod(0)
    try:
        assert refused(tmp_path) == ["folder-unreadable"]
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[]", "bad-config"), ("{", "bad-json"), (" " * 10_000_001, "file-too-large")],
)
def test_config_must_be_an_object(tmp_path: Path, text: str, expected: str) -> None:
    (write_single(tmp_path) / "config.json").write_text(text)
    assert refused(tmp_path) == [expected]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], "weights-missing"),
        (["pytorch_model.bin"], "pickle-only"),
        (["model.pt"], "pickle-only"),
        (["model.pth", "model.gguf"], "pickle-only"),
        (["model.gguf"], "gguf"),
        (["model-00001-of-00002.safetensors"], "index-missing"),
    ],
)
def test_folders_without_weights(tmp_path: Path, names: list[str], expected: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in names:
        (tmp_path / name).touch()
    assert refused(tmp_path) == [expected]


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "one.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "two.safetensors").unlink()
    (tmp_path / "three.safetensors").touch()
    assert refused(tmp_path) == ["config-missing", "shard-missing", "shard-stray", "lfs-pointer"]


def test_damage_of_every_shard_is_told(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(pack({"a": "x"}))
    assert refused(tmp_path) == ["bad-header", "bad-header"]


def test_single_file_beside_the_index_of_others(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_weights(tmp_path / "model.safetensors", {"a": b"first"})
    assert refused(tmp_path) == ["weights-ambiguous"]


def test_stray_file_beside_the_single_one(tmp_path: Path) -> None:
    write_single(tmp_path)
    write_weights(tmp_path / "other.safetensors", {"c": b"third"})
    assert refused(tmp_path) == ["shard-stray"]


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        ({"a": "one", "b": "one", "c": "two", "d": "two"}, ["index-stale"]),
        ({"a": "one", "c": "two"}, ["tensor-not-indexed"]),
        (
            {"a": "one", "b": "two", "c": "two"},
            ["tensor-not-indexed", "index-stale"],
        ),
        ({"a": "one", "b": "one"}, ["shard-stray"]),
        ({"a": "one", "b": "one", "c": "two", "d": "three"}, ["shard-missing"]),
    ],
)
def test_index_against_files(tmp_path: Path, weight_map, expected: list[str]) -> None:
    write_sharded(tmp_path)
    write_index(tmp_path, {name: f"{file}.safetensors" for name, file in weight_map.items()})
    assert refused(tmp_path) == expected


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_weights(tmp_path / "two.safetensors", {"a": b"first", "c": b"third"})
    assert refused(tmp_path) == ["tensor-duplicate", "tensor-not-indexed"]


@pytest.mark.parametrize(
    "shard",
    [
        "../one.safetensors",
        "/one.safetensors",
        "x\\one.safetensors",
        "",
        "..",
        "one.bin",
        "one\0.safetensors",
        None,
        7,
        ["one.safetensors"],
    ],
)
def test_shard_names_are_bare(tmp_path: Path, shard: object) -> None:
    write_sharded(tmp_path)
    write_index(tmp_path, {"a": shard})
    assert refused(tmp_path) == ["bad-index"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_must_have_a_weight_map(tmp_path: Path, text: str) -> None:
    (write_sharded(tmp_path) / "model.safetensors.index.json").write_text(text)
    assert refused(tmp_path) == ["bad-index"]


def test_broken_index_hides_nothing_else(tmp_path: Path) -> None:
    (write_sharded(tmp_path) / "model.safetensors.index.json").write_text("{")
    (tmp_path / "config.json").unlink()
    assert refused(tmp_path) == ["config-missing", "bad-json"]


def test_weights_that_are_no_regular_file(tmp_path: Path) -> None:
    write_single(tmp_path)
    path = tmp_path / "model.safetensors"
    path.unlink()
    os.mkfifo(path)
    assert refused(tmp_path) == ["not-a-regular-file"]
    path.unlink()
    path.symlink_to(tmp_path)
    assert refused(tmp_path) == ["not-a-regular-file"]


def test_long_lists_are_cut(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_index(tmp_path, {f"t{number}": "one.safetensors" for number in range(10)})
    with pytest.raises(CheckpointError, match="t0, t1, t2, t3, t4 and 5 more"):
        open_checkpoint(tmp_path)


def test_read_bytes_is_bounded_and_sees_change(tmp_path: Path) -> None:
    tensor: StoredTensor = open_checkpoint(write_single(tmp_path)).tensors["b"]
    assert codes(lambda: read_bytes(tensor, limit=5)) == ["tensor-too-large"]
    os.truncate(tensor.path, tensor.offset + 3)
    assert codes(lambda: read_bytes(tensor, limit=6)) == ["file-changed"]
    tensor.path.unlink()
    assert codes(lambda: read_bytes(tensor, limit=6)) == ["file-missing"]
