"""Which weights a document speaks of."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from dspark_convert.schemas.base import OwnDocument


class WeightsIdentity(OwnDocument):
    """The weights of a checkpoint in one digest; two documents with the same speak of the same."""

    method: Literal["all-bytes", "sampled"] = Field(
        description="sampled: above 4 GiB, the first, the middle and the last 4 KiB of every tensor"
    )
    sha256: str = Field(description="over name, dtype, shape and bytes of all tensors")
    nbytes: NonNegativeInt = Field(description="of all tensors")
