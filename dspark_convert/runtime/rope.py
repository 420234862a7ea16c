"""Rotary position embedding: the angles are transformers' own, the rotation is ours."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import DraftError, Finding
from dspark_convert.schemas.draft import DraftConfig

TRANSFORMERS_MAJOR = int(transformers.__version__.split(".")[0])

# The others choose their angles by the length seen so far, so keys that are already in a cache
# would have to be rotated again.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions, for the ``rope_parameters`` of a config.

    Raises ``DraftError`` (``rope-type-unsupported``, ``rope-parameters-invalid``). The frequencies
    stay fp32: change the dtype of a draft by loading it again, not with ``.to(dtype)``.
    """

    inverse_frequency: Tensor

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        frequency, self.attention_scaling = _initialise(config)
        self.register_buffer("inverse_frequency", frequency, persistent=False)

    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine, each [..., head_dim] in ``dtype``, of ``position_ids`` [...]."""
        angles = position_ids[..., None].float() * self.inverse_frequency
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        return (
            (cosine * self.attention_scaling).to(dtype),
            (sine * self.attention_scaling).to(dtype),
        )


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate ``x`` [..., heads, head_dim] by angles [..., head_dim] (halves, not interleaved)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cosine.unsqueeze(-2) + turned * sine.unsqueeze(-2)


def _initialise(config: DraftConfig) -> tuple[Tensor, float]:
    rope_type = config.rope_parameters.get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        raise DraftError(
            Finding(
                code="rope-type-unsupported",
                message="the runtime does not implement this type of RoPE",
                file=CONFIG_FILE,
                key="rope_parameters.rope_type",
                expected=", ".join(ROPE_TYPES),
                found=str(rope_type),
                hint="conversion does not need the runtime; only verification is affected",
            )
        )
    try:
        # On the CPU even while the draft itself is built on the meta device.
        with torch.device("cpu"):
            rotary = Qwen3RotaryEmbedding(_transformers_config(config))
    except (KeyError, TypeError, ValueError) as error:
        raise DraftError(
            Finding(
                code="rope-parameters-invalid",
                message=f"transformers cannot initialise this rotary embedding: {error}",
                file=CONFIG_FILE,
                key="rope_parameters",
                found=str(config.rope_parameters),
                hint="compare rope_parameters with those of the target's config.json",
            )
        ) from error
    return rotary.inv_freq.float(), float(rotary.attention_scaling)


def _transformers_config(config: DraftConfig) -> Any:
    """A ``Qwen3Config`` that spells RoPE as the installed transformers does (4.x or 5.x)."""
    parameters = dict(config.rope_parameters)
    if TRANSFORMERS_MAJOR >= 5:
        spelled: dict[str, Any] = {"rope_parameters": parameters}
    else:
        theta = parameters.pop("rope_theta")
        scaled = parameters.get("rope_type", "default") != "default"
        spelled = {"rope_theta": theta, "rope_scaling": parameters if scaled else None}
    return Qwen3Config(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        **spelled,
    )
