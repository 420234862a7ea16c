"""The manifest that a conversion leaves beside its result: read it, hold files against it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from dspark_convert.checkpoint.files import hash_range, open_regular, read_limited
from dspark_convert.checkpoint.header import read_header
from dspark_convert.errors import CheckpointError, Findings
from dspark_convert.schemas.plan import ConversionManifest, OutputFile

MANIFEST_FILE = "dspark_conversion.json"

_MAX_MANIFEST_BYTES = 100_000_000


def read_manifest(folder: Path) -> ConversionManifest | None:
    """The manifest in a folder; None when there is none that can be understood."""
    try:
        document = json.loads(read_limited(folder / MANIFEST_FILE, limit=_MAX_MANIFEST_BYTES))
        return ConversionManifest.model_validate(document)
    except (CheckpointError, ValidationError, ValueError, RecursionError):
        return None


def validate_file(folder: Path, file: OutputFile, findings: Findings) -> None:
    """Whether a file is still what the manifest says: size, and hash of it or of its header."""
    if file.name in ("", ".", "..") or any(character in file.name for character in "/\\\0"):
        findings.error(
            "manifest-name-unsafe",
            "the manifest names something that is no file of the folder",
            file=MANIFEST_FILE,
            found=repr(file.name)[:120],
        )
        return
    try:
        size, digest = _measure(folder / file.name)
    except CheckpointError as error:
        for finding in error.findings:
            findings.error(
                "manifest-file-missing" if finding.code == "file-missing" else finding.code,
                finding.message,
                file=file.name,
                hint="convert again; publish the result as it was written",
            )
        return
    if (size, digest) != (file.size, file.sha256):
        findings.error(
            "manifest-file-differs",
            "the file is not the one that the conversion wrote",
            file=file.name,
            expected=f"{file.size} bytes, SHA-256 {file.sha256}",
            found=f"{size} bytes, SHA-256 {digest}",
            hint="convert again; publish the result as it was written",
        )


def _measure(path: Path) -> tuple[int, str]:
    """Size in bytes, and the SHA-256 that a manifest gives: of weights that of their header."""
    end = read_header(path).data_begin if path.suffix == ".safetensors" else None
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        return size, hash_range(descriptor, size if end is None else end)
