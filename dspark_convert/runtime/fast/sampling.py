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
from dspark_convert.runtime.fast.runners import compile_function
from dspark_convert.runtime.propose import Chain, run_chain
from dspark_convert.runtime.rejection import Acceptance, Uniforms, compute_residual, count_leading
from dspark_convert.runtime.sampling import draw_gumbel, one_hot, scale_logits
from dspark_convert.runtime.vocabulary import DraftVocabulary

COLDEST = 0.05
"""Below this temperature logits that are scaled before their maximum is known lose digits."""

# The compiler must round logits where the modules do, or tokens are drawn from other logits than
# those that are stored as q: it may not skip a rounding, nor merge a product and a sum.
ROUNDED = {"emulate_precision_casts": True, "pattern_matcher": False}


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


class BlockSampler:
    """``run_chain`` with ``NarrowChoice``, then ``verify_narrow``, each as one function.

    On a GPU the functions are compiled. The random bits are drawn before they are called, because
    compiled code cannot use a generator.
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
        self.draft, self.vocabulary, self.generator = draft, vocabulary, generator
        new: Any = draft.lm_head.weight.new_empty
        self.temperature = new((), dtype=torch.float32).fill_(temperature)
        self.draft_bits = new(num_tokens, rows, draft.config.draft_vocab_size, dtype=torch.int32)
        self.next_bits = new(rows, vocabulary.target_size, dtype=torch.int32)
        self._draw: Any = draw_chain
        self._verify: Any = verify_block
        if draft.device.type == "cuda":
            self._draw = compile_function(draw_chain, ROUNDED)
            self._verify = compile_function(verify_block)

    @staticmethod
    def serves(temperature: float) -> bool:
        """Whether logits that are not scaled from their maximum are exact enough."""
        return temperature >= COLDEST

    def draw(self, hidden_RBH: Tensor, anchor_ids_R: Tensor) -> Chain:
        """See ``propose.run_chain``."""
        self.draft_bits.random_(generator=self.generator)
        chain: Chain = self._draw(
            self.draft, self.vocabulary, hidden_RBH, anchor_ids_R, self.draft_bits, self.temperature
        )
        return chain

    def verify(self, p_logits_RQV: Tensor, chain: Chain, lengths_R: Tensor) -> Acceptance:
        """See ``rejection.verify_sampled``; ``chain`` is one that was drawn here."""
        self.next_bits.random_(generator=self.generator)
        rows, tokens = chain.target_ids.shape
        acceptance: Acceptance = self._verify(
            p_logits_RQV,
            chain.biased_logits[:, self.draft.first_predicting_slot :],
            chain.target_ids,
            lengths_R,
            self.vocabulary,
            Uniforms.draw(rows, tokens, self.generator).accept,
            self.next_bits,
            self.temperature,
        )
        return acceptance


def draw_chain(
    draft: DraftModel,
    vocabulary: DraftVocabulary,
    hidden_RBH: Tensor,
    anchor_ids_R: Tensor,
    bits_NRD: Tensor,
    temperature: Tensor,
) -> Chain:
    """``run_chain`` of N tokens, drawn by the Gumbel-max trick; see ``to_exponential`` for bits."""

    def choose(token: int, logits_RD: Tensor) -> Tensor:
        draft_ids = draw_token(logits_RD, bits_NRD[token], temperature)
        return vocabulary.map_draft_to_target(draft_ids)

    return run_chain(
        draft,
        hidden_RBH,
        anchor_ids_R,
        choose,
        num_tokens=len(bits_NRD),
        vocabulary=vocabulary,
    )


def verify_block(
    p_logits_RQV: Tensor,
    q_logits_RND: Tensor,
    target_ids_RN: Tensor,
    lengths_R: Tensor,
    vocabulary: DraftVocabulary,
    accept_RN: Tensor,
    bits_RV: Tensor,
    temperature: Tensor,
) -> Acceptance:
    """``verify_narrow`` of logits, reading all of them only for their sums.

    ``accept`` are uniform numbers; see ``to_exponential`` for the bits.
    """
    p_scaled, q_scaled = (x.float() / temperature for x in (p_logits_RQV, q_logits_RND))
    p_sums, q_sums = log_sum(p_scaled), log_sum(q_scaled)
    draft_ids = vocabulary.map_target_to_draft(target_ids_RN)
    p_drafted = p_scaled[:, :-1].gather(2, target_ids_RN[..., None]).squeeze(2) - p_sums[:, :-1]
    q_drafted = q_scaled.gather(2, draft_ids[..., None]).squeeze(2) - q_sums
    stands = accept_RN * q_drafted.exp().double() < p_drafted.exp().double()
    accepted = count_leading(stands, lengths_R)
    rows = torch.arange(len(accepted), device=accepted.device)
    p = (p_scaled[rows, accepted] - p_sums[rows, accepted, None]).exp()
    at = accepted.clamp(max=target_ids_RN.shape[1] - 1)
    q = (q_scaled[rows, at] - q_sums[rows, at, None]).exp()
    # After full acceptance nothing is subtracted, and the bonus comes from p.
    known = (accepted < lengths_R)[:, None] & (vocabulary.draft_ids >= 0)
    q = torch.where(known, q[:, vocabulary.draft_ids.clamp(min=0)], 0.0)
    weights = compute_residual(p, q)
    return Acceptance(accepted, find_largest(weights.log() - to_exponential(bits_RV).log()))


def draw_token(logits: Tensor, bits: Tensor, temperature: Tensor) -> Tensor:
    """Ids int64 [...] drawn from ``softmax(logits / temperature)`` by the Gumbel-max trick."""
    return find_largest(logits.float() / temperature - to_exponential(bits).log())


def to_exponential(bits: Tensor) -> Tensor:
    """Exponential numbers, fp32, from 31 random bits, int32: in steps of 2^-31 near 0."""
    return -torch.log1p((bits.float() + 0.5) * -(2.0**-31))


def log_sum(x: Tensor) -> Tensor:
    """``x.logsumexp(-1)`` where something is finite, in the form that takes one pass."""
    peak = x.amax(-1, keepdim=True)
    total = (x - peak).exp().sum(-1, keepdim=True)
    return (peak + total.log()).squeeze(-1)


def find_largest(x: Tensor) -> Tensor:
    """``x.argmax(-1)`` of fp32, which the compiler leaves to one program for each row.

    It splits a maximum: of keys that compare as the value does, then the smaller column first.
    """
    bits = x.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    column = torch.arange(x.shape[-1], device=x.device)
    # The compiler computes with columns in 32 bits.
    largest = (ordered * 2**32 + (2**31 - 1 - column)).amax(-1)
    return 2**31 - 1 - largest % 2**32
