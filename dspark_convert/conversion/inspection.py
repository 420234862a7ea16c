"""Describe a checkpoint, and check it, without converting anything."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from dspark_convert.checkpoint.dtypes import FLOATS
from dspark_convert.checkpoint.names import display_name
from dspark_convert.conversion.speculators_weights import warn_overwritten
from dspark_convert.engines import EngineView, engine_notes
from dspark_convert.errors import Findings
from dspark_convert.formats.bundled import BUNDLED, holds_stages, read_bundled
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, Examination, examine
from dspark_convert.formats.tensors import (
    EMBEDDING,
    LM_HEAD,
    VOCABULARY_TABLE,
    canonical_name,
)
from dspark_convert.formats.untrained import note_untrained_norms
from dspark_convert.formats.validate_arithmetic import not_understood
from dspark_convert.schemas.bundled import BundledDraft
from dspark_convert.schemas.inspection import CheckReport, Inspection


def inspect_draft(folder: Path, *, overrides: Overrides = NO_OVERRIDES) -> Inspection:
    """Everything that can be said about a draft from its config and headers.

    Raises:
        CheckpointError: not even the config can be read.
    """
    examination, bundled = _examine(folder, overrides)
    inspection = describe(folder, examination)
    if bundled is None:
        return inspection
    return inspection.model_copy(update={"dialect": BUNDLED, "bundled": bundled, "absent": ()})


def check_draft(folder: Path, *, overrides: Overrides = NO_OVERRIDES) -> CheckReport:
    """All static checks; the verdict is ``fail`` if any finding is an error.

    Raises:
        CheckpointError: not even the config can be read.
    """
    examination, _ = _examine(folder, overrides)
    findings = examination.findings
    if examination.source is not None:
        warn_overwritten(examination.source, findings)
    return CheckReport(
        name=display_name(folder),
        verdict="fail" if findings.of("error") else "pass",
        findings=tuple(findings),
    )


def _examine(folder: Path, overrides: Overrides) -> tuple[Examination, BundledDraft | None]:
    """A draft, or one inside its target, which is validated by its own rules, not a dialect's."""
    examination = examine(folder, overrides=overrides)
    checkpoint = examination.checkpoint
    if examination.source is not None:
        note_untrained_norms(examination.source.tensors, examination.findings)
    if checkpoint is None or not holds_stages(checkpoint.tensors):
        return examination, None
    findings = Findings(checkpoint.notes)
    bundled = read_bundled(checkpoint.config, checkpoint.tensors, findings)
    return replace(examination, findings=findings), bundled


def describe(folder: Path, examination: Examination) -> Inspection:
    """An examination as a document."""
    config, source = examination.config, examination.source
    checkpoint = examination.checkpoint
    tensors = checkpoint.tensors if checkpoint else {}
    sizes = Counter[str]()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    return Inspection(
        name=display_name(folder),
        dialect=examination.detection.dialect.name if examination.detection else None,
        evidence=examination.detection.evidence if examination.detection else (),
        draft=config,
        layout_evidence=examination.parsed.layout_evidence if examination.parsed else None,
        num_speculative_tokens=config.num_speculative_tokens if config else None,
        vocabulary_table=_table_text(source) if source else None,
        weight_files=tuple(file.name for file in checkpoint.files) if checkpoint else (),
        tensors=len(tensors),
        parameters=sum(math.prod(t.shape) for t in tensors.values() if t.dtype in FLOATS),
        weight_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        dtypes=dict(sizes),
        absent=_absent(examination),
        not_understood=_not_understood(examination),
        engines=engine_notes(engine_view(source)) if source else (),
        findings=tuple(examination.findings),
    )


def _absent(examination: Examination) -> tuple[str, ...] | None:
    """What the target must supply according to the headers, whatever else is wrong."""
    if examination.checkpoint is None:
        return None
    stored = {canonical_name(name) for name in examination.checkpoint.tensors}
    return tuple(name for name in (EMBEDDING, LM_HEAD) if name not in stored)


def _not_understood(examination: Examination) -> tuple[str, ...]:
    checkpoint, detection = examination.checkpoint, examination.detection
    if checkpoint is None or detection is None:
        return ()
    return not_understood(checkpoint.config, detection.dialect)


def engine_view(source: DraftSource) -> EngineView:
    """A draft on disk as the engines see it: stored names, and keys as they are."""
    names = [tensor.name for tensor in source.checkpoint.tensors.values()]
    scheme = source.detection.scheme
    return EngineView(source.dialect, source.config, source.document, names, scheme)


def _table_text(source: DraftSource) -> str:
    if source.table is None:
        return "none: draft ids are target ids"
    stored = source.tensors[VOCABULARY_TABLE]
    text = f"{stored.name}, {stored.dtype} [{stored.shape[0]}], offsets"
    return f"{text} ({source.table.changed})" if source.table.changed else text
