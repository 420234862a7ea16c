"""How the layers of a model are run: in plain PyTorch, compiled, or by our own kernels.

All give the same values up to rounding. The plain functions (``layers``) run on the CPU and are the
oracle of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dspark_convert.runtime.attention import Angles
from dspark_convert.runtime.attention import RMSNorm as DraftNorm
from dspark_convert.runtime.fast import layers
from dspark_convert.runtime.fast.layers import LayerCache

try:
    from dspark_convert.runtime.fast import decode_kernels as kernels
except ImportError:  # Triton comes with PyTorch for CUDA on Linux only
    kernels = None  # type: ignore[assignment]


class Runner(Protocol):
    """Runs layers, as ``layers.run_layer`` and ``layers.project_kv`` do, and the norms around."""

    @property
    def run_layer(self) -> Callable[..., Tensor]:
        """See ``layers.run_layer``."""

    @property
    def project_kv(self) -> Callable[..., None]:
        """See ``layers.project_kv``."""

    def norm(self, norm: Any, x: Tensor) -> Tensor:
        """``x`` after a norm module."""


class PlainRunner:
    """The functions as they are, or compiled on a GPU: once for all layers, which are arguments."""

    def __init__(self, device: torch.device) -> None:
        self.run_layer: Callable[..., Tensor] = layers.run_layer
        self.project_kv: Callable[..., None] = layers.project_kv
        if device.type == "cuda":
            self.run_layer = compile_function(layers.run_layer)
            self.project_kv = compile_function(layers.project_kv)

    def norm(self, norm: Any, x: Tensor) -> Tensor:
        """See ``Runner``."""
        normed: Tensor = norm(x)
        return normed


class FusedRunner:
    """Our kernels; products of more tokens than these are good at are the library's."""

    def __init__(self, cache: LayerCache) -> None:
        device = cache.keys.device
        # Attention is split among programs only while there are fewer than this.
        self.arrived = torch.zeros(kernels.ENOUGH_PROGRAMS, dtype=torch.int32, device=device)
        self.project_inputs = compile_function(layers.project_inputs)
        self.finish_layer = compile_function(layers.finish_layer)

    def norm(self, norm: Any, x: Tensor) -> Tensor:
        """See ``Runner``."""
        return kernels.norm(x, *_norm(norm))

    def run_layer(
        self,
        layer: Any,
        x_RQH: Tensor,
        angles: Angles,
        keys_RKCE: Tensor,
        values_RKCE: Tensor,
        positions_RQ: Tensor,
        visible_RQC: Tensor,
    ) -> Tensor:
        """See ``layers.run_layer``."""
        attention, few = layer.self_attn, positions_RQ.numel() <= kernels.MOST_TOKENS
        if few:
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            weights: Any = tuple(projection.weight for projection in projections)
            normed = self.norm(layer.input_layernorm, x_RQH)
            query, key, value = kernels.project(normed, weights)
        else:
            query, key, value = self.project_inputs(layer, x_RQH)
        gains, caches = _gains(attention), (keys_RKCE, values_RKCE)
        kernels.place(query, key, value, gains, angles, *caches, positions_RQ)
        attended = kernels.attend(query, *caches, visible_RQC, positions_RQ, self.arrived)
        if not few:
            finished: Tensor = self.finish_layer(layer, x_RQH, attended)
            return finished
        x = kernels.add_product(attended, attention.o_proj.weight, x_RQH)
        mlp, normed = layer.mlp, self.norm(layer.post_attention_layernorm, x)
        gated = kernels.gate(normed, mlp.gate_proj.weight, mlp.up_proj.weight)
        return kernels.add_product(gated, mlp.down_proj.weight, x)

    def project_kv(
        self,
        attention: Any,
        x_RQH: Tensor,
        angles: Angles,
        keys_RKCE: Tensor,
        values_RKCE: Tensor,
        positions_RQ: Tensor,
    ) -> None:
        """See ``layers.project_kv``."""
        weights = (None, attention.k_proj.weight, attention.v_proj.weight)
        if positions_RQ.numel() <= kernels.MOST_TOKENS:
            query, key, value = kernels.project(x_RQH, weights)
        else:
            query, key, value = x_RQH[..., :0], attention.k_proj(x_RQH), attention.v_proj(x_RQH)
        gains = _gains(attention)
        kernels.place(query, key, value, gains, angles, keys_RKCE, values_RKCE, positions_RQ)


def choose_runner(model_layers: Sequence[Any], cache: LayerCache, hidden_act: str) -> Runner:
    """The fastest runner that can run these layers."""
    device = cache.keys.device
    fused = kernels is not None and device.type == "cuda" and hidden_act == "silu"
    if fused and all(_fits_kernels(layer, cache) for layer in model_layers):
        return FusedRunner(cache)
    return PlainRunner(device)


def _fits_kernels(layer: Any, cache: LayerCache) -> bool:
    """Half precision, no biases, and sizes that fill the tiles."""
    products = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    size = cache.keys.shape[-1]
    return (
        cache.keys.dtype in (torch.bfloat16, torch.float16)
        and size in (64, 128, 256)
        and all(product.bias is None for product in products)
        and all(product.in_features % kernels.DEPTH_UNIT == 0 for product in products)
    )


def _norm(norm: Any) -> tuple[Tensor, float]:
    """Gain and epsilon; ours and transformers' name them differently."""
    return norm.weight, norm.eps if isinstance(norm, DraftNorm) else norm.variance_epsilon


def _gains(attention: Any) -> tuple[Tensor, Tensor, float] | None:
    if not hasattr(attention, "q_norm"):
        return None
    return attention.q_norm.weight, *_norm(attention.k_norm)


def compile_function(
    function: Callable[..., Any], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiled for each shape that it meets; ``options`` are the compiler's."""
    return torch.compile(function, dynamic=False, fullgraph=True, options=options)
