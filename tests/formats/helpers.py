"""Stored tensors without files, and the codes of findings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.errors import Findings
from dspark_convert.formats.detect import detect
from dspark_convert.formats.parse import ParsedConfig, parse_config
from dspark_convert.formats.tensors import expected_tensors
from dspark_convert.schemas.draft import DraftConfig, Layout
from fixtures.broken.drafts import read_draft

DENSE = "dense_vanilla_bf16"
REDUCED = "spec_vanilla_reduced_anchor_bf16"
FULL = "spec_vanilla_full_anchor_fp32"
SLIDING = "spec_swa_default_reduced_bf16"


def stored(
    name: str, *shape: int, dtype: str = "BF16", file: str = "model.safetensors"
) -> StoredTensor:
    return StoredTensor(Path(file), file, name, dtype, shape, 0, 0)


def config_of(variant: str = REDUCED) -> dict[str, Any]:
    return read_draft(variant).config


def parse(
    document: dict[str, Any],
    tensors: Mapping[str, StoredTensor] | None = None,
    layout: Layout | None = None,
) -> tuple[ParsedConfig | None, Findings]:
    findings = Findings()
    dialect = detect(document, ()).dialect
    return parse_config(document, dialect, tensors or {}, findings, layout=layout), findings


def parsed(document: dict[str, Any]) -> DraftConfig:
    result, findings = parse(document)
    assert result is not None, list(findings)
    return result.config


def errors(findings: Findings) -> list[str]:
    return [finding.code for finding in findings.of("error")]


def notes(findings: Findings) -> list[str]:
    return [finding.code for finding in findings if finding.severity != "error"]


def whole(config: DraftConfig) -> dict[str, StoredTensor]:
    """Every tensor that the config implies, the optional ones included."""
    return {
        name: stored(name, *spec.shape, dtype="I64" if "I64" in spec.dtypes else "BF16")
        for name, spec in expected_tensors(config).items()
    }
