"""Read a draft from a folder, whatever its dialect, and validate everything that can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dspark_convert.checkpoint.folder import Checkpoint, StoredTensor, open_checkpoint
from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import CheckpointError, DraftError, DSparkError, Findings
from dspark_convert.formats.detect import Detection, detect
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.dialects.shared import LAYER_IDS, PLAIN_LAYER_IDS
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides, apply_overrides
from dspark_convert.formats.parse import ParsedConfig, parse_config
from dspark_convert.formats.quantisation import refuse_quantised
from dspark_convert.formats.rules import Document, Place
from dspark_convert.formats.tensors import NamedTensors, name_tensors
from dspark_convert.formats.validate_config import validate_config
from dspark_convert.formats.validate_tensors import validate_tensors
from dspark_convert.formats.vocabulary import Ids, VocabularyTable, validate_vocabulary
from dspark_convert.schemas.draft import DraftConfig


@dataclass(frozen=True)
class DraftSource:
    """A draft that was read and found valid."""

    checkpoint: Checkpoint
    detection: Detection
    document: Document
    """The config as stored, before any override."""
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
        """Stored tensors by canonical name."""
        return self.named.kept

    @property
    def layer_ids(self) -> Place:
        """The key that holds the layer ids, with its way of counting them."""
        return layer_id_place(self.parsed, self.dialect, self.overrides)

    @property
    def d2t(self) -> Ids | None:
        """Offsets int64 [draft vocabulary], validated; None for a full vocabulary."""
        return None if self.table is None else self.table.offsets


@dataclass(frozen=True)
class Examination:
    """Everything that could be established about a folder, step by step, despite errors.

    A step that failed leaves its field None and says why in ``findings``.
    """

    findings: Findings
    checkpoint: Checkpoint | None
    detection: Detection | None
    parsed: ParsedConfig | None
    source: DraftSource | None
    """Set only when there are no errors."""
    ended_by: DSparkError | None = None
    """What no further step could follow; its findings are among ``findings``."""

    @property
    def config(self) -> DraftConfig | None:
        """What the draft is, as far as its config goes."""
        return self.parsed.config if self.parsed else None


def read_draft(folder: Path, *, overrides: Overrides = NO_OVERRIDES) -> DraftSource:
    """Read and validate a draft.

    Raises:
        CheckpointError, DialectError, DraftError: with every error found.
    """
    source, _ = read_draft_with_notes(folder, overrides=overrides)
    return source


def read_draft_with_notes(
    folder: Path, *, overrides: Overrides = NO_OVERRIDES
) -> tuple[DraftSource, Findings]:
    """Like ``read_draft``, with the notes and warnings made along the way."""
    return read_checkpoint(open_checkpoint(folder), overrides=overrides)


def read_checkpoint(
    checkpoint: Checkpoint, *, overrides: Overrides = NO_OVERRIDES
) -> tuple[DraftSource, Findings]:
    """Like ``read_draft_with_notes``, for a folder that is already open."""
    examination = _examine(checkpoint, checkpoint.config, overrides, Findings(checkpoint.notes))
    if examination.ended_by is not None:
        raise examination.ended_by
    examination.findings.raise_errors(DraftError)
    assert examination.source is not None, "no error, and yet nothing read"
    return examination.source, examination.findings


def examine(folder: Path, *, overrides: Overrides = NO_OVERRIDES) -> Examination:
    """Validate a draft and report everything at once.

    Raises:
        CheckpointError: not even ``config.json`` can be read.
    """
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError as error:
        return _examine(None, _config_alone(folder, error), overrides, Findings(error.findings))
    return _examine(checkpoint, checkpoint.config, overrides, Findings(checkpoint.notes))


def _config_alone(folder: Path, error: CheckpointError) -> Document:
    """The config of a folder whose weights cannot be read; raises ``error`` if it is not there."""
    try:
        document = read_json(folder / CONFIG_FILE)
    except CheckpointError:
        document = None
    if not isinstance(document, dict):
        raise error
    return document


def _examine(
    checkpoint: Checkpoint | None, document: Document, overrides: Overrides, findings: Findings
) -> Examination:
    """Every step in turn; those about weights only if their headers could be read."""
    detection, parsed, source, ended_by = None, None, None, None
    stored = checkpoint.tensors if checkpoint else {}
    try:
        detection = detect(document, stored)
        named = name_tensors(stored.values(), findings)
        parsed = _parse(detection.dialect, document, named.kept, overrides, findings)
        quantised = _refuse_quantised(detection, document, named.kept, findings)
        if checkpoint is not None and parsed is not None:
            if not quantised:
                _validate_stored(parsed, detection, named, overrides, findings)
            table = validate_vocabulary(parsed.config, named, findings, reading=overrides.d2t)
            if not findings.of("error"):
                source = DraftSource(
                    checkpoint=checkpoint,
                    detection=detection,
                    document=document,
                    parsed=parsed,
                    named=named,
                    table=table,
                    overrides=overrides,
                )
    except DSparkError as error:
        findings.add(*error.findings)
        ended_by = error
    return Examination(findings, checkpoint, detection, parsed, source, ended_by)


def _validate_stored(
    parsed: ParsedConfig,
    detection: Detection,
    named: NamedTensors,
    overrides: Overrides,
    findings: Findings,
) -> None:
    validate_tensors(
        parsed.config,
        named.kept,
        findings,
        scheme=detection.scheme,
        layer_ids=layer_id_place(parsed, detection.dialect, overrides),
        readings=parsed.readings,
    )


def _refuse_quantised(
    detection: Detection,
    document: Document,
    tensors: Mapping[str, StoredTensor],
    findings: Findings,
) -> bool:
    """Whether stored weights are quantised in no known way; if so, this is reported."""
    container = detection.dialect.decoder
    return detection.scheme is None and refuse_quantised(document, container, tensors, findings)


def _parse(
    dialect: Dialect,
    document: Document,
    tensors: Mapping[str, StoredTensor],
    overrides: Overrides,
    findings: Findings,
) -> ParsedConfig | None:
    """Parse the config, with the overrides applied."""
    edited = apply_overrides(document, dialect, overrides)
    if not _types_right(edited, dialect, findings):
        return None
    parsed = parse_config(edited, dialect, tensors, findings, layout=overrides.layout)
    if parsed is not None:
        layer_ids = layer_id_place(parsed, dialect, overrides)
        validate_config(parsed.config, edited, dialect, findings, layer_ids=layer_ids)
    return parsed


def layer_id_place(parsed: ParsedConfig, dialect: Dialect, overrides: Overrides) -> Place:
    """Where the effective layer ids are: in a key of the file, or in ``--set``."""
    rule, paths = dialect.rule(LAYER_IDS), parsed.readings[LAYER_IDS].paths
    assert rule is not None, "every dialect has layer ids"
    if LAYER_IDS in overrides.fields:
        return PLAIN_LAYER_IDS
    return next(place for place in rule.places if place.path == paths[0])


def _types_right(document: Document, dialect: Dialect, findings: Findings) -> bool:
    try:
        dialect.document.model_validate(document)
    except ValidationError as error:
        for problem in error.errors():
            findings.error(
                "config-invalid",
                problem["msg"],
                file=CONFIG_FILE,
                key=".".join(str(part) for part in problem["loc"]),
                found=repr(problem["input"])[:120],
                hint=_type_hint(problem["loc"], dialect),
            )
        return False
    return True


def _type_hint(location: tuple[int | str, ...], dialect: Dialect) -> str:
    """Correct the value, or override the field whose key, or an entry of it, has a wrong type."""
    keys = tuple(part for part in location if isinstance(part, str))
    settings = [
        rule.setting
        for rule in dialect.rules
        if rule.setting and any(place.path == keys for place in rule.places)
    ]
    return ", or give ".join(["correct the value in the source", *settings])
