"""The vocabulary tables: whether ``d2t`` is there, holds offsets or absolute ids, and is valid.

``d2t`` int64 [D] holds offsets: ``target_id = draft_id + d2t[draft_id]``.
``t2d`` bool [V] marks the target ids that the draft can propose. D draft, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dspark_convert.checkpoint.folder import StoredTensor, read_bytes
from dspark_convert.errors import Findings
from dspark_convert.formats.tensors import STORED_TABLE, VOCABULARY_TABLE, NamedTensors
from dspark_convert.schemas.draft import DraftConfig

TableMeaning = Literal["offsets", "absolute"]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_TABLE_BYTES = 64 * 1024 * 1024
_DTYPES: Mapping[str, npt.DTypeLike] = {"I64": "<i8", "I32": "<i4"}
_OTHER: Mapping[TableMeaning, TableMeaning] = {"offsets": "absolute", "absolute": "offsets"}
_SAVE_TABLE = (
    "save the draft with the d2t that it was trained with, target id - draft id as integers; "
    "if vocab_size is wrong, give --set vocab_size=N"
)


@dataclass(frozen=True)
class VocabularyTable:
    """A table that was found valid.

    ``offsets`` int64 [D]; ``changed``: they are not the stored bytes, because int32 was widened or
    absolute ids were rewritten.
    """

    stored: StoredTensor
    offsets: Ids
    changed: str | None

    @property
    def target_ids(self) -> Ids:
        """The target id of every draft id, int64 [D]."""
        return np.arange(len(self.offsets), dtype=np.int64) + self.offsets


def validate_vocabulary(
    config: DraftConfig,
    tensors: NamedTensors,
    findings: Findings,
    *,
    reading: TableMeaning | None = None,
) -> VocabularyTable | None:
    """Read and validate the tables of a draft; None for a full vocabulary or after an error.

    Args:
        config: the draft.
        tensors: its stored tensors.
        findings: receives ``d2t-*`` errors and notes.
        reading: overrides what table and mask say about offsets or absolute ids.
    """
    stored = tensors.kept.get(VOCABULARY_TABLE)
    if not config.reduced_vocabulary:
        for needless in filter(None, (stored, tensors.second_table)):
            _validate_needless(needless, config, findings)
        return None
    if stored is None:
        findings.error(
            "d2t-missing",
            "a reduced vocabulary needs a table from draft ids to target ids",
            tensor=STORED_TABLE,
            expected=f"int64 [{config.draft_vocab_size}]",
            hint="save the draft with its d2t; without it every draft id stands for the wrong "
            "token",
        )
        return None
    table = _read_table(stored, config, findings)
    if table is None or not _second_agrees(tensors.second_table, table, config, findings):
        return None
    mask = _read_mask(tensors.mask, config, findings) if tensors.mask is not None else None
    chosen = reading or _choose(table, mask, config.vocab_size, stored, findings)
    if chosen is None:
        return None
    return _accept(table, chosen, stored, config.vocab_size, findings)


def target_ids(table: Ids, reading: TableMeaning) -> Ids:
    """Target ids int64 [D] of a table [D] under one reading (which may be the wrong one)."""
    return table + np.arange(len(table), dtype=np.int64) if reading == "offsets" else table


def _read_table(stored: StoredTensor, config: DraftConfig, findings: Findings) -> Ids | None:
    where = {"file": stored.file, "tensor": stored.name}
    if stored.dtype not in _DTYPES:
        findings.error(
            "d2t-dtype",
            "the vocabulary table must hold integers",
            **where,
            expected="I64 (I32 is widened)",
            found=stored.dtype,
            hint=_SAVE_TABLE,
        )
        return None
    if stored.shape != (config.draft_vocab_size,):
        findings.error(
            "d2t-length",
            "the vocabulary table must have one entry per draft id",
            **where,
            expected=f"[{config.draft_vocab_size}], the draft_vocab_size",
            found=str(list(stored.shape)),
            hint="correct draft_vocab_size with --set if the config is wrong",
        )
        return None
    if stored.dtype == "I32":
        findings.note("d2t-widened", "the int32 table is widened to int64", **where)
    data = read_bytes(stored, limit=MAX_TABLE_BYTES)
    table: Ids = np.frombuffer(data, dtype=_DTYPES[stored.dtype]).astype(np.int64)
    return table


def _read_mask(stored: StoredTensor, config: DraftConfig, findings: Findings) -> Mask | None:
    data = b""
    if stored.dtype == "BOOL" and stored.shape == (config.vocab_size,):
        data = read_bytes(stored, limit=MAX_TABLE_BYTES)
    if not data:
        findings.error(
            "t2d-invalid",
            "t2d must be a boolean mask over the target vocabulary",
            file=stored.file,
            tensor=stored.name,
            expected=f"BOOL [{config.vocab_size}]",
            found=f"{stored.dtype} {list(stored.shape)}",
            hint="remove t2d: only training needs it",
        )
        return None
    mask: Mask = np.frombuffer(data, dtype=np.uint8) != 0
    return mask


def _second_agrees(
    second: StoredTensor | None, table: Ids, config: DraftConfig, findings: Findings
) -> bool:
    if second is None:
        return True
    other = _read_table(second, config, findings)
    if other is not None and np.array_equal(other, table):
        findings.note(
            "d2t-twice",
            f"the table is stored as {STORED_TABLE} and as {VOCABULARY_TABLE}; the two are equal",
            file=second.file,
        )
        return True
    findings.error(
        "d2t-conflict",
        f"{STORED_TABLE} and {VOCABULARY_TABLE} are the same table but hold different values",
        file=second.file,
        tensor=second.name,
        hint="remove the wrong one from the source",
    )
    return False


def _validate_needless(stored: StoredTensor, config: DraftConfig, findings: Findings) -> None:
    """A table in a draft that needs none: harmless as the identity, otherwise a contradiction."""
    table = None
    if stored.dtype in _DTYPES and stored.shape == (config.draft_vocab_size,):
        table = _read_table(stored, config, Findings())
    if table is not None and not table.any():
        findings.note(
            "d2t-identity",
            "the vocabulary is full and the table is the identity; it is omitted (vLLM refuses a "
            "full vocabulary with a table)",
            file=stored.file,
            tensor=stored.name,
        )
        return
    findings.error(
        "d2t-full-vocabulary",
        "the config says that the vocabulary is full, but a table is stored",
        file=stored.file,
        tensor=stored.name,
        expected=f"no table: draft_vocab_size {config.draft_vocab_size}, "
        f"vocab_size {config.vocab_size}",
        found=f"{stored.dtype} {list(stored.shape)}",
        hint="give --set draft_vocab_size=N if the vocabulary is reduced",
    )


def _fault(ids: Ids, reading: TableMeaning, vocab_size: int) -> tuple[str, str] | None:
    """Code and description of what is wrong with target ids; None when they are usable."""
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if outside.size:
        first = int(outside[0])
        return "d2t-out-of-range", f"read as {reading}, draft id {first} is target id {ids[first]}"
    if np.unique(ids).size == ids.size:
        return None
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(np.diff(ids[order]) == 0)[0]
    pair = sorted((int(order[twice]), int(order[twice + 1])))
    return "d2t-duplicate", (
        f"read as {reading}, draft ids {pair[0]} and {pair[1]} are both target id {ids[pair[0]]}"
    )


def _choose(
    table: Ids, mask: Mask | None, vocab_size: int, stored: StoredTensor, findings: Findings
) -> TableMeaning | None:
    """Offsets or absolute ids: the mask decides, else the only reading that is usable."""
    readings: tuple[TableMeaning, ...] = ("offsets", "absolute")
    ids = {name: target_ids(table, name) for name in readings}
    faults = {name: _fault(ids[name], name, vocab_size) for name in readings}
    agreed = [name for name in readings if faults[name] is None]
    if mask is not None:
        marked = np.flatnonzero(mask)
        agreed = [name for name in agreed if np.array_equal(np.sort(ids[name]), marked)]
    if faults["offsets"] and faults["absolute"]:
        code, description = faults["offsets"]
        message = f"the vocabulary table is unusable: {description}"
        _report(code, message, _SAVE_TABLE, stored, findings)
    elif not table.any() and len(table) > 1 and (mask is None or not agreed):
        _report(
            "d2t-all-zero",
            "every entry of the table is 0: the first draft ids would be the first target ids, but "
            "an uninitialised table looks the same",
            "if this is intended, give --d2t offsets",
            stored,
            findings,
        )
    elif not agreed:
        _report(
            "d2t-t2d-mismatch",
            "t2d marks different target ids from those that the table names, whether as offsets or "
            "as absolute ids",
            "find out which is right; --d2t offsets or --d2t absolute uses only the table",
            stored,
            findings,
        )
    elif len(agreed) == 2 and not np.array_equal(ids["offsets"], ids["absolute"]):
        _report(
            "d2t-ambiguous",
            "the table is in range and unique both as offsets and as absolute ids, "
            "and there is no t2d to decide",
            "speculators writes offsets: give --d2t offsets, or --d2t absolute",
            stored,
            findings,
        )
    elif agreed == ["absolute"]:
        _report(
            "d2t-absolute",
            "the table holds absolute target ids; it should hold offsets "
            "(target id - draft id), and every reader would read it as offsets",
            "give --d2t absolute: the ids are then rewritten as offsets",
            stored,
            findings,
        )
    else:
        return agreed[0]
    return None


def _report(code: str, message: str, hint: str, stored: StoredTensor, findings: Findings) -> None:
    findings.error(code, message, file=stored.file, tensor=stored.name, hint=hint)


def _accept(
    table: Ids, reading: TableMeaning, stored: StoredTensor, vocab_size: int, findings: Findings
) -> VocabularyTable | None:
    ids = target_ids(table, reading)
    fault = _fault(ids, reading, vocab_size)
    if fault is not None:
        _report(
            *fault,
            f"if the table is {_OTHER[reading]}, give --d2t {_OTHER[reading]}",
            stored,
            findings,
        )
        return None
    if (np.diff(ids) < 0).any():
        findings.note(
            "d2t-unsorted",
            "target ids do not ascend with draft ids; unusual but harmless",
            file=stored.file,
            tensor=stored.name,
        )
    changed = "int32 widened to int64" if stored.dtype == "I32" else None
    if reading == "absolute":
        changed = "absolute ids rewritten as offsets"
    return VocabularyTable(stored, ids - np.arange(len(ids), dtype=np.int64), changed)
