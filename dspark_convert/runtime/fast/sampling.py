"""Drawing and rejecting over the draft's own vocabulary.

The scatter formulation writes every drafted token's logits into V columns, and samples there. Here
tokens are drawn among the D columns that the draft has, and only the one row of q that a residual
needs is scattered. The laws are the same: the columns that are left out have probability 0.

Shapes: R rows, N drafted tokens, D draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_convert.runtime.rejection import Uniforms, Verdict, compute_residual, count_leading
from dspark_convert.runtime.sampling import draw_gumbel, one_hot, scale_logits
from dspark_convert.runtime.vocabulary import DraftVocabulary


def soften(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities of ``logits / temperature``, in fp32."""
    return scale_logits(logits, temperature).softmax(-1)


class NarrowChoice:
    """Draws target ids from draft logits, without a buffer of V columns."""

    def __init__(
        self, vocabulary: DraftVocabulary, temperature: float, generator: torch.Generator
    ) -> None:
        self.vocabulary = vocabulary
        self.temperature, self.generator = temperature, generator

    def __call__(self, token: int, draft_logits: Tensor) -> Tensor:
        """Target ids [R] of draft logits [R, D], -inf where they stand for nothing."""
        draft_ids = draw_gumbel(scale_logits(draft_logits, self.temperature), self.generator)
        return self.vocabulary.map_draft_to_target(draft_ids)


def verify_narrow(
    p_RQV: Tensor,
    q_RND: Tensor | None,
    target_ids_RN: Tensor,
    lengths_R: Tensor,
    vocabulary: DraftVocabulary,
    uniforms: Uniforms,
    generator: torch.Generator,
) -> Verdict:
    """``rejection.verify_sampled`` with q in draft ids; None: one-hot at the drafted tokens.

    The same tokens stand for the same uniforms. The next token is drawn by the Gumbel-max trick
    instead of a running sum over V columns.
    """
    p_drafted = p_RQV[:, :-1].gather(2, target_ids_RN[..., None]).squeeze(2).double()
    if q_RND is None:
        q_drafted = torch.ones_like(p_drafted)
    else:
        draft_ids = vocabulary.map_target_to_draft(target_ids_RN)
        q_drafted = q_RND.gather(2, draft_ids[..., None]).squeeze(2).double()
    accepted = count_leading(uniforms.accept * q_drafted < p_drafted, lengths_R)
    rows = torch.arange(len(p_RQV), device=p_RQV.device)
    at = accepted.clamp(max=target_ids_RN.shape[1] - 1)
    if q_RND is None:
        q_next = one_hot(target_ids_RN[rows, at], p_RQV.shape[-1], p_RQV.dtype)
    else:
        q_next = vocabulary.scatter_probabilities(q_RND[rows, at])
    # After full acceptance nothing is subtracted, and the bonus comes from p.
    q_next = q_next * (accepted < lengths_R)[:, None]
    weights = compute_residual(p_RQV[rows, accepted], q_next)
    return Verdict(accepted, draw_gumbel(weights.log(), generator))
