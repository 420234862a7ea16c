"""What a decode run shows only while it runs: p and q of visited positions.

Shapes: R rows, N drafted tokens, V target vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.records import Observation
from dspark_convert.runtime.rejection import compute_acceptance, compute_residual

ROUNDING = 1e-3
"""If p falls short of q by this fraction, there is no residual, whatever the order of the sum."""


class RunObserver:
    """Collects, round by round, what ``lossless-sampling`` and ``acceptance`` need.

    A position is visited when a token was drafted for it and everything before it was accepted.
    """

    def __init__(self, draft: DraftModel, target_vocab_size: int, seed: int) -> None:
        self._draftable = draftable_tokens(draft, target_vocab_size)
        self._generator = torch.Generator(draft.device).manual_seed(seed)
        self._outside: list[Tensor] = []
        self._values: list[Tensor] = []
        self._impossible: list[Tensor] = []
        self._law_errors: list[Tensor] = []
        self.positions = 0
        """Visited positions that had both p and q."""

    def __call__(self, seen: Observation) -> None:
        """Take in one round."""
        num_tokens = seen.draft_ids.shape[1]
        slots = torch.arange(num_tokens, device=seen.draft_ids.device)
        visited = slots < torch.minimum(seen.lengths, seen.accepted + 1)[:, None]
        self._outside.append(self._mass_outside(seen, visited))
        if seen.target_probabilities is None or seen.draft_probabilities is None:
            return
        p, q = seen.target_probabilities, seen.draft_probabilities
        self._values.append(self._transform(seen, p, q, visited))
        if visited.any():
            self.positions += int(visited.sum())
            self._law_errors.append(law_error(p[:, :-1][visited], q[visited]))

    @property
    def mass_outside(self) -> float | None:
        """Mean mass of the target's sampling distribution on tokens that the draft lacks."""
        masses = torch.cat(self._outside) if self._outside else torch.empty(0)
        return float(masses.double().mean()) if masses.numel() else None

    @property
    def max_law_error(self) -> float | None:
        """Largest error of the distribution of a committed token, float64."""
        return float(torch.stack(self._law_errors).max()) if self._law_errors else None

    @property
    def uniform_values(self) -> Tensor:
        """Values in [0, 1), independent and uniform if every random decision followed its law."""
        if not self._values:
            return torch.empty(0, dtype=torch.float64)
        return torch.cat(self._values).cpu()

    @property
    def impossible(self) -> int:
        """Decisions of probability zero; a single one is a fault."""
        return int(torch.cat(self._impossible).sum()) if self._impossible else 0

    def _mass_outside(self, seen: Observation, visited: Tensor) -> Tensor:
        if self._draftable.all():
            return torch.zeros(int(visited.sum()), device=visited.device)
        if seen.target_probabilities is None:
            chosen = seen.target_logits[:, :-1].argmax(-1)[visited]
            return (~self._draftable[chosen]).float()
        return seen.target_probabilities[:, :-1][visited][:, ~self._draftable].sum(-1)

    def _transform(self, seen: Observation, p: Tensor, q: Tensor, visited: Tensor) -> Tensor:
        """One value in [0, 1) for each random decision, uniform if it followed its distribution.

        Drafted tokens must follow q, their acceptance min(1, p / q), and the token after them the
        residual, or p if all are accepted. Each distribution is given by what was decided before,
        so the values are also independent.
        """
        stands = (torch.arange(q.shape[1], device=q.device) < seen.accepted[:, None])[visited]
        drafted, p_drafted, q_drafted = seen.draft_ids[visited], p[:, :-1][visited], q[visited]
        rows = torch.arange(len(p), device=p.device)
        p_next = p[rows, seen.accepted]
        q_next = torch.zeros_like(p_next)
        rejected = seen.accepted < seen.lengths
        q_next[rejected] = q[rows[rejected], seen.accepted[rejected]]
        law_of_next = compute_residual(p_next, q_next)
        self._impossible += [
            _without_mass(q_drafted, drafted),
            stands & _without_mass(p_drafted, drafted),
            # Beyond rounding: the round computed p and q by itself.
            _without_mass(p_next - (1 - ROUNDING) * q_next, seen.next_token_ids),
        ]
        return torch.cat(
            (
                self._spread(q_drafted, drafted, q_drafted - p_drafted),
                self._spread_verdicts(p_drafted, q_drafted, drafted, stands),
                self._spread(law_of_next, seen.next_token_ids, q_next - p_next),
            )
        )

    def _spread(self, law: Tensor, tokens: Tensor, order: Tensor) -> Tensor:
        """Randomised probability integral transform of tokens [n] under distributions [n, V].

        With F the running sum of the distribution: F before the token plus U times its own mass.
        Tokens are sorted by falling ``order``, q - p, so what a wrong decision would draw too often
        is all at one end.
        """
        mass, tokens = law.double(), tokens[:, None]
        mass = mass / mass.sum(-1, keepdim=True)
        own, own_order = mass.gather(1, tokens).squeeze(1), order.gather(1, tokens)
        ids = torch.arange(mass.shape[-1], device=mass.device)
        before = (order > own_order) | ((order == own_order) & (ids < tokens))
        return ((mass * before).sum(-1) + self._uniform(own) * own).clamp(0.0, 1.0)

    def _spread_verdicts(self, p: Tensor, q: Tensor, tokens: Tensor, stands: Tensor) -> Tensor:
        """If a token is accepted, a part of [0, a) with a = min(1, p / q); else of [a, 1)."""
        p_token, q_token = (x.gather(1, tokens[:, None]).squeeze(1).double() for x in (p, q))
        accept = compute_acceptance(p_token, q_token)
        u = self._uniform(accept)
        return torch.where(stands, u * accept, accept + u * (1 - accept))

    def _uniform(self, like: Tensor) -> Tensor:
        return torch.rand(
            like.shape, generator=self._generator, device=like.device, dtype=torch.float64
        )


def _without_mass(law: Tensor, tokens: Tensor) -> Tensor:
    """Whether tokens [n] have probability zero under distributions [n, V]."""
    return law.gather(1, tokens[:, None]).squeeze(1) <= 0


def law_error(p: Tensor, q: Tensor) -> Tensor:
    """Largest difference, float64, between the distribution of a committed token and p.

    ``p`` and ``q`` [positions, V]. A token is drafted from q and accepted with min(1, p/q), else
    drawn from the residual; the resulting distribution is computed for every token.
    """
    p, q = (x.double() / x.double().sum(-1, keepdim=True) for x in (p, q))
    accepted = q * compute_acceptance(p, q)
    residual = compute_residual(p, q)
    residual = residual / residual.sum(-1, keepdim=True)
    law = accepted + (1 - accepted.sum(-1, keepdim=True)) * residual
    return (law - p).abs().max()


def draftable_tokens(draft: DraftModel, target_vocab_size: int) -> Tensor:
    """Which target tokens the draft can propose, bool [V]."""
    ids = draft.map_draft_to_target(
        torch.arange(draft.config.draft_vocab_size, device=draft.device)
    )
    draftable = torch.zeros(target_vocab_size, dtype=torch.bool, device=draft.device)
    draftable[ids[ids < target_vocab_size]] = True
    return draftable
