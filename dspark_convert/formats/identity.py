"""The identity of a checkpoint's weights, as documents hold it."""

from __future__ import annotations

from dspark_convert.checkpoint.fingerprint import fingerprint
from dspark_convert.checkpoint.folder import Checkpoint
from dspark_convert.schemas.identity import WeightsIdentity


def identify_weights(checkpoint: Checkpoint) -> WeightsIdentity:
    """Read and hash the weights: whole up to 4 GiB, sampled above (see ``fingerprint``).

    Raises ``CheckpointError``: those of ``open_regular``.
    """
    found = fingerprint(checkpoint.tensors.values())
    return WeightsIdentity(method=found.method, sha256=found.sha256, nbytes=found.nbytes)
