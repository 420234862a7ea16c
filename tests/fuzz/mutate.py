"""Damage to documents and bytes: most of it small, so that what reads them gets far."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

Json = Any
Path = tuple[Any, ...]

ODD_VALUES: tuple[Json, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    5e-324,
    "",
    "x",
    "0",
    "true",
    "é",
    "\u202e",
    "a" * 300,
    "../../etc/passwd",
    "/dev/zero",
    "{n}",
    "[red]x[/]",
    "\x1b[31m",
    [],
    {},
    [[]],
    [None],
    [0],
    [-1, -1],
    ["x"],
    {"x": 1},
    {"": None},
)
"""What a key may hold that nobody meant. NaN, infinities and lone surrogates: see `ODD_TEXTS`."""

ODD_TEXTS: tuple[str, ...] = (
    "NaN",
    "Infinity",
    "1e999",
    '"\\ud800"',
    '"\\u0000"',
    "9" * 4301,
    "[" * 200 + "]" * 200,
    '{"a": 1, "a": 2}',
    "01",
    "",
)
"""JSON texts, or nearly, that no Python value stands for."""


def mutated(random_: random.Random, document: Json) -> bytes:
    """``document`` as JSON with one to three damages."""
    document = copy.deepcopy(document)
    for _ in range(random_.choice((1, 1, 2, 3))):
        document = random_.choice(_DAMAGES)(random_, document)
    text = json.dumps(document)
    if random_.random() < 0.1:
        text = _with_odd_text(random_, document)
    data = text.encode("utf-8", "surrogatepass")
    return damaged(random_, data) if random_.random() < 0.1 else data


def damaged(random_: random.Random, data: bytes) -> bytes:
    """``data`` with some bytes changed, cut, repeated or put in."""
    found = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 5))):
        at = random_.randrange(len(found) + 1)
        size = random_.choice((1, 1, 2, 8, 64))
        kind = random_.randrange(5)
        if kind == 0:
            found[at : at + size] = random_.randbytes(size)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size]
        elif kind == 3:
            del found[at:]
        elif at < len(found):
            found[at] ^= 1 << random_.randrange(8)
    return bytes(found)


def with_header(header: bytes, data: bytes) -> bytes:
    """A safetensors file of any header."""
    return struct.pack("<Q", len(header)) + header + data


def _places(value: Json, path: Path = ()) -> Iterator[Path]:
    """The path of every value inside a document."""
    children = value.items() if isinstance(value, dict) else ()
    children = enumerate(value) if isinstance(value, list) else children
    for key, child in children:
        yield (*path, key)
        yield from _places(child, (*path, key))


def _holder(document: Json, path: Path) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def _somewhere(random_: random.Random, document: Json) -> Path | None:
    places = list(_places(document))
    return random_.choice(places) if places else None


def _replace(random_: random.Random, document: Json) -> Json:
    path = _somewhere(random_, document)
    if path is None:
        return random_.choice(ODD_VALUES)
    _holder(document, path)[path[-1]] = copy.deepcopy(random_.choice(ODD_VALUES))
    return document


def _remove(random_: random.Random, document: Json) -> Json:
    if path := _somewhere(random_, document):
        del _holder(document, path)[path[-1]]
    return document


def _add(random_: random.Random, document: Json) -> Json:
    """A key that lies elsewhere in the document, or an odd one."""
    path = _somewhere(random_, document)
    if path is None or not isinstance(holder := _holder(document, path), dict):
        return document
    names = [str(place[-1]) for place in _places(document)]
    holder[random_.choice((*names, "x", ""))] = copy.deepcopy(random_.choice(ODD_VALUES))
    return document


def _swap(random_: random.Random, document: Json) -> Json:
    """Two values change places, each of which was right in its own."""
    places = list(_places(document))
    if len(places) > 1:
        first, second = random_.sample(places, 2)
        if first != second[: len(first)] and second != first[: len(second)]:
            one, two = _holder(document, first), _holder(document, second)
            one[first[-1]], two[second[-1]] = two[second[-1]], one[first[-1]]
    return document


def _nudge(random_: random.Random, document: Json) -> Json:
    """A number that is nearly right."""
    numbers = [
        place
        for place in _places(document)
        if type(_holder(document, place)[place[-1]]) in (int, float)
    ]
    if numbers:
        path = random_.choice(numbers)
        _holder(document, path)[path[-1]] += random_.choice((-1, 1, 2, -(10**6), 0.5))
    return document


def _nest(random_: random.Random, document: Json) -> Json:
    if path := _somewhere(random_, document):
        holder = _holder(document, path)
        holder[path[-1]] = [holder[path[-1]]] if random_.random() < 0.5 else {"x": holder[path[-1]]}
    return document


_DAMAGES: tuple[Callable[[random.Random, Json], Json], ...] = (
    _replace,
    _replace,
    _remove,
    _add,
    _swap,
    _nudge,
    _nest,
)


def _with_odd_text(random_: random.Random, document: Json) -> str:
    path = _somewhere(random_, document)
    if path is None:
        return random_.choice(ODD_TEXTS)
    mark = "the place of an odd text"
    _holder(document, path)[path[-1]] = mark
    return json.dumps(document).replace(json.dumps(mark), random_.choice(ODD_TEXTS))
