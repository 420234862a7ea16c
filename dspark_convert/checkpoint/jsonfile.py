"""Strict JSON of bounded size, for documents that others wrote."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from dspark_convert.checkpoint.files import read_limited
from dspark_convert.errors import CheckpointError, Finding

Json: TypeAlias = Any  # what `json.loads` returns: to be checked before use

MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 600_000
"""Keys, values, objects and lists of one document. A text like ``[],[],[]`` takes thirty times its
size when parsed, so a limit in bytes alone does not bound memory."""

MAX_NUMBER_LENGTH = 64  # characters; the longest 64-bit integer has 20, the longest float 24


def read_json(path: Path, *, limit: int = 10_000_000) -> Json:
    """Parse a JSON file of at most ``limit`` bytes by the rules of `parse_json`.

    Raises ``CheckpointError``: ``bad-json``, ``file-too-large`` and those of `open_regular`.
    """
    return parse_json(read_limited(path, limit=limit), file=path.name)


def parse_json(data: bytes, *, file: str) -> Json:
    """Parse JSON as RFC 8259 defines it, refusing what parsers disagree about.

    Refused with ``bad-json``: text that is not UTF-8, repeated keys, NaN and infinities, numbers of
    more than 64 characters or beyond float64, lone surrogates, nesting deeper than 64, more than
    600,000 values (a separator inside a text counts as one too).
    """
    if sum(map(data.count, (b",", b":", b"[", b"{"))) > MAX_JSON_VALUES:
        _refuse(f"it holds more than {MAX_JSON_VALUES} values", file)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
        if rb"\u" in data:  # the only way to write a lone surrogate in valid UTF-8
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        _require_shallow(value)
    except RecursionError:
        _refuse(f"nesting is deeper than {MAX_JSON_DEPTH} levels", file)
    except ValueError as error:  # JSONDecodeError, Unicode errors and our own refusals
        _refuse(str(error), file)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {repeated!r} occurs twice in one object")
    return document


def _parse_int(text: str) -> int:
    _require_short(text)
    return int(text)


def _parse_float(text: str) -> float:
    _require_short(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text} is beyond float64")
    return value


def _require_short(text: str) -> None:
    if len(text) > MAX_NUMBER_LENGTH:
        raise ValueError(f"a number has {len(text)} characters: {text[:16]}...")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _require_shallow(value: Json) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        children = (child for parent in level for child in _children(parent))
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return
    raise ValueError(f"nesting is deeper than {MAX_JSON_DEPTH} levels")


def _children(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(reason: str, file: str) -> NoReturn:
    raise CheckpointError(
        Finding(
            code="bad-json",
            message=f"not valid JSON: {reason[:200]}",
            file=file,
            hint="repair the file, or download it again",
        )
    )
