"""A round of the fast path as an observer sees it, computed independently of the round.

p and q are computed from the logits by the functions of the plain path, not taken from the round,
so whoever watches the committed tokens checks the arithmetic of the round.

Shapes: R rows that are working, N drafted tokens of a round, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark_convert.runtime.drafting import require_finite
from dspark_convert.runtime.fast.rounds import RoundOutput, Rounds
from dspark_convert.runtime.progress import Row
from dspark_convert.runtime.records import Observation
from dspark_convert.runtime.sampling import compute_probabilities, one_hot, scale_logits


def describe_round(
    rounds: Rounds, output: RoundOutput, working: Sequence[Row | None]
) -> Observation:
    """What ``decode`` would show of a round.

    ``working`` holds the prompts of the output's rows as they stood before it; rows with None are
    left out.

    Raises ``DraftError`` (``outputs-not-finite``).
    """
    assert output.evidence is not None, "the rounds were built to be observed"
    rows = [row for row in working if row is not None]
    slots = [slot for slot, row in enumerate(working) if row is not None]
    picked = torch.tensor(slots, device=output.counts.device)
    counts, logits = output.counts[picked], output.evidence.target_logits[picked]
    require_finite(output.evidence.draft_logits[picked], rounds.draft_model)
    p, q, draft_ids = None, None, counts[:, 3:]
    if not rounds.options.sampling.greedy:
        p = compute_probabilities(logits, rounds.options.sampling)
        q = _draft_probabilities(rounds, output.evidence.draft_logits[picked], draft_ids)
    return Observation(
        prompts=tuple(row.prompt for row in rows),
        anchor_positions=tuple(row.anchor_position for row in rows),
        target_logits=logits,
        target_probabilities=p,
        draft_probabilities=q,
        draft_ids=draft_ids,
        lengths=counts[:, 0],
        accepted=counts[:, 1],
        next_token_ids=counts[:, 2],
    )


def _draft_probabilities(rounds: Rounds, logits_RND: Tensor, draft_ids_RN: Tensor) -> Tensor:
    """q [R, N, V], as ``Drafter`` has it: temperature only; one-hot for greedy drafts."""
    if rounds.options.draft_sampling == "greedy":
        return one_hot(draft_ids_RN, rounds.vocabulary.target_size, torch.float32)
    q = scale_logits(logits_RND, rounds.options.temperature).softmax(-1)
    return rounds.vocabulary.scatter_probabilities(q)
