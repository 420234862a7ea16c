"""Converted drafts as the safetensors library, an independent reader, sees them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import deserialize

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.schemas.plan import ConversionManifest


def convert(
    source: Path,
    output: Path,
    *,
    target: Path | None = None,
    overrides: Overrides = NO_OVERRIDES,
    **options: Any,
) -> ConversionManifest:
    return run_conversion(
        plan_to_dense(source, target=target, overrides=overrides), output, **options
    )


def tensors_of(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Dtype, shape and bytes of every tensor, by name."""
    return {
        name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
        for path in sorted(folder.glob("*.safetensors"))
        for name, entry in deserialize(path.read_bytes())
    }


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def digest(folder: Path) -> dict[str, tuple[str, int]]:
    """Content and time of change of everything below a folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
