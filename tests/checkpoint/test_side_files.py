from __future__ import annotations

import os
from pathlib import Path

import pytest

from dspark_convert.checkpoint.side_files import MAX_SIDE_FILE_BYTES, side_files

from .helpers import write_sharded


def reasons(folder: Path) -> dict[str, str | None]:
    return {item.name: item.reason for item in side_files(folder)}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "readme.txt",
        "README_zh.md",
        "LICENSE",
        "LICENSE-2.0",
        "NOTICE",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "generation_config.json",
        "chat_template.json",
        "chat_template.jinja",
    ],
)
def test_carried(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    (only,) = side_files(tmp_path)
    assert (only.name, only.path, only.size, only.carried) == (name, tmp_path / name, 4, True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("modeling_draft.py", "code is never carried"),
        ("README.py", "code is never carried"),
        ("optimizer.pt", "not a document or a tokenizer file"),
        ("trainer_state.json", "not a document or a tokenizer file"),
        ("my_tokenizer.json", "not a document or a tokenizer file"),
        (".gitattributes", "not a document or a tokenizer file"),
    ],
)
def test_left_behind(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_text("text")
    assert reasons(tmp_path) == {name: reason}


def test_config_and_weights_are_not_side_files(tmp_path: Path) -> None:
    assert side_files(write_sharded(tmp_path)) == ()


def test_size_limit(tmp_path: Path) -> None:
    for name, size in {"LICENSE": MAX_SIDE_FILE_BYTES, "NOTICE": MAX_SIDE_FILE_BYTES + 1}.items():
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    assert reasons(tmp_path) == {"LICENSE": None, "NOTICE": "larger than 32 MiB"}


def test_links_stay_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder" / "checkpoint"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "file").write_text("not in a Hub cache")
    (folder / "real").write_text("text")
    (folder / "LICENSE").symlink_to("real")
    (folder / "NOTICE").symlink_to("../../secret")
    (folder / "README.md").symlink_to("../../blobs/file")
    (folder / "merges.txt").symlink_to("nowhere")
    (folder / "vocab.txt").symlink_to("vocab.txt")
    (folder / "vocab.json").symlink_to("/dev/null")
    (folder / "tokenizer.json").mkdir()
    os.mkfifo(folder / "tokenizer.model")
    nowhere = "the link leads nowhere, or the file is unreadable"
    assert reasons(folder) == {
        "LICENSE": None,
        "NOTICE": "a link that leaves the checkpoint",
        "README.md": "a link that leaves the checkpoint",
        "merges.txt": nowhere,
        "real": "not a document or a tokenizer file",
        "tokenizer.json": "a folder",
        "tokenizer.model": "not a regular file",
        "vocab.json": "not a regular file",
        "vocab.txt": nowhere,
    }


def test_hub_snapshots_may_link_to_their_own_blobs_only(tmp_path: Path) -> None:
    for repository in ("mine", "other"):
        (tmp_path / repository / "blobs").mkdir(parents=True)
        (tmp_path / repository / "blobs" / "hash").write_text("text")
    snapshot = tmp_path / "mine" / "snapshots" / ("0a" * 20)
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").symlink_to("../../blobs/hash")
    (snapshot / "LICENSE").symlink_to("../../../other/blobs/hash")
    assert reasons(snapshot) == {"LICENSE": "a link that leaves the checkpoint", "README.md": None}
    (tmp_path / "link").symlink_to(snapshot)
    assert reasons(tmp_path / "link") == reasons(snapshot)
    lookalike = snapshot.rename(snapshot.with_name("main"))
    assert reasons(lookalike)["README.md"] == "a link that leaves the checkpoint"
