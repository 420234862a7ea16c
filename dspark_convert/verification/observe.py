"""What a decode run shows only while it runs: p and q of visited positions.

Shapes: R rows, N drafted tokens, V target vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.records import Observation
from dspark_convert.runtime.rejection import compute_acceptance, compute_residual


class RunObserver:
    """Collects, round by round, what ``lossless-sampling`` and ``acceptance`` need.

    A position is visited when a token was drafted for it and everything before it was accepted.
    """

    def __init__(self, draft: DraftModel, target_vocab_size: int, seed: int) -> None:
        self._draftable = draftable_tokens(draft, target_vocab_size)
        self._generator = torch.Generator(draft.device).manual_seed(seed)
        self._outside: list[Tensor] = []
        self._positions_of_tokens: list[Tensor] = []
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
        self._positions_of_tokens.append(self._transform(seen, p))
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
        """Largest error of the law of a committed token, float64."""
        return float(torch.stack(self._law_errors).max()) if self._law_errors else None

    @property
    def uniform_values(self) -> Tensor:
        """One value in [0, 1) per committed token, uniform if and only if tokens follow p."""
        if not self._positions_of_tokens:
            return torch.empty(0, dtype=torch.float64)
        return torch.cat(self._positions_of_tokens).cpu()

    def _mass_outside(self, seen: Observation, visited: Tensor) -> Tensor:
        if self._draftable.all():
            return torch.zeros(int(visited.sum()), device=visited.device)
        if seen.target_probabilities is None:
            chosen = seen.target_logits[:, :-1].argmax(-1)[visited]
            return (~self._draftable[chosen]).float()
        return seen.target_probabilities[:, :-1][visited][:, ~self._draftable].sum(-1)

    def _transform(self, seen: Observation, p: Tensor) -> Tensor:
        """Randomised probability integral transform of every committed token.

        With F the running sum of p, F(token - 1) + U p(token) is uniform if the token follows p
        given the tokens before it, and then independent of them.
        """
        slots = torch.arange(p.shape[1], device=p.device)
        drafted = torch.cat((seen.draft_ids, seen.next_token_ids[:, None]), 1)
        tokens = drafted.scatter(1, seen.accepted[:, None], seen.next_token_ids[:, None])
        committed = slots <= seen.accepted[:, None]
        tokens, mass = tokens[committed], p[committed].double()
        mass = mass / mass.sum(-1, keepdim=True)
        own = mass.gather(1, tokens[:, None]).squeeze(1)
        below = mass.cumsum(-1).gather(1, tokens[:, None]).squeeze(1) - own
        shift = torch.rand(
            own.shape, generator=self._generator, device=own.device, dtype=torch.float64
        )
        return (below + shift * own).clamp(0.0, 1.0)


def law_error(p: Tensor, q: Tensor) -> Tensor:
    """Largest difference, float64, between the law of a committed token and p.

    ``p`` and ``q`` [positions, V]. A token is drafted from q and accepted with min(1, p/q), else
    drawn from the residual; the law that results is written out for every token (DESIGN, Replay).
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
