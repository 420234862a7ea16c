"""A draft inside its DeepSeek-V4 target: the config keys it needs, and what is reported of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from dspark_convert.schemas.base import OwnDocument, SourceDocument

MAX_EXPERTS = 65_536
"""More than any model has; each is a tensor to look for."""


class BundledConfig(SourceDocument):
    """The keys of the target's ``config.json`` that concern the draft inside it."""

    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    q_lora_rank: int = Field(gt=0)
    o_groups: int = Field(gt=0)
    o_lora_rank: int = Field(gt=0)
    moe_intermediate_size: int = Field(gt=0)
    n_routed_experts: int = Field(gt=0, le=MAX_EXPERTS)
    n_shared_experts: int | None = Field(default=None, ge=0)
    hc_mult: int = Field(gt=0)
    dspark_block_size: int = Field(gt=0)
    dspark_noise_token_id: int = Field(ge=0)
    dspark_target_layer_ids: list[int] = Field(min_length=1)
    dspark_markov_rank: int = Field(ge=0)
    dspark_markov_head_type: str | None = None
    dspark_n_routed_experts: int | None = Field(default=None, gt=0, le=MAX_EXPERTS)
    enable_confidence_head: bool | None = None
    n_mtp_layers: int | None = None
    num_nextn_predict_layers: int | None = None


class BundledDraft(OwnDocument):
    """A bundled draft. Its draft ids are target ids; embedding and head are the target's."""

    generation: Literal["v4", "v4.1"]
    stages: NonNegativeInt = Field(description="counted from the tensors: mtp.0 .. mtp.{n-1}")
    block_size: PositiveInt
    mask_token_id: NonNegativeInt
    target_layer_ids: tuple[int, ...] = Field(
        description="v4: the feature after this layer; v4.1: the stream that enters it"
    )
    markov_rank: NonNegativeInt
    markov_head_type: str
    confidence_head: bool
    routed_experts: PositiveInt
    tensors: NonNegativeInt = Field(description="of the draft, scales included")
    weight_bytes: NonNegativeInt
    dtypes: dict[str, int] = Field(description="bytes by stored dtype")
