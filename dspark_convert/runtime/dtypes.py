"""The element types of ``checkpoint.dtypes`` as PyTorch has them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dspark_convert.checkpoint.dtypes import DTYPES, FLOAT_NAMES
from dspark_convert.schemas.base import FloatName

FLOAT_DTYPES: Mapping[FloatName, torch.dtype] = {name: getattr(torch, name) for name in FLOAT_NAMES}
"""What a draft or a target may run in, by the name that users give."""


def torch_dtype(code: str) -> torch.dtype:
    """The dtype of a code of safetensors whose row has a name."""
    dtype: torch.dtype = getattr(torch, DTYPES[code].name)
    return dtype


def float_name_of(dtype: torch.dtype) -> FloatName:
    """The name of one of the ``FLOAT_DTYPES``."""
    return next(name for name, known in FLOAT_DTYPES.items() if known == dtype)
