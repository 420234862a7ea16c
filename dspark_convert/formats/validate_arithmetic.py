"""What a config asks to be computed, against what is computed: see the table of ``arithmetic``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.formats.arithmetic import (
    ROPE_KEYS,
    ArithmeticKey,
    find_row,
    keys_in,
    looks_mathematical,
)
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.rules import Document, KeyPath, dotted
from dspark_convert.schemas.draft import DraftConfig


def validate_arithmetic(
    config: DraftConfig, document: Document, dialect: Dialect, findings: Findings
) -> None:
    """Refuse keys that change what is computed, and name those that came with the target.

    Codes: ``key-unsupported``, ``key-inherited``.
    """
    for path, value, row in _rows_in(document, dialect):
        if row.is_harmless(value, config):
            continue
        if row.inherited:
            findings.warning(
                "key-inherited",
                f"the key is the target's: a reader of it {row.does}, which no trainer of such "
                "drafts does; it is not obeyed, and a conversion leaves it out",
                file=CONFIG_FILE,
                key=dotted(path),
                expected=row.harmless_values,
                found=repr(value),
                hint=f"read by {row.read_by}: serve the converted draft, not this one",
            )
            continue
        findings.error(
            "key-unsupported",
            f"a reader of this key ({row.read_by}) {row.does}, which is not implemented here",
            file=CONFIG_FILE,
            key=dotted(path),
            expected=row.harmless_values,
            found=repr(value),
            hint="serve the draft as it is, with an engine that reads the key; if the draft was "
            "trained without it, correct the key in the source",
        )


def not_understood(document: Document, dialect: Dialect) -> tuple[str, ...]:
    """Keys that no rule and no row knows, but whose names look mathematical."""
    ruled = _ruled(dialect)
    known = {*dialect.own_keys, *dialect.constants, *dialect.foreign_keys}
    return tuple(
        dotted(path)
        for path, _ in keys_in(document, dialect.decoder)
        if path not in ruled
        and path not in known
        and not (_in_rope(path) and path[-1] in ROPE_KEYS)
        and path[-1] not in dialect.body.understood
        and not (path[:-1] == dialect.decoder and path[-1] in dialect.decoder_keys)
        and find_row(path[-1]) is None
        and looks_mathematical(path[-1])
    )


def _rows_in(document: Document, dialect: Dialect) -> Iterator[tuple[KeyPath, Any, ArithmeticKey]]:
    """Every key that has a row and is not read by a rule of the dialect or by the body itself."""
    ruled = _ruled(dialect)
    for path, value in keys_in(document, dialect.decoder):
        row = find_row(path[-1])
        if row is not None and path not in ruled and path[-1] not in dialect.body.understood:
            yield path, value, row


def _ruled(dialect: Dialect) -> set[KeyPath]:
    return {place.path for rule in dialect.rules for place in rule.places}


def _in_rope(path: KeyPath) -> bool:
    return path[-2:-1] in (("rope_parameters",), ("rope_scaling",))
