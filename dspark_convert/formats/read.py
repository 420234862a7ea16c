"""Read a draft from a folder, whatever its dialect, and judge everything that can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dspark_convert.checkpoint.folder import (
    CONFIG_FILE,
    Checkpoint,
    StoredTensor,
    open_checkpoint,
)
from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.errors import CheckpointError, DraftError, DSparkError, Findings
from dspark_convert.formats.detect import CONFIG, Detection, detect
from dspark_convert.formats.dialects import DENSE
from dspark_convert.formats.judge import judge_config
from dspark_convert.formats.neutral import ParsedConfig, parse_config
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides, apply_overrides
from dspark_convert.formats.rules import Dialect, Document
from dspark_convert.formats.structure import judge_structure
from dspark_convert.formats.tensors import NamedTensors, name_tensors
from dspark_convert.formats.vocabulary import Ids, VocabularyTable, judge_vocabulary
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.source import DenseConfig, SpeculatorsConfig


@dataclass(frozen=True)
class DraftSource:
    """A draft that was read and found right."""

    checkpoint: Checkpoint
    detection: Detection
    document: Document
    """The config as stored."""
    edited: Document
    """The config with the overrides applied."""
    parsed: ParsedConfig
    named: NamedTensors
    table: VocabularyTable | None
    overrides: Overrides

    @property
    def folder(self) -> Path:
        """The folder that was read."""
        return self.checkpoint.folder

    @property
    def dialect(self) -> Dialect:
        """The dialect of the source."""
        return self.detection.dialect

    @property
    def config(self) -> DraftConfig:
        """What the draft is."""
        return self.parsed.config

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Stored tensors by canonical name (FORMATS, section 2.1)."""
        return self.named.kept

    @property
    def d2t(self) -> Ids | None:
        """Offsets int64 [draft vocabulary], judged valid; None for a full vocabulary."""
        return None if self.table is None else self.table.offsets


@dataclass(frozen=True)
class Examination:
    """Everything that could be established about a folder, in spite of errors."""

    findings: Findings
    config: DraftConfig | None
    source: DraftSource | None
    """None when there are errors."""


def read_draft(folder: Path, *, overrides: Overrides = NO_OVERRIDES) -> DraftSource:
    """Read and judge a draft.

    Raises:
        CheckpointError, DialectError, DraftError: with every error found.
    """
    source, _ = read_draft_with_notes(folder, overrides=overrides)
    return source


def read_draft_with_notes(
    folder: Path, *, overrides: Overrides = NO_OVERRIDES
) -> tuple[DraftSource, Findings]:
    """Like ``read_draft``, with the notes and warnings that were made on the way."""
    checkpoint = open_checkpoint(folder)
    findings = Findings(checkpoint.notes)
    source, _ = _read(checkpoint, overrides, findings)
    findings.raise_errors(DraftError)
    assert source is not None, "no error, and yet nothing read"
    return source, findings


def examine(folder: Path, *, overrides: Overrides = NO_OVERRIDES) -> Examination:
    """Judge a draft and report everything at once.

    Raises:
        CheckpointError: when not even ``config.json`` can be read.
    """
    findings = Findings()
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError as error:
        document = read_json(folder / CONFIG_FILE)
        if not isinstance(document, dict):
            raise
        findings.add(*error.findings)
        return Examination(findings, _examine_config(document, overrides, findings), None)
    findings.add(*checkpoint.notes)
    try:
        source, config = _read(checkpoint, overrides, findings)
    except DSparkError as error:
        findings.add(*error.findings)
        return Examination(findings, None, None)
    return Examination(findings, config, None if findings.of("error") else source)


def _examine_config(
    document: Document, overrides: Overrides, findings: Findings
) -> DraftConfig | None:
    try:
        dialect = detect(document, ()).dialect
    except DSparkError as error:
        findings.add(*error.findings)
        return None
    parsed, _ = _parse(document, dialect, {}, overrides, findings)
    return parsed.config if parsed else None


def _read(
    checkpoint: Checkpoint, overrides: Overrides, findings: Findings
) -> tuple[DraftSource | None, DraftConfig | None]:
    detection = detect(checkpoint.config, checkpoint.tensors)
    named = name_tensors(checkpoint.tensors.values(), findings)
    parsed, edited = _parse(checkpoint.config, detection.dialect, named.kept, overrides, findings)
    if parsed is None:
        return None, None
    judge_structure(parsed.config, named.kept, findings)
    table = judge_vocabulary(parsed.config, named, findings, reading=overrides.d2t)
    source = DraftSource(
        checkpoint=checkpoint,
        detection=detection,
        document=checkpoint.config,
        edited=edited,
        parsed=parsed,
        named=named,
        table=table,
        overrides=overrides,
    )
    return source, parsed.config


def _parse(
    document: Document,
    dialect: Dialect,
    tensors: Mapping[str, StoredTensor],
    overrides: Overrides,
    findings: Findings,
) -> tuple[ParsedConfig | None, Document]:
    edited = apply_overrides(document, dialect, overrides)
    if not _types_right(edited, dialect, findings):
        return None, edited
    parsed = parse_config(edited, dialect, tensors, findings, layout=overrides.layout)
    if parsed is not None:
        judge_config(parsed.config, edited, findings)
    return parsed, edited


def _types_right(document: Document, dialect: Dialect, findings: Findings) -> bool:
    model = DenseConfig if dialect is DENSE else SpeculatorsConfig
    try:
        model.model_validate(document)
    except ValidationError as error:
        for problem in error.errors():
            findings.error(
                "config-invalid",
                problem["msg"],
                file=CONFIG,
                key=".".join(str(part) for part in problem["loc"]),
                found=repr(problem["input"])[:120],
                hint="correct the value in the source",
            )
        return False
    return True
