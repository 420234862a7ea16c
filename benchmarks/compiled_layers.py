"""The layers of the fast path in plain PyTorch, compiled, in the place of our kernels.

Caches, rounds and the CUDA graph around are those of the package: ``--compiled`` of
``benchmarks.decode_fast`` measures what the kernels gain. Of the forms that were tried this is the
fastest (README.md).

Shapes: see ``runtime.fast.layers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from dspark_convert.runtime.attention import Angles
from dspark_convert.runtime.fast import layers, models
from dspark_convert.runtime.fast.layers import LayerCache
from dspark_convert.runtime.fast.runners import compile_function
from dspark_convert.runtime.rope import rotate


def compiled_layers() -> AbstractContextManager[object]:
    """While this lasts, models are run without our kernels."""
    return mock.patch.object(models, "choose_runner", choose_compiled)


def choose_compiled(model_layers: Sequence[Any], cache: LayerCache, hidden_act: str) -> Any:
    """As ``runners.choose_runner``."""
    return CompiledRunner(model_layers)


class CompiledRunner:
    """See ``runners.Runner``.

    Weights that are applied to the same input lie one after the other, so that one product reads
    them: the modules hold views.
    """

    def __init__(self, model_layers: Sequence[Any]) -> None:
        self.joined = {}
        for layer in model_layers:
            attention, mlp = layer.self_attn, layer.mlp
            inputs = join(attention.q_proj, attention.k_proj, attention.v_proj)
            self.joined[attention] = inputs, join(mlp.gate_proj, mlp.up_proj)
        self._run_layer = compile_function(_run_layer)
        self._project_kv = compile_function(_project_kv)
        self._norm = compile_function(_norm)

    def norm(self, norm: Any, x: Tensor) -> Tensor:
        """See ``runners.Runner``."""
        normed: Tensor = self._norm(norm, x)
        return normed

    def run_layer(self, layer: Any, x_RQH: Tensor, *arguments: Any) -> Tensor:
        """See ``layers.run_layer``."""
        out: Tensor = self._run_layer(layer, self.joined[layer.self_attn], x_RQH, *arguments)
        return out

    def project_kv(self, attention: Any, x_RQH: Tensor, *arguments: Any) -> None:
        """See ``layers.project_kv``."""
        self._project_kv(attention, self.joined[attention][0], x_RQH, *arguments)


def join(*projections: Any) -> Tensor:
    """The weights of projections in one tensor, of which they hold views from now on."""
    sizes = [projection.out_features for projection in projections]
    first = projections[0].weight
    if first.untyped_storage().nbytes() == sum(each.weight.nbytes for each in projections):
        joined: Tensor = first.data.as_strided((sum(sizes), first.shape[1]), first.stride())
        return joined
    joined = torch.cat([projection.weight.data for projection in projections])
    for projection, part in zip(projections, torch.split(joined, sizes), strict=True):
        projection.weight.data = part
    return joined


def _norm(norm: Any, x: Tensor) -> Tensor:
    normed: Tensor = norm(x)
    return normed


def _run_layer(
    layer: Any,
    weights: tuple[Tensor, Tensor],
    x_RQH: Tensor,
    angles: Angles,
    keys_RKCE: Tensor,
    values_RKCE: Tensor,
    positions_RQ: Tensor,
    visible_RQC: Tensor,
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    kv_size = keys_RKCE.shape[1] * keys_RKCE.shape[3]
    inputs = functional.linear(layer.input_layernorm(x_RQH), weights[0])
    query, key, value = inputs.tensor_split((-2 * kv_size, -kv_size), -1)
    query = layers.split_heads(query, keys_RKCE)
    if hasattr(attention, "q_norm"):
        query = attention.q_norm(query)
    layers._place(attention, key, value, angles, keys_RKCE, values_RKCE, positions_RQ)
    attended = layers.attend(rotate(query, *angles), keys_RKCE, values_RKCE, visible_RQC)
    x = x_RQH + attention.o_proj(attended)
    gate, up = functional.linear(layer.post_attention_layernorm(x), weights[1]).chunk(2, -1)
    out: Tensor = x + mlp.down_proj(functional.silu(gate) * up)
    return out


def _project_kv(
    attention: Any,
    weight: Tensor,
    x_RQH: Tensor,
    angles: Angles,
    keys_RKCE: Tensor,
    values_RKCE: Tensor,
    positions_RQ: Tensor,
) -> None:
    kv_size = keys_RKCE.shape[1] * keys_RKCE.shape[3]
    key, value = functional.linear(x_RQH, weight[-2 * kv_size :]).chunk(2, -1)
    layers._place(attention, key, value, angles, keys_RKCE, values_RKCE, positions_RQ)
