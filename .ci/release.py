"""The version against the changelog and the tag.

python .ci/release.py             the version has, or can still get, a section of the changelog
python .ci/release.py v0.2.0      the tag is that of the version, and its section is complete;
                                  prints the section, which becomes the notes of the release
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNRELEASED = "Unreleased"
_VERSION = re.compile(r'^__version__ = "([^"]*)"$', re.MULTILINE)
_HEADING = re.compile(r"^## \[([^\]]+)\](?: - (.*))?$", re.MULTILINE)
_NUMBER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

Number = tuple[int, ...]


class ReleaseError(Exception):
    """What is wrong with a release, in a sentence."""


@dataclass(frozen=True)
class Section:
    """One heading of the changelog and what stands below it."""

    name: str
    date: str | None
    text: str


def read_version(module: str) -> str:
    """The version that the text of ``dspark_convert/__init__.py`` states."""
    found = _VERSION.findall(module)
    if len(found) != 1:
        raise ReleaseError(f"__version__ is stated {len(found)} times")
    return str(found[0])


def read_sections(changelog: str) -> list[Section]:
    """The sections of a changelog, newest first, as they stand."""
    _, *parts = _HEADING.split(changelog)
    return [
        Section(name, date, text.strip())
        for name, date, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def check(version: str, sections: list[Section]) -> None:
    """Hold the changelog to its order, and the version to the changelog.

    Raises:
        ReleaseError: "Unreleased" is not on top, a released section has no date or no text, the
            sections do not fall, or the version is older than the newest of them.
    """
    if not sections or sections[0].name != UNRELEASED:
        raise ReleaseError(f"the changelog does not begin with [{UNRELEASED}]")
    released = sections[1:]
    for section in released:
        if section.date is None or not _DATE.fullmatch(section.date):
            raise ReleaseError(f"[{section.name}] has no date of the form YYYY-MM-DD")
        if not section.text:
            raise ReleaseError(f"[{section.name}] says nothing")
    numbers = [_number(section.name) for section in released]
    if any(newer <= older for newer, older in pairwise(numbers)):
        raise ReleaseError("the sections of the changelog do not go from new to old")
    if numbers and _number(version) < numbers[0]:
        raise ReleaseError(f"{version} is older than [{released[0].name}] of the changelog")
    _number(version)


def notes_of(tag: str, version: str, sections: list[Section]) -> str:
    """The notes of the release that a tag makes.

    Raises:
        ReleaseError: see ``check``; the tag is of another version, the version has no section, or
            something stands under "Unreleased" still.
    """
    check(version, sections)
    if tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag}, and the version is {version}")
    if sections[0].text:
        raise ReleaseError(f"[{UNRELEASED}] is not empty: move it to [{version}]")
    if len(sections) < 2 or sections[1].name != version:
        raise ReleaseError(f"the changelog has no section [{version}] - YYYY-MM-DD")
    return sections[1].text


def _number(version: str) -> Number:
    parts = _NUMBER.fullmatch(version)
    if parts is None:
        raise ReleaseError(f"{version} is not of the form MAJOR.MINOR.PATCH")
    return tuple(map(int, parts.groups()))


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run the checks; 0 when they hold, 1 with a sentence on stderr when not, 2 for wrong usage."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.stderr.write(__doc__ or "")
        return 2
    try:
        module = (root / "dspark_convert" / "__init__.py").read_text(encoding="utf-8")
        version = read_version(module)
        sections = read_sections((root / "CHANGELOG.md").read_text(encoding="utf-8"))
        if arguments:
            sys.stdout.write(notes_of(arguments[0], version, sections) + "\n")
        else:
            check(version, sections)
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
