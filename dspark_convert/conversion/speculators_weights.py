"""The tensors of the speculators form: its two vocabulary tables, and the target's left out.

speculators 0.9.0 reads the embedding and a full-vocabulary head from the verifier, whatever a
checkpoint stores (``models/dflash/core.py``).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np

from dspark_convert.checkpoint.dtypes import DTYPES
from dspark_convert.checkpoint.folder import StoredTensor, read_bytes
from dspark_convert.checkpoint.transfer import same_tensor
from dspark_convert.conversion.weights import Piece, stored_piece
from dspark_convert.errors import Findings
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.target import TargetWeights
from dspark_convert.formats.tensors import (
    CONFIDENCE_BIAS,
    CONFIDENCE_WEIGHT,
    STORED_TABLE,
    VOCABULARY_MASK,
    VOCABULARY_TABLE,
    verifiers_tensors,
)
from dspark_convert.formats.vocabulary import MAX_TABLE_BYTES, VocabularyTable

LeftOut = dict[str, str]
"""Canonical names of the source's tensors that the result does not store, and why."""


def speculators_pieces(source: DraftSource, left_out: LeftOut) -> list[Piece]:
    """Every tensor of the result; only the vocabulary tables and a zero bias hold new bytes."""
    pieces = [
        stored_piece(source, name, stored)
        for name, stored in source.tensors.items()
        if name not in left_out and name != VOCABULARY_TABLE
    ]
    if source.table is not None:
        pieces += _tables(source, source.table)
    return [*pieces, *_zero_bias(source)]


def leave_out_verifiers(
    source: DraftSource,
    target: TargetWeights | None,
    filled: Container[str],
    findings: Findings,
    *,
    changed: Container[str] = (),
    keep: bool,
) -> LeftOut:
    """Decide what to do with the embedding and a full-vocabulary head, which are the verifier's.

    Stored ones are compared with the verifier's, byte by byte, if its folder is given.

    Args:
        source: the draft.
        target: the verifier's weights; None if only its name is known.
        filled: tensors that an earlier conversion took from the target.
        findings: receives ``own-weights-differ`` and ``own-weights-unknown``, which are errors, or
            with ``keep`` the warning ``own-weights-overwritten`` instead; and the warning
            ``own-weights-assumed`` for a tensor that is left out on a manifest's word.
        changed: tensors whose values an earlier conversion computed.
        keep: store them anyway.
    """
    left_out: LeftOut = {}
    for name in verifiers_tensors(source.config):
        stored = source.tensors.get(name)
        if stored is None:
            continue
        equal = None if target is None else same_tensor(stored, target.supply(name))
        if keep:
            _warn_overwritten(stored, equal, findings)
        elif equal:
            left_out[name] = "the same bytes as the verifier's, from which speculators reads it"
        elif equal is None and name in filled:
            left_out[name] = "an earlier conversion took it from the target; not compared again"
            _warn_assumed(stored, findings)
        else:
            _refuse_own(stored, equal, name in changed, findings)
    return left_out


def warn_overwritten(source: DraftSource, findings: Findings) -> None:
    """Warn about what a draft stores but its dialect's own library reads from the verifier."""
    for name in source.dialect.verifiers(source.config):
        if name in source.tensors:
            _warn_overwritten(source.tensors[name], None, findings)


def _warn_assumed(stored: StoredTensor, findings: Findings) -> None:
    findings.warning(
        "own-weights-assumed",
        "the manifest says that an earlier conversion took the tensor from the target; it is left "
        "out without being compared, and lost if it was trained since",
        file=stored.file,
        tensor=stored.name,
        hint="give --verifier DIR to compare it, or --keep-verifier-weights to keep it",
    )


def _warn_overwritten(stored: StoredTensor, equal: bool | None, findings: Findings) -> None:
    if not equal:
        how = "is not the verifier's" if equal is False else "was not compared with the verifier's"
        findings.warning(
            "own-weights-overwritten",
            f"the tensor {how}; vLLM uses it as stored, but speculators 0.9 replaces it with "
            "the verifier's when it loads the draft",
            file=stored.file,
            tensor=stored.name,
        )


def _refuse_own(
    stored: StoredTensor, equal: bool | None, changed: bool, findings: Findings
) -> None:
    if equal is False:
        code, how = "own-weights-differ", "the draft's tensor is not the verifier's"
        hint = "give the verifier that the draft was trained for, or --keep-verifier-weights to "
    else:
        code, how = "own-weights-unknown", "nothing says whether the tensor is the verifier's"
        hint = "give --verifier DIR to compare them, or --keep-verifier-weights to "
    if changed:
        hint = "an earlier conversion changed it (--expand-vocab), so no verifier has the same: "
        hint += "convert the draft from before that, or give --keep-verifier-weights to "
    findings.error(
        code,
        f"{how}; speculators drafts store none and read the verifier's",
        file=stored.file,
        tensor=stored.name,
        hint=hint + "store it anyway (vLLM then uses it, speculators 0.9 does not)",
    )


def _tables(source: DraftSource, table: VocabularyTable) -> list[Piece]:
    """``d2t`` int64 [D], offsets, and ``t2d`` bool [V], the target ids that they name."""
    offsets = stored_piece(source, VOCABULARY_TABLE, table.stored)
    if offsets.action != "transformed":
        same_name = table.stored.name == STORED_TABLE
        offsets = replace(
            offsets,
            action="copied" if same_name else "renamed",
            reason="offsets, same bytes",
        )
    mask = np.zeros(source.config.vocab_size, dtype=np.bool_)
    mask[table.target_ids] = True
    return [replace(offsets, name=STORED_TABLE), _mask_piece(source, mask.tobytes(), offsets)]


def _mask_piece(source: DraftSource, content: bytes, table: Piece) -> Piece:
    stored = source.named.mask
    if stored is not None and read_bytes(stored, limit=MAX_TABLE_BYTES) == content:
        return replace(stored_piece(source, VOCABULARY_MASK, stored), reason="marks what d2t names")
    return Piece(
        name=VOCABULARY_MASK,
        dtype="BOOL",
        shape=(source.config.vocab_size,),
        content=content,
        action="added",
        reason="speculators' training mask, made from d2t: the target ids that it names",
        source=None,
        source_file=table.source_file,
    )


def _zero_bias(source: DraftSource) -> list[Piece]:
    weight = source.tensors.get(CONFIDENCE_WEIGHT)
    if weight is None or CONFIDENCE_BIAS in source.tensors:
        return []
    return [
        Piece(
            name=CONFIDENCE_BIAS,
            dtype=weight.dtype,
            shape=(1,),
            content=bytes(DTYPES[weight.dtype].nbytes),
            action="added",
            reason="zero, as its absence means; speculators would initialise it at random",
            source=None,
            source_file=weight.file,
        )
    ]
