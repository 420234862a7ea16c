"""Version, changelog and tag of a release agree, and the script that says so is right."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dspark_convert import __version__
from tests.conftest import ROOT

SCRIPT = ROOT / ".ci" / "release.py"
OLDER = "\n## [0.1.0] - 2026-05-01\n\n### Added\n\n- A thing.\n"
NEWEST = "\n## [0.2.0] - 2026-06-01\n\n### Fixed\n\n- A fault.\n\n### Added\n\n- Another.\n"
EMPTY, FULL = "# Changelog\n\n## [Unreleased]\n", "# Changelog\n\n## [Unreleased]\n\n- New.\n"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


release = load()


def run(
    folder: Path, changelog: str, *arguments: str, version: str = "0.2.0"
) -> tuple[int, str, str]:
    """The script on a repository of two files: exit code, stdout, stderr."""
    for name in (".ci", "dspark_convert"):
        (folder / name).mkdir()
    (folder / ".ci" / "release.py").write_bytes(SCRIPT.read_bytes())
    (folder / "dspark_convert" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    command = [sys.executable, str(folder / ".ci" / "release.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_this_repository_can_be_released() -> None:
    version = release.read_version((ROOT / "dspark_convert" / "__init__.py").read_text())
    assert version == __version__
    release.check(version, release.read_sections((ROOT / "CHANGELOG.md").read_text()))


def test_a_tag_gives_the_notes_of_its_version(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, EMPTY + NEWEST + OLDER, "v0.2.0")
    assert (code, err) == (0, "")
    assert out == "### Fixed\n\n- A fault.\n\n### Added\n\n- Another.\n"


def test_wrong_usage_is_told_apart(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, EMPTY, "--help")
    assert (code, out) == (2, "")
    assert "python .ci/release.py v0.2.0" in err


def test_a_failure_is_a_sentence_and_exit_1(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, EMPTY + NEWEST, "v0.2.1")
    assert (code, out) == (1, "")
    assert err == "the tag is v0.2.1, and the version is 0.2.0\n"


@pytest.mark.parametrize(
    ("changelog", "version"),
    [
        (FULL, "0.1.0"),
        (FULL + OLDER, "0.2.0"),
        (FULL + NEWEST + OLDER, "0.2.0"),
        (EMPTY + NEWEST + OLDER, "0.10.0"),
    ],
)
def test_a_version_has_or_will_have_a_section(changelog: str, version: str) -> None:
    release.check(version, release.read_sections(changelog))


@pytest.mark.parametrize(
    ("changelog", "version", "wrong"),
    [
        ("# Changelog\n", "0.2.0", "does not begin"),
        ("# Changelog\n" + NEWEST, "0.2.0", "does not begin"),
        (FULL + NEWEST + OLDER, "0.1.0", "older than"),
        (FULL + OLDER + NEWEST, "0.2.0", "from new to old"),
        (FULL + NEWEST + NEWEST, "0.2.0", "from new to old"),
        (FULL + "\n## [0.2.0]\n\n- A thing.\n", "0.2.0", "no date"),
        (FULL + "\n## [0.2.0] - May 2026\n", "0.2.0", "no date"),
        (FULL + "\n## [0.2.0] - 2026-5-1\n\n- A thing.\n", "0.2.0", "no date"),
        (FULL + "\n## [0.2.0] - 2026-05-01\n", "0.2.0", "says nothing"),
        (FULL + "\n## [0.2] - 2026-05-01\n\n- A thing.\n", "0.2.0", "not of the form"),
        (FULL, "0.2.0.dev1", "not of the form"),
    ],
)
def test_what_cannot_be_released_is_refused(changelog: str, version: str, wrong: str) -> None:
    with pytest.raises(release.ReleaseError, match=wrong):
        release.check(version, release.read_sections(changelog))


@pytest.mark.parametrize(
    ("tag", "changelog", "wrong"),
    [
        ("0.2.0", EMPTY + NEWEST, "the tag is 0.2.0"),
        ("v0.1.0", EMPTY + NEWEST + OLDER, "the tag is v0.1.0"),
        ("v0.2.0", FULL + NEWEST, "not empty"),
        ("v0.2.0", EMPTY + OLDER, "no section"),
        ("v0.2.0", EMPTY, "no section"),
        ("v0.2.0", EMPTY + OLDER + NEWEST, "from new to old"),
    ],
)
def test_a_tag_that_is_not_ready_is_refused(tag: str, changelog: str, wrong: str) -> None:
    with pytest.raises(release.ReleaseError, match=wrong):
        release.notes_of(tag, "0.2.0", release.read_sections(changelog))


@pytest.mark.parametrize("module", ["", '__version__ = "1.0.0"\n__version__ = "2.0.0"\n'])
def test_a_version_is_stated_once(module: str) -> None:
    with pytest.raises(release.ReleaseError, match="times"):
        release.read_version(module)
