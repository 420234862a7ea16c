"""What no result and no manifest carries: pointers to code, and anybody's folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LEFT_OUT: Mapping[str, str] = {
    "auto_map": "points at code, which is not carried",
    "_name_or_path": "a path on the machine that saved the source",
}
NOT_RECORDED = frozenset({"_name_or_path"})

_ABSOLUTE_PATH = re.compile(r"(file:|/|~|[a-z]:[\\/]|\\\\).*", re.DOTALL | re.IGNORECASE)


def without_local_paths(value: Any) -> Any:
    """Reduce absolute paths to their last component, since a manifest names nobody's folders."""
    if isinstance(value, dict):
        return {key: without_local_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_local_paths(item) for item in value]
    if isinstance(value, str) and _ABSOLUTE_PATH.fullmatch(value):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value
