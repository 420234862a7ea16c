"""The config documents that others write: flat (dense) and nested (speculators).

Only types are validated here; what is required, what it means and whether two spellings agree is
decided in ``dspark_convert.formats``. ``null`` and absent are the same in all of these files.
"""

from __future__ import annotations

from pydantic import Field

from dspark_convert.schemas.base import SourceDocument


class RopeKeys(SourceDocument):
    """``rope_parameters`` and its older form ``rope_scaling``; a type may need further keys."""

    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None


class AttentionKeys(SourceDocument):
    """Window and causality of the block, in the spellings of DFlash-derived writers."""

    is_causal: bool | None = None
    causal: bool | None = None
    dflash_query_causal: bool | None = None
    use_swa: bool | None = None
    swa_window_size: int | None = None


class DecoderKeys(AttentionKeys):
    """The Qwen3 decoder: top level when dense, ``transformer_layer_config`` in speculators."""

    model_type: str | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str | None = None
    rms_norm_eps: float | None = None
    max_position_embeddings: int | None = None
    attention_bias: bool | None = None
    layer_types: list[str] | None = None
    max_window_layers: int | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    rope_parameters: RopeKeys | None = None
    rope_theta: float | None = None
    rope_scaling: RopeKeys | None = None
    vocab_size: int | None = None
    tie_word_embeddings: bool | None = None


class LayerIdKeys(SourceDocument):
    """The target layers that a draft reads, in every spelling that we accept."""

    target_layer_ids: list[int] | None = Field(
        default=None, description="feature after this decoder layer; -1: the embedding"
    )
    aux_hidden_state_layer_ids: list[int] | None = Field(
        default=None, description="number of decoder layers before the feature; 0: the embedding"
    )
    eagle_aux_hidden_state_layer_ids: list[int] | None = Field(
        default=None, description="the same as aux_hidden_state_layer_ids"
    )


class HeadKeys(SourceDocument):
    """Block, vocabulary and heads: at top level, or in the blocks of DFlash-derived writers."""

    block_size: int | None = None
    mask_token_id: int | None = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    num_target_layers: int | None = None
    sample_from_anchor: bool | None = None
    dspark_bonus_anchor: bool | None = None
    query_zero_predicts_next: bool | None = None
    shift_label: bool | None = None
    sliding_window_non_causal: bool | None = None
    markov_rank: int | None = None
    markov_head_type: str | None = None
    enable_confidence_head: bool | None = None
    use_confidence_head: bool | None = None
    confidence_head_with_markov: bool | None = None
    num_anchors: int | None = None


class BlockKeys(HeadKeys, LayerIdKeys, AttentionKeys):
    """``dflash_config`` or ``dspark_config``."""


class ProposalMethod(SourceDocument):
    """One entry of ``speculators_config.proposal_methods``."""

    proposal_type: str | None = None
    speculative_tokens: int | None = None


class Verifier(SourceDocument):
    """The target model that a speculators draft names; never opened by itself."""

    name_or_path: str | None = None
    architectures: list[str] | None = None


class SpeculatorsBlock(SourceDocument):
    """``speculators_config``: how the draft is meant to be used."""

    algorithm: str | None = None
    default_proposal_method: str | None = None
    proposal_methods: list[ProposalMethod] | None = None
    verifier: Verifier | None = None


class DraftKeys(HeadKeys, LayerIdKeys, DecoderKeys):
    """The top level of every dialect."""

    architectures: list[str] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    dspark_block_size: int | None = None
    dspark_noise_token_id: int | None = None
    dspark_markov_rank: int | None = None
    dspark_markov_head_type: str | None = None
    dflash_config: BlockKeys | None = None
    dspark_config: BlockKeys | None = None
    speculators_config: SpeculatorsBlock | None = None


class DenseConfig(DraftKeys):
    """``config.json`` of the dense form, as DeepSpec writes it and dense engines read it.

    SpecForge's exports are flat too; they only keep more of the same keys in ``dflash_config``.
    """


class SpeculatorsConfig(DraftKeys):
    """``config.json`` of the speculators form (speculators 0.7 and later)."""

    speculators_model_type: str | None = None
    speculators_version: str | None = None
    transformer_layer_config: DecoderKeys
