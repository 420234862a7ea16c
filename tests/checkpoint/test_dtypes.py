"""One table of element types: sizes and names agree with NumPy, and the floats with documents."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_convert.checkpoint.dtypes import DTYPES, FLOAT_CODES, FLOATS, float_name
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.trace import TraceHeader


@pytest.mark.parametrize("code", DTYPES)
def test_sizes_are_those_of_numpy(code: str) -> None:
    dtype = DTYPES[code]
    if dtype.bits >= 8:
        assert (dtype.nbytes, np.dtype(dtype.raw).itemsize) == (dtype.bits // 8, dtype.bits // 8)
        assert np.dtype(dtype.raw).kind == "u"
    if dtype.name and dtype.name != "bfloat16":
        assert np.dtype(dtype.name).itemsize == dtype.nbytes


def test_floats_are_what_documents_may_say() -> None:
    assert {"F32", "F16", "BF16"} == FLOATS
    assert {name: float_name(code) for name, code in FLOAT_CODES.items()} == {
        "float32": "float32",
        "float16": "float16",
        "bfloat16": "bfloat16",
    }
    assert float_name("F8_E4M3") is float_name("I64") is float_name("F64") is None
    for document, field in ((DraftConfig, "dtype"), (TraceHeader, "feature_dtype")):
        schema = document.model_json_schema()["properties"][field]
        assert schema["enum"] == list(FLOAT_CODES)
