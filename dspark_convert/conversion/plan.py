"""A conversion to dense as a value: planned on config and headers, printable, then carried out."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dspark_convert.checkpoint.files import open_regular, read_range
from dspark_convert.checkpoint.folder import Checkpoint, WeightFile
from dspark_convert.checkpoint.side_files import SideFile, side_files
from dspark_convert.conversion.engines import engine_notes
from dspark_convert.conversion.keys import convert_keys, without_local_paths
from dspark_convert.conversion.published import Published
from dspark_convert.conversion.weights import (
    OutputWeights,
    Piece,
    plan_files,
    plan_pieces,
    tensor_steps,
)
from dspark_convert.errors import DraftError, Findings
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import DraftSource, read_draft_with_notes
from dspark_convert.formats.target import TargetWeights, find_target_weights, judge_pairing
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import (
    ConversionPlan,
    SideFileStep,
    SourceFile,
    SourceIdentity,
)

MANIFEST_FILE = "dspark_conversion.json"

_HUB_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH_CHUNK = 1 << 20


@dataclass(frozen=True)
class Conversion:
    """A plan and what its execution needs: where the bytes of every output file come from."""

    plan: ConversionPlan
    files: tuple[OutputWeights, ...]
    side_files: tuple[SideFile, ...]
    read_only: tuple[Path, ...]
    """Folders that are read and must never be written."""


def plan_to_dense(
    folder: Path, *, target: Path | None = None, overrides: Overrides = NO_OVERRIDES
) -> Conversion:
    """Plan the conversion of a draft to the reference dense form.

    Args:
        folder: a local checkpoint folder, of any dialect that can be read.
        target: folder of the target model, whose embedding and head fill absent ones.
        overrides: what the user knows better than the source.

    Raises:
        CheckpointError, DialectError, DraftError: the input is refused, with every error found.
    """
    source, findings = read_draft_with_notes(folder, overrides=overrides)
    weights = find_target_weights(target) if target is not None else None
    config = _paired(source, weights, findings)
    keys = convert_keys(source, config, findings)
    pieces = plan_pieces(source, weights, findings)
    findings.raise_errors(DraftError)
    files = plan_files(source, pieces)
    carried = side_files(folder)
    _note_absent(pieces, findings)
    plan = ConversionPlan(
        source=identify(source.checkpoint),
        dialect=source.dialect.name,
        evidence=source.detection.evidence,
        target=identify(weights.checkpoint) if weights else None,
        draft=config,
        layout_evidence=source.parsed.layout_evidence,
        num_speculative_tokens=config.num_speculative_tokens,
        overrides=overrides.as_document(),
        config=keys.document,
        source_config=keys.source_config,
        tensors=tuple(tensor_steps(source, files)),
        keys=tuple(keys.steps),
        side_files=tuple(_side_step(file) for file in carried),
        output_bytes={file.name: file.size for file in files},
        findings=tuple(findings),
        engines=engine_notes(
            Published("dense", config, keys.document, [piece.name for piece in pieces])
        ),
    )
    read_only = (folder, *([target] if target else []))
    return Conversion(plan, tuple(files), tuple(f for f in carried if f.carried), read_only)


def identify(checkpoint: Checkpoint) -> SourceIdentity:
    """Name a checkpoint without naming anybody's folders: the repository, or the folder's name."""
    real = checkpoint.folder.resolve()
    name, revision = real.name, None
    match = _HUB_FOLDER.fullmatch(real.parent.parent.name)
    if match and real.parent.name == "snapshots" and _COMMIT.fullmatch(real.name):
        name, revision = f"{match['owner']}/{match['name']}", real.name
    return SourceIdentity(
        name=shown_name(str(without_local_paths(name))),
        revision=revision,
        config_sha256=checkpoint.config_sha256,
        files=tuple(_source_file(file) for file in checkpoint.files),
    )


def shown_name(name: str) -> str:
    """A file name as documents hold it: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _paired(source: DraftSource, weights: TargetWeights | None, findings: Findings) -> DraftConfig:
    """The draft's config, with the target's depth where the target is at hand."""
    if weights is None:
        return source.config
    judge_pairing(source.config, weights.config, weights.vocab_size, findings)
    depth = weights.config.get("num_hidden_layers")
    known = source.config.num_target_layers or not isinstance(depth, int)
    return source.config if known else source.config.model_copy(update={"num_target_layers": depth})


def _note_absent(pieces: list[Piece], findings: Findings) -> None:
    names = {piece.name for piece in pieces}
    absent = [name for name in (EMBEDDING, LM_HEAD) if name not in names]
    if absent:
        findings.note(
            "tensors-absent",
            f"the result does not store {' and '.join(absent)}: engines that share the target's "
            "load it, DeepSpec does not",
            hint="give --target DIR to fill them from the target's checkpoint",
        )


def _side_step(file: SideFile) -> SideFileStep:
    reason = file.reason or "document or tokenizer file"
    if file.name == MANIFEST_FILE:
        reason = "the manifest of an earlier conversion; a new one is written"
    action: Literal["copied", "left"] = "copied" if file.carried else "left"
    return SideFileStep(action=action, name=shown_name(file.name), reason=reason)


def _source_file(file: WeightFile) -> SourceFile:
    digest = hashlib.sha256()
    with open_regular(file.path, file=file.name) as descriptor:
        for start in range(0, file.header.data_begin, _HASH_CHUNK):
            size = min(_HASH_CHUNK, file.header.data_begin - start)
            digest.update(read_range(descriptor, start, size))
    return SourceFile(
        name=file.name, size=file.size, header_sha256=digest.hexdigest(), sha256=file.sha256
    )
