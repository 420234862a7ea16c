"""Speculative rejection sampling: which drafted tokens stand, and the token after them.

Pure functions: the randomness comes in as uniform numbers, so that a distribution can be enumerated
exactly. The distribution of what is committed is the target's, whatever the draft proposes
(Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding").

Shapes: R rows, N drafted tokens, V vocabulary. p are the target's probabilities [R, N + 1, V] after
the anchor and after each drafted token; q the draft's [R, N, V], each drafted token drawn from its
own; both fp32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark_convert.runtime.sampling import draw_inverse_cdf


@dataclass(frozen=True, slots=True)
class Uniforms:
    """Independent numbers in [0, 1), float64: ``accept`` [R, N] and ``next_token`` [R]."""

    accept: Tensor
    next_token: Tensor

    @classmethod
    def draw(cls, rows: int, num_tokens: int, generator: torch.Generator) -> Uniforms:
        """Draw one round's numbers, on the generator's device."""
        shape = (rows, num_tokens + 1)
        drawn = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
        return cls(accept=drawn[:, :num_tokens], next_token=drawn[:, num_tokens])


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``accepted`` int64 [R]: leading drafted tokens that stand; ``next_token_ids`` int64 [R]."""

    accepted: Tensor
    next_token_ids: Tensor


def verify_greedy(target_ids: Tensor, draft_ids: Tensor, lengths: Tensor) -> Acceptance:
    """Acceptance at temperature 0: a token stands as long as it is the target's own choice.

    ``target_ids`` int64 [R, N + 1] are the target's argmax after the anchor and after each drafted
    token, ``draft_ids`` int64 [R, N], of which row r proposes the first ``lengths[r]``.
    """
    accepted = count_leading(target_ids[:, :-1] == draft_ids, lengths)
    next_token_ids = target_ids.gather(1, accepted[:, None]).squeeze(1)
    return Acceptance(accepted, next_token_ids)


def verify_sampled(
    p: Tensor, q: Tensor, draft_ids: Tensor, lengths: Tensor, uniforms: Uniforms
) -> Acceptance:
    """Acceptance at a temperature above 0.

    ``draft_ids`` int64 [R, N], of which row r proposes the first ``lengths[r]``. The next token
    comes from the residual of the first rejected position, or from p itself when all stand.
    """
    p_drafted, q_drafted = (
        x.gather(2, draft_ids[..., None]).squeeze(2).double() for x in (p[:, :-1], q)
    )
    # u < min(1, p / q) without the division: exact, and a token with p = 0 never stands.
    accepted = count_leading(uniforms.accept * q_drafted < p_drafted, lengths)
    rows = torch.arange(len(p), device=p.device)
    rejected = (accepted < lengths)[:, None]
    # After full acceptance there is no q: nothing is subtracted, and the bonus comes from p.
    at = accepted.clamp(max=max(q.shape[1] - 1, 0))
    q_next = q[rows, at] * rejected if q.shape[1] else torch.zeros_like(p[:, 0])
    weights = compute_residual(p[rows, accepted], q_next)
    return Acceptance(accepted, draw_inverse_cdf(weights, uniforms.next_token))


def compute_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p / q) [..., V]: the probability that a token drawn from q stands; 1 where q = 0."""
    return torch.where(p < q, p / q, 1.0)


def compute_residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0) [..., V], not normalised: what is drawn from after a rejection.

    It is all zero only where p <= q everywhere, so p = q but for rounding; a rejection has
    probability 0 there, and p stands in for the residual so that the draw stays defined.
    """
    residual = (p - q).clamp(min=0)
    empty = ~residual.any(-1, keepdim=True)
    return torch.where(empty, p, residual)


def count_leading(stands_RN: Tensor, lengths_R: Tensor) -> Tensor:
    """Leading True of each row, int64 [R], at most its length [R]."""
    token = torch.arange(stands_RN.shape[1], device=stands_RN.device)
    proposed = token < lengths_R[:, None]
    return (stands_RN & proposed).long().cumprod(1).sum(1)
