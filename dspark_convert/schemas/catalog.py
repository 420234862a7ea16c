"""The documents whose JSON Schema is published in the top-level ``schemas/`` folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from dspark_convert.schemas.comparison import Comparison
from dspark_convert.schemas.diagnosis import Diagnosis
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.engines import EnginesReport
from dspark_convert.schemas.gate import GateFile
from dspark_convert.schemas.inspection import CheckReport, Inspection
from dspark_convert.schemas.plan import ConversionManifest, ConversionPlan
from dspark_convert.schemas.push import PushReport
from dspark_convert.schemas.refusal import Refusal
from dspark_convert.schemas.report import VerifyReport
from dspark_convert.schemas.source import DenseConfig, SpeculatorsConfig
from dspark_convert.schemas.trace import TraceHeader

PUBLISHED: Mapping[str, tuple[type[BaseModel], int]] = {
    "check-report": (CheckReport, 1),
    "comparison": (Comparison, 1),
    "conversion-manifest": (ConversionManifest, 1),
    "conversion-plan": (ConversionPlan, 1),
    "dense-config": (DenseConfig, 1),
    "diagnosis": (Diagnosis, 1),
    "draft-config": (DraftConfig, 1),
    "engines-report": (EnginesReport, 1),
    "gate": (GateFile, 1),
    "inspection": (Inspection, 1),
    "push-report": (PushReport, 1),
    "refusal": (Refusal, 1),
    "speculators-config": (SpeculatorsConfig, 1),
    "trace-header": (TraceHeader, 1),
    "verify-report": (VerifyReport, 1),
}
"""Name of each schema, its model, and its version (raised when old documents stop validating)."""


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one published document, as we write it."""
    model, version = PUBLISHED[name]
    schema = model.model_json_schema(mode="serialization")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:dspark-convert:schema:{name}:{version}",
        **schema,
    }


def schema_text(name: str) -> str:
    """The published file: sorted keys, two spaces, a final newline."""
    return json.dumps(schema_of(name), indent=2, sort_keys=True) + "\n"


def schema_file(folder: Path, name: str) -> Path:
    """The file that holds the schema of a document."""
    return folder / f"{name}.schema.json"


def drifted(folder: Path) -> list[str]:
    """File names in ``folder`` that differ from the models, are missing, or belong to none."""
    wanted = {schema_file(folder, name): schema_text(name).encode() for name in PUBLISHED}
    stray = {path.name for path in folder.glob("*.schema.json")} - {path.name for path in wanted}
    return sorted(stray | {path.name for path, data in wanted.items() if not _holds(path, data)})


def _holds(path: Path, data: bytes) -> bool:
    try:
        same_size = path.is_file() and path.stat().st_size == len(data)
        return same_size and path.read_bytes() == data
    except OSError:
        return False
