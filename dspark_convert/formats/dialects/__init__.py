"""The published shapes of a draft: one module and one row each."""

from __future__ import annotations

from collections.abc import Mapping

from dspark_convert.formats.dialects.base import Dialect
from dspark_convert.formats.dialects.dense import DENSE
from dspark_convert.formats.dialects.specforge import SPECFORGE
from dspark_convert.formats.dialects.speculators import SPECULATORS

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (SPECULATORS, SPECFORGE, DENSE)
}
"""Every dialect, by its name, in the order in which they are tried: nested shapes before flat ones.
A new one is a module and a row here."""

__all__ = ["DENSE", "DIALECTS", "SPECFORGE", "SPECULATORS", "Dialect"]
