"""A loaded draft, read in another way: the same weights under another config, table or rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.heads import MarkovHead


class ShiftedDraft(DraftModel):
    """A draft whose blocks start ``step`` positions after where they should.

    Only differences between positions matter to RoPE, so the context is moved the other way.
    """

    step = 0

    def project_context(self, input_RTH: Tensor, position_ids: Tensor) -> ContextKV:
        """See ``DraftModel.project_context``."""
        return super().project_context(input_RTH, position_ids - self.step)


class LateMarkovHead(MarkovHead):
    """Conditions every slot on the token one place earlier; the first ones on the anchor.

    The state of a block is that of the inner head, followed by the embedding not yet used.
    """

    def __init__(self, inner: MarkovHead) -> None:
        nn.Module.__init__(self)
        self.inner = inner
        self.markov_w1, self.markov_w2 = inner.markov_w1, inner.markov_w2

    def mix(
        self, embedding: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """See ``MarkovHead.mix``."""
        inner_state, late = None, embedding
        if state is not None:
            inner_state, late = state.chunk(2, dim=-1)
        latent, inner_state = self.inner.mix(late, hidden, inner_state)
        if inner_state is None:
            inner_state = torch.zeros_like(embedding)
        return latent, torch.cat((inner_state, embedding), dim=-1)


def reread(
    draft: DraftModel,
    changes: Mapping[str, Any] | None = None,
    *,
    table: Tensor | None = None,
    weights: Mapping[str, Tensor] | None = None,
    kind: type[DraftModel] = DraftModel,
) -> DraftModel:
    """A draft that shares its weights with ``draft`` and is read in another way.

    It has no confidence head, since that says nothing about which tokens are drafted.

    Args:
        draft: the draft as it was loaded.
        changes: fields of its config.
        table: offsets int64 [D] in place of its vocabulary table.
        weights: tensors in place of its own, by canonical name.
        kind: the class of the result.
    """
    config = draft.config.model_copy(update={**(changes or {}), "enable_confidence_head": False})
    offsets = draft.vocabulary.draft_id_to_target_id if table is None else table
    with torch.device("meta"):
        reading = kind(config, offsets).requires_grad_(False).eval()
    stored = {**draft.state_dict(), **(weights or {})}
    reading.load_state_dict({name: stored[name] for name in reading.state_dict()}, assign=True)
    return reading.to(draft.device)
