"""Numbers and untrusted texts as all forms of a report show them."""

from __future__ import annotations

import unicodedata

from dspark_convert.schemas.numbers import Interval

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


def visible(text: object) -> str:
    """``text`` with control, format, surrogate and unassigned characters written as escapes.

    What is left is safe in a terminal log and valid in XML.
    """
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(character) in _HIDDEN_CATEGORIES
        else character
        for character in str(text)
    )


def number(value: float | None) -> str:
    """Three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def count(value: float | None) -> str:
    """A count as a whole number, an expected count with one decimal."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def bounds(interval: Interval | None) -> str:
    """Both ends of an interval, or a dash."""
    return "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
