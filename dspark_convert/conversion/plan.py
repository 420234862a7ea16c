"""A conversion as a value: planned from config and headers, printable, then carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dspark_convert.checkpoint.folder import WeightFile
from dspark_convert.checkpoint.names import shown_name
from dspark_convert.checkpoint.side_files import SideFile, side_files
from dspark_convert.conversion.expand import expand_pieces, expanded_config, explain_keys
from dspark_convert.conversion.history import (
    changed_tensors,
    origin_in,
    raise_errors,
    read_history,
)
from dspark_convert.conversion.identity import identify
from dspark_convert.conversion.keys import ConvertedKeys, convert_keys
from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.conversion.rendering import plain_rendering
from dspark_convert.conversion.speculators import speculators_rendering, validate_expressible
from dspark_convert.conversion.speculators_weights import leave_out_verifiers, speculators_pieces
from dspark_convert.conversion.spelling import (
    spell_keys,
    spell_pieces,
    validate_for,
)
from dspark_convert.conversion.verifier import find_verifier
from dspark_convert.conversion.weights import (
    NOTHING_LEFT_OUT,
    OutputWeights,
    Piece,
    plan_files,
    plan_pieces,
    tensor_steps,
)
from dspark_convert.engines import REFERENCE, EngineView, engine_notes, find_engine
from dspark_convert.errors import DraftError, Findings
from dspark_convert.formats.dialects import DENSE, SPECULATORS
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, read_draft_with_notes
from dspark_convert.formats.target import TargetWeights, find_target_weights, validate_pairing
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import ConversionPlan, EarlierConversion, SideFileStep


@dataclass(frozen=True)
class Conversion:
    """A plan and what its execution needs: where the bytes of every output file come from."""

    plan: ConversionPlan
    source_files: tuple[WeightFile, ...]
    """The weight files of the draft that is converted."""
    files: tuple[OutputWeights, ...]
    side_files: tuple[SideFile, ...]
    read_only: tuple[Path, ...]
    """Folders that are read and must never be written."""


def plan_to_dense(
    folder: Path,
    *,
    target: Path | None = None,
    overrides: Overrides = NO_OVERRIDES,
    written_for: str = REFERENCE,
    expand_vocabulary: bool = False,
) -> Conversion:
    """Plan the conversion of a draft to the dense form.

    Args:
        folder: a local checkpoint folder, of any dialect that can be read.
        target: folder of the target model, whose embedding and head fill in missing ones.
        overrides: what the user knows better than the source.
        written_for: the engine whose spelling is written, as ``--for`` names it.
        expand_vocabulary: make a reduced vocabulary full, with the same proposals.

    Raises:
        CheckpointError, DialectError, DraftError: the input is refused, with every error found.
        UsageError: ``unknown-engine``.
    """
    engine = find_engine(written_for)
    source, findings = read_draft_with_notes(folder, overrides=overrides)
    history = read_history(folder, identify(source.checkpoint), findings)
    weights = find_target_weights(target) if target is not None else None
    config = _paired(source, weights, findings)
    if expand_vocabulary:
        config = expanded_config(config)
    keys = convert_keys(source, plain_rendering(config, DENSE), findings)
    pieces = plan_pieces(source, weights, findings)
    if expand_vocabulary:
        pieces = expand_pieces(source, pieces)
        explain_keys(keys)
    if engine is not None:
        spell_keys(engine, config, keys)
        pieces = spell_pieces(engine, config, pieces)
        validate_for(engine, _published(source, config, keys, pieces), pieces, weights, findings)
    findings.raise_errors(DraftError)
    _note_absent(pieces, findings)
    return _conversion(
        source,
        config,
        keys,
        pieces,
        findings,
        target=weights,
        history=history,
        written_for=written_for,
        vocabulary_expanded=expand_vocabulary,
    )


def plan_to_speculators(
    folder: Path,
    *,
    verifier: str | None = None,
    keep_verifier_weights: bool = False,
    overrides: Overrides = NO_OVERRIDES,
) -> Conversion:
    """Plan the conversion of a draft to the speculators form.

    If the source is the result of an earlier conversion from that form, its manifest restores
    what the source cannot express. An embedding or full-vocabulary head that the source stores is
    compared with the verifier's; nothing else but headers and the vocabulary table is read.

    Args:
        folder: a local checkpoint folder, of any dialect that can be read.
        verifier: folder or repository of the target model, recorded as given (a snapshot of
            the Hub cache by its repository); None: the one that a manifest records.
        keep_verifier_weights: store embedding and head even though they should be the verifier's.
        overrides: what the user knows better than the source.

    Raises:
        CheckpointError, DialectError, DraftError: the input is refused, with every error found.
        UsageError: ``bad-verifier``.
    """
    source, findings = read_draft_with_notes(folder, overrides=overrides)
    history = read_history(folder, identify(source.checkpoint), findings)
    origin = origin_in(SPECULATORS, source, history)
    model = find_verifier(verifier, origin, findings)
    if model.weights is not None:
        _validate_pair(source, model.weights, findings)
    validate_expressible(source.config, findings)
    left_out = leave_out_verifiers(
        source,
        model.weights,
        origin.filled if origin else (),
        findings,
        changed=changed_tensors(history),
        keep=keep_verifier_weights,
    )
    raise_errors(findings)
    rendering = speculators_rendering(source, source.config, model, origin, findings)
    return _conversion(
        source,
        source.config,
        convert_keys(source, rendering, findings),
        speculators_pieces(source, left_out),
        findings,
        target=model.weights,
        history=history,
        left_out=left_out,
    )


def _published(
    source: DraftSource, config: DraftConfig, keys: ConvertedKeys, pieces: list[Piece]
) -> EngineView:
    names = [piece.name for piece in pieces]
    scheme = source.detection.scheme
    return EngineView(keys.rendering.dialect, config, keys.document, names, scheme)


def _conversion(
    source: DraftSource,
    config: DraftConfig,
    keys: ConvertedKeys,
    pieces: list[Piece],
    findings: Findings,
    *,
    target: TargetWeights | None,
    history: tuple[EarlierConversion, ...],
    left_out: Mapping[str, str] = NOTHING_LEFT_OUT,
    written_for: str = REFERENCE,
    vocabulary_expanded: bool = False,
) -> Conversion:
    """Everything that was decided, in the form that is printed, carried out and recorded."""
    files = plan_files(source, pieces)
    carried = side_files(source.folder)
    plan = ConversionPlan(
        source=identify(source.checkpoint),
        dialect=source.dialect.name,
        output_dialect=keys.rendering.dialect.name,
        evidence=source.detection.evidence,
        target=identify(target.checkpoint) if target else None,
        draft=config,
        layout_evidence=source.parsed.layout_evidence,
        num_speculative_tokens=config.num_speculative_tokens,
        overrides=source.overrides.as_document(),
        written_for=written_for,
        vocabulary_expanded=vocabulary_expanded,
        config=keys.document,
        source_config=keys.source_config,
        tensors=tuple(tensor_steps(source, files, left_out)),
        keys=tuple(keys.steps),
        history=history,
        side_files=tuple(_side_step(file) for file in carried),
        output_bytes={file.name: file.size for file in files},
        findings=tuple(findings),
        engines=engine_notes(_published(source, config, keys, pieces)),
    )
    read_only = (source.folder, *([target.checkpoint.folder] if target else []))
    return Conversion(
        plan=plan,
        source_files=source.checkpoint.files,
        files=tuple(files),
        side_files=tuple(file for file in carried if file.carried),
        read_only=read_only,
    )


def _paired(source: DraftSource, weights: TargetWeights | None, findings: Findings) -> DraftConfig:
    """The draft's config, with the target's depth if the target is at hand."""
    if weights is None:
        return source.config
    _validate_pair(source, weights, findings)
    depth = weights.config.get("num_hidden_layers")
    known = source.config.num_target_layers or not isinstance(depth, int)
    return source.config if known else source.config.model_copy(update={"num_target_layers": depth})


def _validate_pair(source: DraftSource, target: TargetWeights, findings: Findings) -> None:
    validate_pairing(
        source.config, target.config, target.vocab_size, findings, layer_ids=source.layer_ids
    )


def _note_absent(pieces: list[Piece], findings: Findings) -> None:
    names = {piece.name for piece in pieces}
    absent = [name for name in (EMBEDDING, LM_HEAD) if name not in names]
    if absent:
        findings.note(
            "tensors-absent",
            f"the result does not store {' and '.join(absent)}: engines that share the target's "
            "load it, DeepSpec does not",
            hint="give --target DIR to fill them in from the target's checkpoint",
        )


def _side_step(file: SideFile) -> SideFileStep:
    reason = file.reason or "document or tokenizer file"
    if file.name == MANIFEST_FILE:
        reason = "the manifest of an earlier conversion; a new one is written"
    action: Literal["copied", "left"] = "copied" if file.carried else "left"
    return SideFileStep(action=action, name=shown_name(file.name), reason=reason)
