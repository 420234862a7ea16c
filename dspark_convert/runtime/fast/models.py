"""A target and a draft over static caches, run through their own modules.

Shapes: R rows, Q tokens of a pass, B slots, N drafted tokens, H hidden, F feature columns,
V target vocabulary, C columns of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

from dspark_convert.runtime.causal import CausalSession, CausalTarget
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.layers import AngleTable, LayerCache, see_block, see_causally
from dspark_convert.runtime.fast.runners import choose_runner
from dspark_convert.runtime.rope import ROPE_TYPES
from dspark_convert.runtime.target import Target, TargetOutput
from dspark_convert.schemas.draft import LayerType

# Whose layers are what ``run_layer`` computes. Exact classes: one derived from them may differ.
_UNWINDOWED = (LlamaForCausalLM,)
_WINDOWED = (Qwen2ForCausalLM, Qwen3ForCausalLM)


def why_unsupported(target: Target, draft: DraftModel) -> str | None:
    """Why a pair has to be decoded by the plain path; None if it need not."""
    if not isinstance(target, CausalTarget):
        return "the target is not a causal model of transformers"
    model = target.model
    if type(model) not in (*_UNWINDOWED, *_WINDOWED):
        return f"{type(model).__name__} is not known to have the layers of Llama or Qwen3"
    if not _has_plain_products(model):
        return "the target is quantised or carries adapters"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "the target is spread over several devices"
    if target.device != draft.device:
        return f"the target is on {target.device}, the draft on {draft.device}"
    rope_type = model.get_decoder().rotary_emb.rope_type
    if rope_type not in ROPE_TYPES:
        return f"rotary embeddings of type {rope_type} depend on the length seen so far"
    return None


def _has_plain_products(model: Any) -> bool:
    """Whether a projection is no more than its weight, which is all that our kernels read."""
    projections = [module for name, module in model.named_modules() if name.endswith("_proj")]
    # Some quantisers replace modules, others only what the weights are.
    quantized: bool = getattr(model, "is_quantized", False)
    return not quantized and all(type(projection) is nn.Linear for projection in projections)


class StaticTarget:
    """A supported target (``why_unsupported``), and the cache of its rows."""

    def __init__(
        self, target: CausalTarget, layer_ids: Sequence[int], *, rows: int, columns: int
    ) -> None:
        self.target, self.layer_ids = target, tuple(layer_ids)
        self.columns = columns
        self.embed = target.model.get_input_embeddings()
        self.norm = target.model.get_decoder().norm
        self.head = target.model.get_output_embeddings()
        positions = torch.arange(columns, device=target.device)[None]
        cosine, sine = target.model.get_decoder().rotary_emb(self.head.weight, positions)
        self.angles = AngleTable(cosine[0], sine[0])
        attention: Any = target.layers[0].self_attn
        kv_heads = attention.k_proj.out_features // attention.head_dim
        self.caches = [
            LayerCache.allocate(rows, kv_heads, columns, attention.head_dim, self.head.weight)
            for _ in target.layers
        ]
        self.runner = choose_runner(target.layers, self.caches[0], target.text_config.hidden_act)
        self.windows: list[int | None] = [None] * len(target.layers)
        if isinstance(target.model, _WINDOWED):
            attentions: list[Any] = [layer.self_attn for layer in target.layers]
            self.windows = [each.sliding_window for each in attentions]

    def prefill(self, row: int, prompt: Sequence[int]) -> TargetOutput:
        """Read a prompt with the model's own forward, and keep what it cached in ``row``."""
        session = CausalSession(self.target, self.layer_ids)
        token_ids = torch.tensor([list(prompt)], device=self.target.device)
        output = session.prefill(token_ids, [len(prompt)])
        held: Any
        for cache, held in zip(self.caches, session.cache.layers, strict=True):
            cache.store_prompt(row, held.keys[0], held.values[0])
        return output

    def __call__(self, token_ids_RQ: Tensor, positions_RQ: Tensor) -> TargetOutput:
        """Logits [R, Q, V] and features [R, Q, F] of tokens at these positions."""
        x = self.embed(token_ids_RQ)
        angles = self.angles(positions_RQ)
        visible = {
            window: see_causally(positions_RQ, self.columns, window) for window in set(self.windows)
        }
        tapped = {-1: x}
        for index, layer in enumerate(self.target.layers):
            cache, window = self.caches[index], self.windows[index]
            x = self.runner.run_layer(
                layer, x, angles, cache.keys, cache.values, positions_RQ, visible[window]
            )
            tapped[index] = x
        features = torch.cat([tapped[layer_id] for layer_id in self.layer_ids], -1)
        return TargetOutput(self.head(self.runner.norm(self.norm, x)), features)


class StaticDraft:
    """A draft, and the cache of its rows: their context, and the block being drafted."""

    def __init__(self, draft: DraftModel, *, rows: int, columns: int) -> None:
        config = draft.config
        self.draft, self.columns = draft, columns
        self.layers: list[Any] = list(draft.layers)
        self.slots = torch.arange(config.block_size, device=draft.device)
        positions = torch.arange(columns, device=draft.device)
        self.angles = AngleTable(*draft.rotary(positions, draft.dtype))
        self.caches = [
            LayerCache.allocate(
                rows, config.num_key_value_heads, columns, config.head_dim, draft.fc.weight
            )
            for _ in self.layers
        ]
        self.runner = choose_runner(self.layers, self.caches[0], config.hidden_act)

    def run_block(self, anchors_R: Tensor, positions_R: Tensor) -> Tensor:
        """Backbone hidden [R, B, H] of a block after each anchor; see ``DraftModel.forward``.

        The block's keys and values stay behind in columns that ``remember`` overwrites before
        anything can see them.
        """
        draft, config = self.draft, self.draft.config
        positions = positions_R[:, None] + self.slots
        angles = self.angles(positions)
        visible = {kind: self._see(positions, kind) for kind in set(config.layer_types)}
        x = draft.embed_block(anchors_R)
        for layer, cache, kind in zip(self.layers, self.caches, config.layer_types, strict=True):
            x = self.runner.run_layer(
                layer, x, angles, cache.keys, cache.values, positions, visible[kind]
            )
        return self.runner.norm(draft.norm, x)

    def remember(self, features_RQF: Tensor, positions_RQ: Tensor) -> None:
        """Write the context of target features at these positions."""
        draft = self.draft
        context_input = self.runner.norm(draft.hidden_norm, draft.fc(features_RQF.to(draft.dtype)))
        angles = self.angles(positions_RQ)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            self.runner.project_kv(
                layer.self_attn, context_input, angles, cache.keys, cache.values, positions_RQ
            )

    def store_prompt(self, row: int, features_TF: Tensor) -> None:
        """Write the context of a prompt of T positions."""
        positions = torch.arange(len(features_TF), device=self.draft.device)
        context = self.draft.compute_context(features_TF[None], positions)
        for layer, cache in enumerate(self.caches):
            cache.store_prompt(
                row,
                context.keys[layer][0].transpose(0, 1),
                context.values[layer][0].transpose(0, 1),
            )

    def _see(self, positions_RB: Tensor, kind: LayerType) -> Tensor:
        if kind == "full_attention":
            return see_block(positions_RB, self.columns, None, causal=False)
        config = self.draft.config
        causal = not config.sliding_window_non_causal
        return see_block(positions_RB, self.columns, config.sliding_window, causal=causal)
