"""Scatter sampling against the plain formulation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.errors import DraftError
from dspark_convert.runtime.sampling import draw_gumbel, scale_logits
from dspark_convert.runtime.vocabulary import DraftVocabulary, ProposalBuffer


def reduced(targets: list[int], size: int) -> DraftVocabulary:
    offsets = torch.tensor(targets) - torch.arange(len(targets))
    return DraftVocabulary(len(targets), size, offsets)


@given(st.sets(st.integers(0, 40), min_size=1).map(sorted), st.integers(41, 60))
def test_maps_are_inverse_and_scatter_is_the_plain_formulation(
    targets: list[int], size: int
) -> None:
    vocabulary = reduced(targets, size)
    draft_ids = torch.arange(len(targets))
    assert vocabulary.map_draft_to_target(draft_ids).tolist() == targets
    assert torch.equal(vocabulary.map_target_to_draft(torch.tensor(targets)), draft_ids)
    inverse = vocabulary.map_target_to_draft(torch.arange(size))
    assert int((inverse < 0).sum()) == size - len(targets)

    logits = torch.randn(3, len(targets), generator=torch.Generator().manual_seed(size))
    wide = ProposalBuffer(vocabulary, 3, 1, torch.float32).write(0, logits)
    plain = vocabulary.scatter_probabilities(logits.softmax(-1))
    assert torch.allclose(wide.softmax(-1), plain, atol=1e-7)
    assert torch.equal(wide.argmax(-1), vocabulary.map_draft_to_target(logits.argmax(-1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_columns_are_still_minus_infinity_after_a_thousand_steps(dtype: torch.dtype) -> None:
    vocabulary = reduced([1, 4, 5, 9, 14], 16)
    buffer = ProposalBuffer(vocabulary, rows=3, num_tokens=2, dtype=dtype)
    storage = buffer.logits.data_ptr()
    generator = torch.Generator().manual_seed(0)
    for step in range(1000):
        rows, temperature = 1 + step % 3, 10.0 ** -(step % 5)
        logits = torch.randn(rows, 5, generator=generator).to(dtype)
        wide = buffer.write(step % 2, logits)
        drawn = draw_gumbel(scale_logits(wide, temperature), generator)
        assert set(drawn.tolist()) <= {1, 4, 5, 9, 14}
        assert torch.equal(wide[:, vocabulary.target_ids], logits)
    others = torch.ones(16, dtype=torch.bool)
    others[vocabulary.target_ids] = False
    assert bool((buffer.logits[..., others] == float("-inf")).all())
    assert buffer.logits.data_ptr() == storage


def test_full_and_padded_vocabularies_need_no_table() -> None:
    full = DraftVocabulary(6, 6)
    ids = torch.tensor([0, 5])
    assert torch.equal(full.map_draft_to_target(ids), ids)
    logits = torch.randn(2, 6)
    assert full.mask_padding(logits) is logits

    padded = DraftVocabulary(8, 6)
    logits = torch.randn(2, 8)
    assert padded.mask_padding(logits)[:, 6:].tolist() == [[float("-inf")] * 2] * 2
    wide = ProposalBuffer(padded, 2, 1, torch.float32).write(0, logits)
    assert torch.equal(wide, logits[:, :6])
    wide = ProposalBuffer(full.restrict(7), 2, 1, torch.float32).write(0, logits[:, :6])
    assert torch.equal(wide[:, :6], logits[:, :6])
    assert wide[:, 6].tolist() == [float("-inf")] * 2


def test_a_smaller_target_hides_padding_but_not_mapped_tokens() -> None:
    assert DraftVocabulary(8, 8).restrict(6).usable == 6
    vocabulary = reduced([0, 3, 5], 8)
    assert vocabulary.restrict(8) is vocabulary
    assert vocabulary.restrict(6).target_size == 6
    with pytest.raises(DraftError) as caught:
        vocabulary.restrict(5)
    assert caught.value.code == "draft-id-beyond-target"


def test_unsorted_tables_are_scattered_to_the_right_columns() -> None:
    vocabulary = reduced([7, 2, 4], 9)
    wide = ProposalBuffer(vocabulary, 1, 1, torch.float32).write(0, torch.tensor([[1.0, 2.0, 3.0]]))
    assert wide[0, [7, 2, 4]].tolist() == [1.0, 2.0, 3.0]
    assert vocabulary.map_target_to_draft(torch.tensor([7, 2, 4, 0])).tolist() == [0, 1, 2, -1]
