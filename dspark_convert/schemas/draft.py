"""``DraftConfig``: what a draft *is*, whatever format it was published in."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from dspark_convert.schemas.base import FloatName, OwnDocument

MarkovHeadType = Literal["vanilla", "gated", "rnn"]
LayerType = Literal["full_attention", "sliding_attention"]

MAX_LAYERS = 1024
"""More than any decoder has; a config with more is wrong, and each layer would cost memory."""


MAX_BLOCK_SIZE = 4096
"""Far more slots than any draft was trained with."""

MAX_VOCABULARY = 2**24
"""Far more tokens than any tokenizer has; tables of this size are held in memory."""


class Layout(str, Enum):
    """What the slots of a block predict: "anchor-first" or "1+N".

    ``anchor_first``: every slot is sampled, slot k predicts position anchor + k + 1.
    ``bonus_anchor``: slot 0 is the anchor and is not sampled, slot k predicts anchor + k.
    """

    ANCHOR_FIRST = "anchor_first"
    BONUS_ANCHOR = "bonus_anchor"


class DraftConfig(OwnDocument):
    """A draft model, independent of the spelling of any format.

    Every field is decided: nothing here means "absent, so some default". ``target_layer_ids`` count
    the target's decoder layers (-1 is the embedding output), whatever the source counted.
    """

    decoder: str = Field(default="qwen3", description="the body of the draft, by name")
    decoder_parameters: dict[str, Any] = Field(
        default={}, description="what only a body of this name has; empty for qwen3"
    )
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: int = Field(gt=0, le=MAX_LAYERS)
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    hidden_act: str
    rms_norm_eps: float = Field(gt=0)
    max_position_embeddings: PositiveInt
    attention_bias: bool
    layer_types: tuple[LayerType, ...]
    sliding_window: PositiveInt | None = Field(description="null when no layer slides")
    sliding_window_non_causal: bool = Field(
        description="sliding layers see the whole block, not only the slots before"
    )
    rope_parameters: dict[str, Any] = Field(
        description="rope_theta, rope_type and what that type needs, as transformers 5 spells them"
    )

    vocab_size: int = Field(
        gt=0, le=MAX_VOCABULARY, description="rows of embed_tokens and markov_w1"
    )
    draft_vocab_size: int = Field(
        gt=0, le=MAX_VOCABULARY, description="rows of lm_head and markov_w2"
    )
    mask_token_id: NonNegativeInt

    layout: Layout
    block_size: int = Field(
        gt=0, le=MAX_BLOCK_SIZE, description="slots of a block, the anchor's included"
    )
    target_layer_ids: tuple[int, ...]
    target_hidden_size: PositiveInt | None = Field(description="null: the same as hidden_size")
    num_target_layers: PositiveInt | None = Field(description="null: not known")

    markov_rank: NonNegativeInt = Field(description="0: no Markov head")
    markov_head_type: MarkovHeadType
    enable_confidence_head: bool
    confidence_head_with_markov: bool

    num_anchors: PositiveInt | None = Field(
        default=None, description="anchors per training text; null: not known; only DeepSpec asks"
    )
    dtype: FloatName = Field(description="that of most weights")

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens that a block proposes: B anchor-first, B - 1 in the 1+N layout."""
        return self.block_size - (self.layout is Layout.BONUS_ANCHOR)

    @property
    def reduced_vocabulary(self) -> bool:
        """Whether draft ids need ``draft_id_to_target_id`` to become target ids."""
        return self.draft_vocab_size < self.vocab_size

    @property
    def feature_size(self) -> int:
        """Columns of ``fc.weight``: target layers x target hidden size."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    @property
    def slides(self) -> bool:
        """Whether any layer has a sliding window."""
        return "sliding_attention" in self.layer_types
