"""The manifest that a conversion leaves in its result: read it, check files against it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from dspark_convert.checkpoint.files import hash_range, open_regular
from dspark_convert.checkpoint.header import read_header
from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.errors import CheckpointError, Findings
from dspark_convert.schemas.plan import ConversionManifest, OutputFile

MANIFEST_FILE = "dspark_conversion.json"

_MAX_MANIFEST_BYTES = 100_000_000


def read_manifest(folder: Path) -> ConversionManifest | None:
    """The manifest in a folder; None if there is none that can be understood."""
    try:
        document = read_json(folder / MANIFEST_FILE, limit=_MAX_MANIFEST_BYTES)
        return ConversionManifest.model_validate(document)
    except (CheckpointError, ValidationError):
        return None


def validate_file(folder: Path, file: OutputFile, findings: Findings, *, whole: bool) -> None:
    """Whether a file still has the size and hash that the manifest states.

    Only the header of weights is hashed, unless ``whole`` asks for every byte.

    Codes: ``manifest-name-unsafe``, ``manifest-file-missing``, ``manifest-file-differs``,
    ``manifest-without-hashes``, and those of ``open_regular`` and ``read_header``.
    """
    if file.name in ("", ".", "..") or any(character in file.name for character in "/\\\0"):
        findings.error(
            "manifest-name-unsafe",
            "the manifest names something that is not a file in the folder",
            file=MANIFEST_FILE,
            found=repr(file.name)[:120],
        )
        return
    expected = file.sha256 if whole or file.header_sha256 is None else file.header_sha256
    if expected is None:
        findings.error(
            "manifest-without-hashes",
            "the manifest does not vouch for the bytes of this file: an earlier version wrote it",
            file=file.name,
            hint="convert again",
        )
        return
    try:
        size, digest = _measure(folder / file.name, whole=whole)
    except CheckpointError as error:
        for finding in error.findings:
            findings.error(
                "manifest-file-missing" if finding.code == "file-missing" else finding.code,
                finding.message,
                file=file.name,
                hint="convert again; publish the result as it was written",
            )
        return
    if (size, digest) != (file.size, expected):
        findings.error(
            "manifest-file-differs",
            "the file is not the one that the conversion wrote",
            file=file.name,
            expected=f"{file.size} bytes, SHA-256 {expected}",
            found=f"{size} bytes, SHA-256 {digest}",
            hint="convert again; publish the result as it was written",
        )


def _measure(path: Path, *, whole: bool) -> tuple[int, str]:
    """Size in bytes, and the SHA-256; for weights that of their header, unless ``whole``."""
    weights = path.suffix == ".safetensors" and not whole
    end = read_header(path).data_begin if weights else None
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        return size, hash_range(descriptor, size if end is None else end)
