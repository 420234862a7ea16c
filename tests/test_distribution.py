"""What is published holds the package, its data and its licence, and nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from dspark_convert import __version__
from tests.conftest import ROOT

backend = pytest.importorskip("hatchling.build")

NAME = f"dspark_convert-{__version__}"
DATA = {"py.typed", "reports/page.css", "traces/prompts.jsonl"}
TOP_LEVEL = {
    "dspark_convert",
    "schemas",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "PKG-INFO",
    "pyproject.toml",
    ".gitignore",
}


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> zipfile.ZipFile:
    monkeypatch.chdir(ROOT)
    return zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path)))


@pytest.fixture
def unpacked_sdist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / backend.build_sdist(str(tmp_path))) as archive:
        # Python 3.10 and 3.11 know filters in their later releases only.
        archive.extractall(
            tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert folder.name == NAME
    return folder


def test_wheel_is_the_package_and_its_metadata(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    about = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - about == files_below(ROOT / "dspark_convert")
    assert {name for name in names - about if not name.endswith(".py")} == {
        f"dspark_convert/{name}" for name in DATA
    }
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    entry_points = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert entry_points.splitlines() == [
        "[console_scripts]",
        "dspark-convert = dspark_convert.cli.entry:convert",
        "dspark-verify = dspark_convert.cli.entry:verify",
    ]


def test_sdist_is_the_package_its_schemas_and_its_notes(unpacked_sdist: Path) -> None:
    assert {path.name for path in unpacked_sdist.iterdir()} == TOP_LEVEL
    for folder in ("dspark_convert", "schemas"):
        assert files_below(unpacked_sdist / folder) == files_below(ROOT / folder)


def test_sdist_builds_the_same_wheel(
    wheel: zipfile.ZipFile, unpacked_sdist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpacked_sdist)
    again = zipfile.ZipFile(unpacked_sdist / backend.build_wheel(str(unpacked_sdist)))
    assert {name: again.read(name) for name in again.namelist()} == {
        name: wheel.read(name) for name in wheel.namelist()
    }
