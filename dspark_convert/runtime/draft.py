"""The draft model: a Qwen3-style decoder over a block, and the heads that turn it into tokens.

    target features --fc, hidden_norm--> context input --k_proj, v_proj of each layer--> ContextKV
    [anchor, mask, mask, ...] --embed_tokens--> layers (attend to ContextKV and the block) --norm-->
    backbone hidden --lm_head--> draft logits (+ Markov bias, slot after slot: ``propose``)

Module names are the canonical tensor names. The config is consulted when the model runs, so values
that no weight depends on (layout, window, mask token) may be replaced to read it differently.

Shapes: R rows, M blocks of a row, B slots, T context positions, F feature columns, H hidden,
D draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import DraftError, Finding
from dspark_convert.runtime.attention import (
    Angles,
    ContextKV,
    DraftAttention,
    RMSNorm,
    compute_visibility,
)
from dspark_convert.runtime.heads import ConfidenceHead, build_markov_head
from dspark_convert.runtime.rope import RotaryEmbedding
from dspark_convert.runtime.vocabulary import DraftVocabulary
from dspark_convert.schemas.draft import DraftConfig, Layout


class DraftModel(nn.Module):
    """A DSpark draft, whatever format it came from.

    ``draft_id_to_target_id`` is the offset table int64 [D] of a reduced vocabulary. ``findings``
    are the notes and warnings from loading it.
    """

    def __init__(self, config: DraftConfig, draft_id_to_target_id: Tensor | None = None) -> None:
        super().__init__()
        assert config.reduced_vocabulary == (draft_id_to_target_id is not None)
        self.config = config
        self.findings: tuple[Finding, ...] = ()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.markov_head = build_markov_head(config)
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None
        self.rotary = RotaryEmbedding(config)
        self.vocabulary = DraftVocabulary(
            config.draft_vocab_size, config.vocab_size, draft_id_to_target_id
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.fc.weight.dtype

    @property
    def first_predicting_slot(self) -> int:
        """0 anchor-first; 1 in the 1+N layout, whose slot 0 predicts nothing."""
        return int(self.config.layout is Layout.BONUS_ANCHOR)

    def compute_context_input(self, features: Tensor) -> Tensor:
        """``hidden_norm(fc(features))`` [..., H] of target features [..., F]."""
        projected: Tensor = self.hidden_norm(self.fc(features.to(self.dtype)))
        return projected

    def compute_context(self, features_RTF: Tensor, position_ids: Tensor) -> ContextKV:
        """Context keys and values of features at ``position_ids``, int64 [R, T] or [T]."""
        return self.project_context(self.compute_context_input(features_RTF), position_ids)

    def project_context(self, input_RTH: Tensor, position_ids: Tensor) -> ContextKV:
        """Context keys and values of ``compute_context_input`` at ``position_ids``.

        Context passes through no layer: every layer projects the same input (vLLM,
        ``model_executor/models/qwen3_dflash.py``).
        """
        angles = self.rotary(position_ids, self.dtype)
        pairs = [layer.self_attn.project_kv(input_RTH, angles) for layer in self._layers()]
        keys, values = zip(*pairs, strict=True)
        return ContextKV(keys, values)

    def forward(
        self, context: ContextKV, anchor_token_ids_RM: Tensor, anchor_positions_RM: Tensor
    ) -> Tensor:
        """Backbone hidden [R, M, B, H], after the final norm, of one block for each anchor.

        A block sees the context at positions before its anchor and itself, so all anchors of a
        text can go through in one call.
        """
        return self.run_layers(context, self.embed_block(anchor_token_ids_RM), anchor_positions_RM)

    def embed_block(self, anchor_token_ids: Tensor) -> Tensor:
        """Input [..., B, H] of the layers, for the block after each anchor, int64 [...]."""
        embedded: Tensor = self.embed_tokens(self.build_block_input(anchor_token_ids))
        return embedded

    def run_layers(self, context: ContextKV, x: Tensor, anchor_positions_RM: Tensor) -> Tensor:
        """``forward`` of embedded blocks ``x`` [R, M, B, H]; same shape."""
        slots = torch.arange(self.config.block_size, device=x.device)
        angles = self.rotary(anchor_positions_RM[..., None] + slots, self.dtype)
        visible = {
            layer_type: compute_visibility(
                self.config, layer_type, anchor_positions_RM, context.length
            )
            for layer_type in set(self.config.layer_types)
        }
        for index, layer in enumerate(self._layers()):
            context_kv = context.keys[index], context.values[index]
            x = layer(x, angles, context_kv, visible[self.config.layer_types[index]])
        hidden: Tensor = self.norm(x)
        return hidden

    def build_block_input(self, anchor_token_ids: Tensor) -> Tensor:
        """``[anchor, mask, mask, ...]``, int64 [..., B], of anchors [...]."""
        shape = (*anchor_token_ids.shape, self.config.block_size)
        block = anchor_token_ids.new_full(shape, self.config.mask_token_id)
        block[..., 0] = anchor_token_ids
        return block

    def compute_draft_logits(self, hidden: Tensor) -> Tensor:
        """``lm_head`` logits [..., D] of backbone hidden [..., H]; no mapping, no Markov bias."""
        # Some slots of many blocks form a view, which would be multiplied block by block.
        logits: Tensor = self.lm_head(hidden.contiguous())
        return logits

    def map_draft_to_target(self, draft_ids: Tensor) -> Tensor:
        """``ids + draft_id_to_target_id[ids]``, the identity for a full vocabulary."""
        return self.vocabulary.map_draft_to_target(draft_ids)

    def _layers(self) -> list[DraftLayer]:
        return [layer for layer in self.layers if isinstance(layer, DraftLayer)]


class DraftLayer(nn.Module):
    """One decoder layer; it runs over the block only."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DraftMLP(config)

    def forward(
        self, x: Tensor, angles: Angles, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        """``x`` [R, M, B, H] after attention and MLP; see ``DraftAttention``."""
        x = x + self.self_attn(self.input_layernorm(x), angles, context, visible)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DraftMLP(nn.Module):
    """The gated feed-forward layer of Qwen3."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)
        self.activation = _activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [..., H]; same shape."""
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


def _activation(name: str) -> nn.Module:
    if name not in ACT2FN:
        raise DraftError(
            Finding(
                code="activation-unsupported",
                message="transformers has no activation function of this name",
                file=CONFIG_FILE,
                key="hidden_act",
                found=name,
                hint="Qwen3-style drafts use silu",
            )
        )
    activation: nn.Module = ACT2FN[name]
    return activation
