"""The YAML at the top of a model card: keys are added, and what an author wrote stays as it is.

A card comes from anybody. Of YAML it may use what cards need: no anchors and aliases, with which a
few lines become a billion, no tags, and no more levels and bytes than any card has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dspark_convert.errors import DraftError, Finding

Front = Mapping[str, str | Sequence[str]]

MAX_FRONT_BYTES = 512 << 10
"""The longest cards carry the results of hundreds of benchmarks, in less than half of it."""
MAX_FRONT_DEPTH = 32

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where it was built

_FIRST_LINE = 2  # of a card: the YAML begins below its fence
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
    if not _says(edited, after):
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


def _says(text: str, wanted: Mapping[str, Any]) -> bool:
    """Whether an edited text can be read, and holds what it should."""
    try:
        return _same(_parsed(text, ours=True), wanted)
    except DraftError:
        return False


def _same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two documents say the same; unlike ``==``, a number that is none is like itself."""
    return {key: repr(value) for key, value in first.items()} == {
        key: repr(value) for key, value in second.items()
    }


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Reads plain YAML; what a value stands for is refused with its line, whatever is wrong."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
            problem = f"{str(node.value)[:40]!r}: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _parsed(text: str, *, ours: bool = False) -> dict[str, Any]:
    """The mapping in a text; one of ``ours`` is known to be plain."""
    if not ours and len(text.encode("utf-8", "surrogatepass")) > MAX_FRONT_BYTES:
        raise _invalid(f"it is longer than {MAX_FRONT_BYTES} bytes", _FIRST_LINE)
    try:
        if not ours:
            _require_plain(text)
        document = yaml.load(text, _Loader) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it is no YAML"
        raise _invalid(problem, mark.line + _FIRST_LINE if mark else _FIRST_LINE) from error
    except yaml.reader.ReaderError as error:
        # The position counts characters or bytes, as the loader does.
        raise _invalid(f"a character is not allowed: {error.reason}", _FIRST_LINE) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _invalid(str(error), _FIRST_LINE) from error
    if not isinstance(document, dict):
        raise _invalid("it is not a mapping", _FIRST_LINE)
    return document


def _require_plain(text: str) -> None:
    """Raise for what cards do not need, from the stream of events: nothing is built for it."""
    depth = 0
    for event in yaml.parse(text, _SafeLoader):
        line = event.start_mark.line + _FIRST_LINE
        if isinstance(event, yaml.AliasEvent):
            raise _invalid(f"an alias, *{event.anchor}", line)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise _invalid(f"an anchor, &{event.anchor}", line)
        tag = getattr(event, "tag", None)
        if tag is not None:  # a quoted text has none of its own
            raise _invalid(f"a tag, {tag}", line)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_FRONT_DEPTH:
            raise _invalid(f"more than {MAX_FRONT_DEPTH} levels", line)


def _invalid(reason: str, line: int) -> DraftError:
    plain = reason.replace("\n", " ")[:200]
    return DraftError(
        Finding(
            code="card-front-matter-invalid",
            message=f"line {line}: the YAML between the --- lines cannot be read: {plain}",
            file="README.md",
            hint="repair it; an empty file is fine too",
        )
    )
