"""What the fast path refuses, and what it leaves to the plain one."""

from __future__ import annotations

import pytest
import torch

from dspark_convert.errors import DialectError, UsageError
from dspark_convert.runtime.fast import decode_fast, why_unsupported
from dspark_convert.runtime.records import DecodeOptions

from .helpers import bigram_pair, chain_pair


def test_other_targets_are_refused_with_the_reason() -> None:
    target, draft = chain_pair(6)
    assert why_unsupported(target, draft) is not None
    with pytest.raises(DialectError) as refused:
        decode_fast(target, draft, [[1]], DecodeOptions(max_new_tokens=4))
    assert refused.value.findings[0].code == "target-not-fast"


def test_targets_whose_weights_are_not_all_are_refused() -> None:
    class Scaled(torch.nn.Linear):
        """As quantisers and adapters replace a projection."""

    target, draft = bigram_pair()
    attention = target.model.model.layers[1].self_attn
    plain = attention.v_proj
    attention.v_proj = Scaled(plain.in_features, plain.out_features, bias=False)
    assert why_unsupported(target, draft) == "the target is quantised or carries adapters"
    attention.v_proj = plain
    assert why_unsupported(target, draft) is None
    target.model.is_quantized = True
    assert why_unsupported(target, draft) is not None


def test_options_are_refused_as_by_the_plain_path() -> None:
    target, draft = bigram_pair()
    assert why_unsupported(target, draft) is None
    with pytest.raises(UsageError, match="generator"):
        decode_fast(target, draft, [[1]], DecodeOptions(max_new_tokens=4, temperature=1.0))
    options = DecodeOptions(max_new_tokens=4, num_speculative_tokens=9)
    with pytest.raises(UsageError, match="fewer tokens"):
        decode_fast(target, draft, [[1]], options)
