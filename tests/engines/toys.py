"""Toy modules with the parameters that engines give a draft, all NaN until they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.errors import DraftError

NAN = float("nan")


class Plain(nn.Module):
    """A module with one weight, and perhaps a bias."""

    def __init__(self, *shape: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, NAN))
        if bias:
            self.bias = nn.Parameter(torch.full(shape[:1], NAN))


class Stacked(Plain):
    """A projection of several: each has its rows, and is loaded with its own shard id."""

    def __init__(self, sizes: dict[Any, int], columns: int, bias: bool) -> None:
        super().__init__(sum(sizes.values()), columns, bias=bias)
        self.sizes = sizes
        for parameter in self.parameters():
            parameter.weight_loader = self.load  # type: ignore[attr-defined]

    def load(self, parameter: Tensor, loaded: Tensor, shard_id: Any = None) -> None:
        shard_id = loaded.shard_id if shard_id is None else shard_id  # type: ignore[attr-defined]
        start = 0
        for name, size in self.sizes.items():
            if name == shard_id:
                rows = parameter.data[start : start + size]
                assert rows.shape == loaded.shape
                rows.copy_(loaded)
            start += size


class Layer(nn.Module):
    """One decoder layer, projections stacked as both engines stack them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, head = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
        bias = config.attention_bias
        self.self_attn = nn.Module()
        self.self_attn.qkv_proj = Stacked({"q": queries, "k": keys, "v": keys}, hidden, bias)
        self.self_attn.o_proj = Plain(hidden, queries, bias=bias)
        self.self_attn.q_norm = Plain(head)
        self.self_attn.k_norm = Plain(head)
        self.mlp = nn.Module()
        inner = config.intermediate_size
        self.mlp.gate_up_proj = Stacked({0: inner, 1: inner}, hidden, False)
        self.mlp.down_proj = Plain(hidden, inner)
        self.input_layernorm = Plain(hidden)
        self.post_attention_layernorm = Plain(hidden)


def add_backbone(module: nn.Module, config: Any, layers: int) -> None:
    """The parameters of the backbone, as children of ``module``."""
    hidden = config.hidden_size
    target_hidden = getattr(config, "target_hidden_size", None) or hidden
    module.fc = Plain(hidden, target_hidden * layers)
    module.hidden_norm, module.norm = Plain(hidden), Plain(hidden)
    module.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))


def confidence_head(config: Any, with_markov: bool) -> nn.Module:
    head = nn.Module()
    head.proj = Plain(1, config.hidden_size + config.markov_rank * with_markov, bias=True)
    return head


def unfilled(module: nn.Module) -> set[str]:
    """Parameters that hold no value of the checkpoint."""
    return {name for name, value in module.named_parameters() if value.isnan().any()}


def weights_of(folder: Path) -> list[tuple[str, Tensor]]:
    return [
        item for path in sorted(folder.glob("*.safetensors")) for item in load_file(path).items()
    ]


def refusal(source: Path, **options: Any) -> set[str]:
    """The codes with which a conversion is refused; empty when it is not."""
    try:
        plan_to_dense(source, **options)
    except DraftError as error:
        return {finding.code for finding in error.findings}
    return set()
