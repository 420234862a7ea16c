"""The small heads after the backbone: Markov (three kinds) and confidence.

With e = markov_w1[prev] and h = backbone hidden of the slot (speculators 0.9.0,
``models/dspark/model_definitions.py``):

    vanilla   bias = markov_w2 e
    gated     bias = markov_w2 (sigmoid(gate_proj [h; e]) * e)
    rnn       [g; c; o] = joint_proj [state; e; h];  bias = markov_w2 tanh(o)
              state <- sigmoid(g) * state + (1 - sigmoid(g)) * tanh(c), zero at the start of a block

Every call is one slot of any number of blocks at once: [...] are the blocks, r the Markov rank,
H hidden, D draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark_convert.schemas.draft import DraftConfig


class MarkovHead(nn.Module):
    """The vanilla head, and what the others share.

    ``markov_w1`` is indexed by target ids, even for tokens that were just drafted; ``markov_w2``
    has a row for each draft id.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocab_size, bias=False)

    def embed(self, previous_ids: Tensor) -> Tensor:
        """The embedding e [..., r] of previous tokens, target ids int64 [...]."""
        embedding: Tensor = self.markov_w1(previous_ids)
        return embedding

    def forward(
        self, embedding: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The bias [..., D] of one slot, and the state for the next one.

        ``embedding`` [..., r], ``hidden`` [..., H]; ``state`` is None at the start of a block.
        """
        latent, state = self.mix(embedding, hidden, state)
        return self.markov_w2(latent), state

    def mix(
        self, embedding: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What ``markov_w2`` is applied to, [..., r], and the next state."""
        return embedding, state


class GatedMarkovHead(MarkovHead):
    """The embedding is gated by the slot's hidden state."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        rank = config.markov_rank
        self.gate_proj = nn.Linear(config.hidden_size + rank, rank)

    def mix(
        self, embedding: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Gate the embedding [..., r] with the hidden state [..., H]; there is no state."""
        gate = self.gate_proj(torch.cat((hidden, embedding), dim=-1)).sigmoid()
        return gate * embedding, state


class RnnMarkovHead(MarkovHead):
    """A gated recurrence over the slots of a block; it takes its first step at slot 0."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        rank = config.markov_rank
        self.joint_proj = nn.Linear(2 * rank + config.hidden_size, 3 * rank)

    def mix(
        self, embedding: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One step of the recurrence: latent and next state [..., r], zeros before the first."""
        if state is None:
            state = torch.zeros_like(embedding)
        joint = self.joint_proj(torch.cat((state, embedding, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = gate.sigmoid()
        return output.tanh(), gate * state + (1 - gate) * candidate.tanh()


class ConfidenceHead(nn.Module):
    """Predicts, before the sigmoid, how likely a slot's token is to be accepted."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        rank = config.markov_rank if config.confidence_head_with_markov else 0
        self.proj = nn.Linear(config.hidden_size + rank, 1)
        self.with_markov = config.confidence_head_with_markov

    def forward(self, hidden: Tensor, embedding: Tensor | None) -> Tensor:
        """fp32 logits [...] of ``hidden`` [..., H] and the Markov ``embedding`` [..., r].

        The projection is fp32 whatever dtype the weights are stored in, as in vLLM
        (``model_executor/models/qwen3_dspark.py``).
        """
        if self.with_markov:
            assert embedding is not None
            hidden = torch.cat((hidden, embedding), dim=-1)
        weight, bias = self.proj.weight.float(), self.proj.bias.float()
        return functional.linear(hidden.float(), weight, bias).squeeze(-1)


_MARKOV_HEADS: dict[str, type[MarkovHead]] = {
    "vanilla": MarkovHead,
    "gated": GatedMarkovHead,
    "rnn": RnnMarkovHead,
}


def build_markov_head(config: DraftConfig) -> MarkovHead | None:
    """The Markov head that a config describes; None for rank 0."""
    return _MARKOV_HEADS[config.markov_head_type](config) if config.markov_rank else None
