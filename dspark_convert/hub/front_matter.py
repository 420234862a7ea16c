"""The YAML at the top of a model card: keys are added, and what an author wrote stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dspark_convert.errors import DraftError, Finding

Front = Mapping[str, str | Sequence[str]]

_BLOCK = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*(\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_TAGS = "tags"


def split_card(card: str) -> tuple[str, str]:
    """The YAML of a card, without its fences, and the rest; "" if there is none."""
    match = _BLOCK.match(card)
    return ("", card) if match is None else (match["yaml"], card[match.end() :])


def with_front_matter(card: str, wanted: Front) -> str:
    """``card`` with the keys of ``wanted`` that it lacks; tags are joined.

    The author's lines are kept as written, unless tags must be added to a list that does not have
    one item per line.

    Raises:
        DraftError: ``card-front-matter-invalid``.
    """
    text, body = split_card(card)
    before = _parsed(text)
    after = {**{key: value for key, value in wanted.items() if key not in before}, **before}
    after[_TAGS] = _joined(before.get(_TAGS), wanted.get(_TAGS, ()))
    edited = _edited(text.replace("\r\n", "\n"), before, after)
    if _parsed(edited) != after:
        edited = _dump(after)
    return f"---\n{edited}---\n{body}"


def _edited(text: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The text with lines added and none changed; the result may be wrong, and is then not used."""
    new_tags = [tag for tag in after[_TAGS] if tag not in _joined(before.get(_TAGS), ())]
    if new_tags and before.get(_TAGS):
        # Before the first item, with its indentation: items may be followed by anything.
        item = re.search(rf"^{_TAGS}:[ \t]*\n(?P<indent>[ \t]*)- ", text, re.MULTILINE)
        if item is not None:
            added = "".join(f"{item['indent']}- {tag}\n" for tag in new_tags)
            start = item.end() - len(f"{item['indent']}- ")
            text = text[:start] + added + text[start:]
    text = text if not text or text.endswith("\n") else text + "\n"
    missing = {key: value for key, value in after.items() if key not in before}
    return text + (_dump(missing) if missing else "")


def _joined(tags: object, more: object) -> list[str]:
    known = [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, list) else []
    wanted = list(more) if isinstance(more, (list, tuple)) else []
    return [*(tag for tag in wanted if tag not in known), *known]


def _dump(document: Mapping[str, Any]) -> str:
    plain = {key: list(v) if isinstance(v, tuple) else v for key, v in document.items()}
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _invalid(str(error).replace("\n", " ")[:200]) from error
    if not isinstance(document, dict):
        raise _invalid("it is not a mapping")
    return document


def _invalid(reason: str) -> DraftError:
    return DraftError(
        Finding(
            code="card-front-matter-invalid",
            message=f"the YAML between the --- lines cannot be read: {reason}",
            file="README.md",
            hint="repair it; an empty file is fine too",
        )
    )
