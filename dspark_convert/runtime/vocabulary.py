"""Draft and target vocabulary, and sampling in target ids from draft logits.

A draft with a reduced vocabulary has D logits for V target ids. Scatter sampling writes them into a
V-wide buffer that was filled with -inf once, at columns that are computed once
(``arange + draft_id_to_target_id``). Every step overwrites the same columns, so the rest stays
-inf, and whatever is sampled from the buffer, or read from it as q, is in target ids already.

Shapes: D draft vocabulary, V target vocabulary, R rows, N drafted tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark_convert.errors import DraftError, Finding


class DraftVocabulary(nn.Module):
    """Which target id each draft id stands for.

    ``draft_id_to_target_id`` is the offset table int64 [D], or None if the ids are the same. It is
    assumed to be valid (targets in range, none twice), which reading ensures. Draft ids from V on
    are the padding of a head that is wider than the target's vocabulary; they stand for nothing.
    """

    draft_id_to_target_id: Tensor | None
    target_ids: Tensor
    draft_ids: Tensor

    def __init__(
        self, draft_size: int, target_size: int, draft_id_to_target_id: Tensor | None = None
    ) -> None:
        super().__init__()
        self.draft_size, self.target_size = draft_size, target_size
        self.usable = min(draft_size, target_size)
        with torch.device("cpu"):
            target_ids = torch.arange(self.usable)
            if draft_id_to_target_id is not None:
                target_ids = target_ids + draft_id_to_target_id.cpu()
            draft_ids = torch.full((target_size,), -1)
            draft_ids[target_ids] = torch.arange(self.usable)
        self.register_buffer("draft_id_to_target_id", draft_id_to_target_id, persistent=False)
        self.register_buffer("target_ids", target_ids, persistent=False)
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    def map_draft_to_target(self, draft_ids: Tensor) -> Tensor:
        """``ids + draft_id_to_target_id[ids]``, the identity for a full vocabulary."""
        if self.draft_id_to_target_id is None:
            return draft_ids
        return draft_ids + self.draft_id_to_target_id[draft_ids]

    def map_target_to_draft(self, target_ids: Tensor) -> Tensor:
        """The draft id of each target id, -1 for a token that the draft cannot propose."""
        return self.draft_ids[target_ids]

    def mask_padding(self, draft_logits: Tensor) -> Tensor:
        """Logits [..., D] with -inf at the draft ids that stand for nothing."""
        if self.usable == self.draft_size:
            return draft_logits
        padding = torch.arange(self.draft_size, device=draft_logits.device) >= self.usable
        return draft_logits.masked_fill(padding, float("-inf"))

    def scatter_probabilities(self, draft_probabilities: Tensor) -> Tensor:
        """Probabilities [..., V] from those over the draft vocabulary [..., D].

        The plain formulation (sample or normalise in draft ids, then map), and the oracle of the
        buffer's.
        """
        wide = draft_probabilities.new_zeros(*draft_probabilities.shape[:-1], self.target_size)
        wide[..., self.target_ids] = draft_probabilities[..., : self.usable]
        return wide

    def restrict(self, target_size: int) -> DraftVocabulary:
        """The same draft vocabulary against a target with fewer output rows than the draft embeds.

        Raises ``DraftError`` (``draft-id-beyond-target``) when a mapped id does not exist there.
        """
        if target_size == self.target_size:
            return self
        largest = int(self.target_ids.max())
        if self.draft_id_to_target_id is not None and largest >= target_size:
            raise DraftError(
                Finding(
                    code="draft-id-beyond-target",
                    message="the draft can propose a token that the target does not have",
                    tensor="draft_id_to_target_id",
                    expected=f"target ids below {target_size}",
                    found=str(largest),
                    hint="check that the draft was trained for this target",
                )
            )
        restricted = DraftVocabulary(self.draft_size, target_size, self.draft_id_to_target_id)
        return restricted.to(self.target_ids.device)


class ProposalBuffer:
    """Logits of N drafted tokens in target ids, [R, N, V], allocated and filled once."""

    def __init__(
        self, vocabulary: DraftVocabulary, rows: int, num_tokens: int, dtype: torch.dtype
    ) -> None:
        self.vocabulary = vocabulary
        shape = (rows, num_tokens, vocabulary.target_size)
        device = vocabulary.target_ids.device
        self.logits = torch.full(shape, float("-inf"), dtype=dtype, device=device)

    def write(self, token: int, draft_logits: Tensor) -> Tensor:
        """Write the draft logits [r, D] of one drafted token into the first r <= R rows.

        Returns those rows in target ids, [r, V]: a view that the next write of the same token
        overwrites.
        """
        wide = self.logits[: len(draft_logits), token]
        usable = draft_logits[:, : self.vocabulary.usable]
        if self.vocabulary.draft_id_to_target_id is None:
            wide[:, : self.vocabulary.usable] = usable
        else:
            wide.index_copy_(1, self.vocabulary.target_ids, usable)
        return wide
