"""A target and drafts of random weights, for what does not depend on what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.schemas.draft import DraftConfig, LayerType, Layout


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of the models and of what is decoded."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    reduced_vocabulary: int
    draft_layers: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    block_size: int
    context: int
    batches: tuple[int, ...]
    copied_bytes: int


QWEN3_8B = Size(
    hidden=4096,
    intermediate=12_288,
    layers=36,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocabulary=151_936,
    reduced_vocabulary=32_000,
    draft_layers=5,
    target_layer_ids=(1, 9, 17, 25, 33),
    markov_rank=256,
    block_size=7,
    context=256,
    batches=(1, 16),
    copied_bytes=1 << 32,
)
TINY = Size(
    hidden=64,
    intermediate=96,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocabulary=512,
    reduced_vocabulary=128,
    draft_layers=2,
    target_layer_ids=(0, 2),
    markov_rank=16,
    block_size=4,
    context=16,
    batches=(1, 3),
    copied_bytes=1 << 22,
)


def build_target(size: Size, device: torch.device) -> CausalTarget:
    """A Qwen3 with random weights, built on the device in bf16."""
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=40_960,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        tie_word_embeddings=False,
    )
    with torch.device(device), bfloat16():
        model = Qwen3ForCausalLM(config)
    randomize(model, torch.Generator(device).manual_seed(0))
    return CausalTarget(model)


def build_draft(size: Size, draft_vocabulary: int, device: torch.device) -> DraftModel:
    """An anchor-first draft with random weights, built on the device in bf16.

    The tokens of a reduced vocabulary are spread evenly over the target's.
    """
    table = None
    if draft_vocabulary < size.vocabulary:
        draft_ids = torch.arange(draft_vocabulary)
        table = draft_ids * size.vocabulary // draft_vocabulary - draft_ids
    with torch.device(device), bfloat16():
        draft = DraftModel(draft_config(size, draft_vocabulary), table)
    draft = draft.to(device).requires_grad_(False).eval()
    randomize(draft, torch.Generator(device).manual_seed(1))
    return draft


def draft_config(size: Size, draft_vocabulary: int) -> DraftConfig:
    """The draft's config: vanilla Markov head, confidence head that sees its embedding."""
    full: tuple[LayerType, ...] = ("full_attention",)
    return DraftConfig(
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.draft_layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        max_position_embeddings=40_960,
        attention_bias=False,
        layer_types=full * size.draft_layers,
        sliding_window=None,
        sliding_window_non_causal=False,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        vocab_size=size.vocabulary,
        draft_vocab_size=draft_vocabulary,
        mask_token_id=size.vocabulary - 1,
        layout=Layout.ANCHOR_FIRST,
        block_size=size.block_size,
        target_layer_ids=size.target_layer_ids,
        target_hidden_size=None,
        num_target_layers=size.layers,
        markov_rank=size.markov_rank,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        dtype="bfloat16",
    )


@contextmanager
def bfloat16() -> Iterator[None]:
    """Make bf16 the dtype of new parameters, so that no fp32 copy of them ever exists."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def randomize(model: nn.Module, generator: torch.Generator) -> None:
    """Weights that keep the variance of what they are applied to, so that bf16 stays finite.

    Logits then have a standard deviation of about 1, and at temperature 1 some drafted tokens are
    accepted: the caches are cut and moved as they are with real models.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Linear) and name == "weight":
                parameter.normal_(0, module.in_features**-0.5, generator=generator)
            elif isinstance(module, nn.Embedding):
                parameter.normal_(generator=generator)
            else:
                parameter.fill_(name == "weight")


def weight_bytes(*models: nn.Module) -> int:
    """Bytes that a round reads at least once: all weights but the embeddings' few rows."""
    return sum(
        parameter.nbytes
        for model in models
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    )
