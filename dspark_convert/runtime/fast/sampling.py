"""Drawing and rejecting over the draft's own vocabulary.

The scatter formulation writes every drafted token's logits into V columns, and samples there. Here
tokens are drawn among the D columns that the draft has, and only the one row of q that a residual
needs is scattered. The distributions are the same: the columns that are left out have probability
0.

Shapes: R rows, N drafted tokens, D draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.heads import MarkovHead
from dspark_convert.runtime.propose import Chain, compute_confidence
from dspark_convert.runtime.rejection import Acceptance, Uniforms, compute_residual, count_leading
from dspark_convert.runtime.sampling import draw_gumbel, one_hot, scale_logits
from dspark_convert.runtime.vocabulary import DraftVocabulary

try:
    from dspark_convert.runtime.fast import sampling_kernels
except ImportError:  # Triton comes with PyTorch for CUDA on Linux only
    sampling_kernels = None  # type: ignore[assignment]

COLDEST = 0.05
"""Below this temperature logits that are scaled before their maximum is known lose digits."""


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
) -> Acceptance:
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
    return Acceptance(accepted, draw_gumbel(weights.log(), generator))


class FusedSampler:
    """``run_chain`` with ``NarrowChoice``, then ``verify_narrow``, each logit read once by kernels.

    The logits, biased, stay inside.
    """

    def __init__(
        self,
        draft: DraftModel,
        vocabulary: DraftVocabulary,
        temperature: float,
        generator: torch.Generator,
        *,
        rows: int,
        num_tokens: int,
    ) -> None:
        self.draft, self.vocabulary = draft, vocabulary
        self.temperature, self.generator = temperature, generator
        self.first = draft.first_predicting_slot
        self.table = vocabulary.draft_id_to_target_id
        new: Any = draft.lm_head.weight.new_zeros
        self.biased = new(rows, self.first + num_tokens, draft.config.draft_vocab_size)
        self.keys = new(num_tokens, rows, dtype=torch.int64)

    @staticmethod
    def serves(draft: DraftModel, temperature: float) -> bool:
        """Whether the kernels are there, and exact enough for the dtype and the temperature."""
        half = draft.dtype in (torch.bfloat16, torch.float16)
        there = sampling_kernels is not None and draft.device.type == "cuda"
        return there and half and temperature >= COLDEST

    def draw(self, hidden_RBH: Tensor, anchor_ids_R: Tensor) -> Chain:
        """See ``propose.run_chain``; the biased logits are overwritten by the next round."""
        draft, first, num_tokens = self.draft, self.first, len(self.keys)
        hidden = hidden_RBH[:, : first + num_tokens]
        base = draft.compute_draft_logits(hidden)
        self.seeds = torch.randint(
            2**62, (2,), generator=self.generator, device=draft.device, dtype=torch.int64
        )
        self.keys.fill_(sampling_kernels.NO_KEY)
        state = None
        for slot in range(first + num_tokens):
            latents, latent_ids, state = self._mix(slot, hidden, anchor_ids_R, state)
            if slot >= first:
                self._draw_token(slot - first, base, latents, latent_ids)
        target_ids = self._drawn_ids(self.keys).T
        anchors = anchor_ids_R[:, None]
        previous_ids = torch.cat((anchors.expand(-1, first + 1), target_ids[:, :-1]), 1)
        return Chain(
            base_logits=base,
            biased_logits=self.biased,
            previous_ids=previous_ids,
            target_ids=target_ids,
            confidence_logits=compute_confidence(draft, hidden, previous_ids),
        )

    def verify(self, p_logits_RQV: Tensor, chain: Chain, lengths_R: Tensor) -> Acceptance:
        """See ``rejection.verify_sampled``; ``chain`` is the last one drawn."""
        kernels, temperature = sampling_kernels, self.temperature
        q_logits = self.biased[:, self.first :]
        ids, draft_ids = chain.target_ids, kernels.columns_of(self.keys).T
        q_sums = kernels.sum_exponentials(q_logits, temperature)
        p_sums = kernels.sum_exponentials(p_logits_RQV, temperature)
        p_drafted = self._probability(p_logits_RQV[:, :-1], ids, p_sums)
        q_drafted = self._probability(q_logits, draft_ids, q_sums)
        uniforms = Uniforms.draw(len(ids), ids.shape[1], self.generator)
        accepted = count_leading(uniforms.accept * q_drafted < p_drafted, lengths_R)
        next_ids = kernels.draw_next(
            p_logits_RQV,
            p_sums,
            q_logits,
            q_sums,
            None if self.table is None else self.vocabulary.draft_ids,
            self.vocabulary.usable,
            accepted,
            lengths_R,
            self.seeds,
            temperature,
        )
        return Acceptance(accepted, next_ids)

    def _mix(
        self, slot: int, hidden: Tensor, anchor_ids: Tensor, state: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What ``sampling_kernels.draw`` takes as latents and their ids; and the next state."""
        head = self.draft.markov_head
        if head is None:
            return None, None, None
        if type(head) is MarkovHead:
            return head.markov_w1.weight, anchor_ids, None
        drawn = slot - self.first - 1
        previous = anchor_ids if drawn < 0 else self._drawn_ids(self.keys[drawn])
        latents, state = head.mix(head.embed(previous), hidden[:, slot], state)
        return latents, None, state

    def _draw_token(
        self, token: int, base: Tensor, latents: Tensor | None, latent_ids: Tensor | None
    ) -> None:
        head, slot = self.draft.markov_head, self.first + token
        sampling_kernels.draw(
            base[:, slot],
            latents,
            latent_ids,
            None if head is None else head.markov_w2.weight,
            self.table,
            self.vocabulary.usable,
            self.biased[:, slot],
            self.keys,
            token,
            self.seeds,
            self.temperature,
        )

    def _drawn_ids(self, keys: Tensor) -> Tensor:
        """Target ids, of the shape of ``keys``."""
        return self.vocabulary.map_draft_to_target(sampling_kernels.columns_of(keys))

    def _probability(
        self, logits_RND: Tensor, ids_RN: Tensor, sums: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Of ids [R, N], float64, from logits [R, N, D] and their sums [R, N or more]."""
        peaks, log_totals = (each[:, : ids_RN.shape[1]] for each in sums)
        chosen = logits_RND.gather(2, ids_RN[..., None]).squeeze(2).float()
        return ((chosen - peaks) / self.temperature - log_totals).exp().double()
