"""Weights that look as if no training step had changed them."""

from __future__ import annotations

from collections.abc import Mapping

from dspark_convert.checkpoint.folder import StoredTensor, read_bytes
from dspark_convert.errors import Findings

_ONE: Mapping[str, bytes] = {
    "F32": b"\x00\x00\x80\x3f",
    "F16": b"\x00\x3c",
    "BF16": b"\x80\x3f",
}
"""The number one as safetensors stores it, little-endian."""
_MAX_BYTES = 2**20
"""More than the weight of any norm takes."""


def note_untrained_norms(tensors: Mapping[str, StoredTensor], findings: Findings) -> None:
    """Note norms whose weight [size] is all ones, the value before training: ``norm-untrained``.

    ``tensors`` are the tensors of a valid draft by canonical name; the norms' data are read.

    Raises ``CheckpointError``: those of ``read_bytes``.
    """
    norms = [tensors[name] for name in sorted(tensors) if name.endswith("norm.weight")]
    untrained = [norm for norm in norms if _all_ones(norm)]
    if untrained:
        findings.note(
            "norm-untrained",
            f"{len(untrained)} of {len(norms)} norms have a weight of all ones, as before "
            "training; the draft may be one that was initialised and never trained, or its norms "
            "may have been frozen",
            file=untrained[0].file,
            tensor=untrained[0].name,
            hint="make sure that these are the weights that were trained",
        )


def _all_ones(norm: StoredTensor) -> bool:
    one = _ONE.get(norm.dtype)
    if one is None or not 0 < norm.nbytes <= _MAX_BYTES:
        return False
    return read_bytes(norm, limit=_MAX_BYTES) == one * (norm.nbytes // len(one))
