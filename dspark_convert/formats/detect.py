"""Which dialect a config is in, and the evidence for it. Exact names only, never substrings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import DialectError, Finding
from dspark_convert.formats.decoders import DEFAULT_DECODER, find_decoder
from dspark_convert.formats.dialects import DIALECTS, Dialect
from dspark_convert.formats.quantisation import Scheme, find_scheme
from dspark_convert.formats.unsupported import (
    one_of,
    refuse_other_drafts,
    refuse_unsupported,
    unsupported_dialect,
)


@dataclass(frozen=True)
class Detection:
    """A dialect, with the body of the draft, and why it was chosen."""

    dialect: Dialect
    evidence: tuple[str, ...]
    scheme: Scheme | None = None
    """How weights are quantised; None: not at all, or in no known way."""


def detect(config: Mapping[str, Any], tensor_names: Iterable[str]) -> Detection:
    """Name the dialect of a config, the body of its draft, and how its weights are quantised.

    Raises:
        DialectError: ``unsupported-draft`` (another kind of draft), ``unsupported-dialect`` (a
        DSpark draft of a shape that is recognised but not supported) or ``unknown-dialect``.
    """
    names = frozenset(tensor_names)
    dialect, evidence = _find_dialect(config)
    decoder, scheme = find_decoder(config, names), find_scheme(config, names)
    if decoder is not None:
        evidence = (*evidence, f"the decoder is of {decoder.title}")
    refuse_other_drafts(config)
    if decoder is None:
        refuse_unsupported(config, names)
    if scheme is not None and scheme.companions is None:
        raise unsupported_dialect(scheme.name, scheme.what, scheme.served_by)
    if dialect is None:
        raise _unknown(config)
    return Detection(dialect.with_body(decoder or DEFAULT_DECODER), evidence, scheme)


def _find_dialect(config: Mapping[str, Any]) -> tuple[Dialect | None, tuple[str, ...]]:
    for dialect in DIALECTS.values():
        evidence = dialect.recognise(config)
        if evidence:
            return dialect, evidence
    return None, ()


def _unknown(config: Mapping[str, Any]) -> DialectError:
    marks = [f"{dialect.mark} ({dialect.title})" for dialect in DIALECTS.values()]
    return DialectError(
        Finding(
            code="unknown-dialect",
            message="nothing in the config says that this is a DSpark draft",
            file=CONFIG_FILE,
            found=f"architectures {config.get('architectures')!r}",
            expected=one_of(marks),
            hint="give the folder of the draft, not of the target model",
        )
    )
