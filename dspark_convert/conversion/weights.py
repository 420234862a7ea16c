"""Tensors of a conversion: what is copied, renamed, rewritten, filled in or left out."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from dspark_convert.checkpoint.dtypes import FLOATS
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.header import TensorEntry, layout_entries, render_header
from dspark_convert.checkpoint.names import SINGLE_FILE
from dspark_convert.conversion.assembled import Assembled
from dspark_convert.errors import Findings
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.target import TargetWeights
from dspark_convert.formats.tensors import (
    DROPPED,
    EMBEDDING,
    LM_HEAD,
    VOCABULARY_TABLE,
    expected_tensors,
)
from dspark_convert.schemas.plan import TensorAction, TensorStep

NOTHING_LEFT_OUT: Mapping[str, str] = {}


@dataclass(frozen=True)
class Piece:
    """One tensor of the result: bytes of a stored tensor, made here, or made while writing."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: StoredTensor | Assembled | bytes
    action: TensorAction
    reason: str
    source: str | None
    source_file: str


@dataclass(frozen=True)
class OutputWeights:
    """One weight file of the result; the header is known before any data is read."""

    name: str
    header: bytes
    entries: tuple[TensorEntry, ...]
    pieces: Mapping[str, Piece]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + (self.entries[-1].end if self.entries else 0)


def plan_pieces(
    source: DraftSource, target: TargetWeights | None, findings: Findings
) -> list[Piece]:
    """Every tensor of the result. Only the vocabulary table may hold new bytes."""
    pieces = [
        stored_piece(source, name, stored)
        for name, stored in source.tensors.items()
        if name != VOCABULARY_TABLE or source.table is not None
    ]
    if target is not None:
        absent = [name for name in (EMBEDDING, LM_HEAD) if name not in source.tensors]
        pieces += _filled(source, target, absent, findings)
    return pieces


def plan_files(source: DraftSource, pieces: Iterable[Piece]) -> list[OutputWeights]:
    """Group the pieces as the source grouped them; what the target fills in gets its own shard.

    Shards are numbered anew, because one may have become empty.
    """
    names = [file.name for file in source.checkpoint.files]
    home_of_filled = names[0] if len(names) == 1 else "filled"
    groups: dict[str, list[Piece]] = {name: [] for name in (*names, home_of_filled)}
    for piece in pieces:
        groups[home_of_filled if piece.action == "filled" else piece.source_file].append(piece)
    shards = [group for group in groups.values() if group]
    metadata = dict(source.checkpoint.metadata) or {"format": "pt"}
    return [
        _output_file(_file_name(index, len(shards)), group, metadata)
        for index, group in enumerate(shards, start=1)
    ]


def tensor_steps(
    source: DraftSource,
    files: Iterable[OutputWeights],
    left_out: Mapping[str, str] = NOTHING_LEFT_OUT,
) -> list[TensorStep]:
    """The account of every tensor: those of the result in file order, then those left out.

    ``left_out`` says, by canonical name, why tensors are left out besides those that no draft
    stores.
    """
    files = tuple(files)
    used = {piece.source for file in files for piece in file.pieces.values()}
    steps = [
        TensorStep(
            action=piece.action,
            source=piece.source,
            source_file=piece.source_file if piece.source else None,
            name=piece.name,
            file=file.name,
            dtype=piece.dtype,
            shape=piece.shape,
            reason=piece.reason,
        )
        for file in files
        for piece in (file.pieces[entry.name] for entry in file.entries)
    ]
    return steps + [
        TensorStep(
            action="dropped",
            source=stored.name,
            source_file=stored.file,
            name=None,
            file=None,
            dtype=stored.dtype,
            shape=stored.shape,
            reason=reason,
        )
        for stored, reason in _left_out(source, used, left_out)
    ]


def _left_out(
    source: DraftSource, used: Container[str | None], reasons: Mapping[str, str]
) -> list[tuple[StoredTensor, str]]:
    left = [
        (stored, DROPPED[name])
        for name, stored in source.named.dropped.items()
        if stored.name not in used
    ]
    left += [(source.tensors[name], reason) for name, reason in reasons.items()]
    table = source.tensors.get(VOCABULARY_TABLE)
    if table is not None and table.name not in used:
        expanded = "the vocabulary is expanded: draft ids are target ids"
        identity = "the identity; a full vocabulary has no table"
        left.append((table, identity if source.table is None else expanded))
    if source.named.second_table is not None:
        left.append((source.named.second_table, "the same table under its other name"))
    return left


def stored_piece(source: DraftSource, name: str, stored: StoredTensor) -> Piece:
    """A tensor of the source under its canonical name; the table as int64 offsets."""
    content: StoredTensor | bytes = stored
    action: TensorAction = "copied" if name == stored.name else "renamed"
    reason = "unchanged" if action == "copied" else "same bytes under the name of the dense form"
    dtype = stored.dtype
    if name == VOCABULARY_TABLE and source.table is not None:
        reason = "offsets, same bytes" if action == "renamed" else reason
        if source.table.changed:
            content = source.table.offsets.astype("<i8").tobytes()
            action, reason, dtype = "transformed", source.table.changed, "I64"
    return Piece(
        name,
        dtype,
        stored.shape,
        content,
        action,
        reason,
        source=stored.name,
        source_file=stored.file,
    )


def _filled(
    source: DraftSource, target: TargetWeights, absent: Iterable[str], findings: Findings
) -> list[Piece]:
    expected = expected_tensors(source.config)
    pieces = []
    for name in absent:
        stored = target.supply(name)
        if stored.shape != expected[name].shape or stored.dtype not in FLOATS:
            findings.error(
                "target-rows-mismatch",
                f"the draft stores no {name}, and the target's cannot stand in for it",
                tensor=name,
                expected=f"float {list(expected[name].shape)}",
                found=f"{stored.dtype} {list(stored.shape)} in the target",
                hint="omit --target, or publish the draft with its own tensor",
            )
            continue
        pieces.append(
            Piece(
                name,
                stored.dtype,
                stored.shape,
                stored,
                "filled",
                "missing in the draft; the target's bytes",
                source=stored.name,
                source_file=stored.file,
            )
        )
    return pieces


def _file_name(index: int, count: int) -> str:
    return SINGLE_FILE if count == 1 else f"model-{index:05d}-of-{count:05d}.safetensors"


def _output_file(name: str, group: list[Piece], metadata: Mapping[str, str]) -> OutputWeights:
    pieces = {piece.name: piece for piece in group}
    entries = layout_entries((piece.name, piece.dtype, piece.shape) for piece in group)
    return OutputWeights(name, render_header(entries, metadata), entries, pieces)
