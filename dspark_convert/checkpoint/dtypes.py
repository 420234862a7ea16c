"""Element types: one table of what safetensors, PyTorch and NumPy call them, and their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import get_args

from dspark_convert.schemas.base import FloatName


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type; ``name`` is that of PyTorch, configs and our documents, "" if unused."""

    bits: int
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of one element, if it fills whole bytes."""
        return self.bits // 8

    @property
    def raw(self) -> str:
        """The NumPy type that holds the bits of one element, little-endian as in files."""
        return f"<u{self.nbytes}"


# In the order in which safetensors 0.8 declares them, which is the order it sorts a file by
# (last first): wider alignment comes first in a file.
DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        "BOOL": Dtype(8, "bool"),
        "F4": Dtype(4),
        "F6_E2M3": Dtype(6),
        "F6_E3M2": Dtype(6),
        "U8": Dtype(8, "uint8"),
        "I8": Dtype(8, "int8"),
        "F8_E5M2": Dtype(8),
        "F8_E4M3": Dtype(8),
        "F8_E8M0": Dtype(8),
        "F8_E4M3FNUZ": Dtype(8),
        "F8_E5M2FNUZ": Dtype(8),
        "I16": Dtype(16, "int16"),
        "U16": Dtype(16, "uint16"),
        "F16": Dtype(16, "float16"),
        "BF16": Dtype(16, "bfloat16"),
        "I32": Dtype(32, "int32"),
        "U32": Dtype(32, "uint32"),
        "F32": Dtype(32, "float32"),
        "C64": Dtype(64, "complex64"),
        "F64": Dtype(64, "float64"),
        "I64": Dtype(64, "int64"),
        "U64": Dtype(64, "uint64"),
    }
)
"""By the code that safetensors gives them."""

FLOAT_NAMES: tuple[FloatName, ...] = get_args(FloatName)
FLOAT_CODES: Mapping[FloatName, str] = MappingProxyType(
    {name: code for name in FLOAT_NAMES for code, dtype in DTYPES.items() if dtype.name == name}
)
"""The float types that the weights of drafts and targets, and recorded features, may have."""

FLOATS = frozenset(FLOAT_CODES.values())


def float_name(code: str) -> FloatName | None:
    """The name of one of the ``FLOATS``; None for any other code."""
    return next((name for name, known in FLOAT_CODES.items() if known == code), None)
