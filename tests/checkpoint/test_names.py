"""What folders of the Hub cache are called, and which folders are such."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_convert.checkpoint.names import display_name, is_commit, is_hub_snapshot, repository_of

COMMIT = "0a" * 20


@pytest.mark.parametrize(
    ("cached", "repository"),
    [
        ("models--owner--name", "owner/name"),
        ("models--owner--name--with--dashes", "owner/name--with--dashes"),
        ("models--gpt2", "gpt2"),
    ],
)
def test_a_snapshot_is_named_after_its_repository(
    tmp_path: Path, cached: str, repository: str
) -> None:
    folder = tmp_path / cached / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    assert is_hub_snapshot(folder)
    assert repository_of(folder) == (repository, COMMIT)
    assert display_name(folder) == f"{repository}@{COMMIT}"
    (tmp_path / "link").symlink_to(folder)
    assert display_name(tmp_path / "link") == f"{repository}@{COMMIT}"


@pytest.mark.parametrize(
    "place",
    [
        f"models--owner--name/{COMMIT}",
        f"datasets--owner--name/snapshots/{COMMIT}",
        "models--owner--name/snapshots/main",
        f"models--owner--name/snapshots/{COMMIT}/nested",
    ],
)
def test_any_other_folder_is_named_by_itself(tmp_path: Path, place: str) -> None:
    assert repository_of(tmp_path / place) == (Path(place).name, None)
    assert display_name(tmp_path / place) == Path(place).name


def test_a_commit_is_forty_digits() -> None:
    assert is_commit(COMMIT)
    for text in (COMMIT.upper(), COMMIT[1:], COMMIT + "0", f"{COMMIT}\n", "main", "", None):
        assert not is_commit(text)
