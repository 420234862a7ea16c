"""The Qwen3 body: pre-norm layers, q/k norms per head, rotary embedding over the whole head.

Defaults are those of transformers' ``Qwen3Config``.

Shapes: H hidden size, I MLP width, hd head size, F feature columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.formats.arithmetic import inherited_names
from dspark_convert.formats.decoders.base import Decoder, TensorSpec
from dspark_convert.formats.rules import FieldRule, KeyPath, Place, places
from dspark_convert.schemas.draft import DraftConfig

_DEFAULT_SOURCE = "transformers' Qwen3Config default"
_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "vocab_size": 151936,
}


def _rules(container: KeyPath) -> tuple[FieldRule, ...]:
    """The keys of the body. A nested dialect may repeat them at top level."""

    def held(name: str) -> tuple[Place, ...]:
        return places((*container, name), *([(name,)] if container else []))

    sized = tuple(
        FieldRule(name, held(name), default, _DEFAULT_SOURCE) for name, default in _DEFAULTS.items()
    )
    return (
        *sized,
        FieldRule("layer_types", held("layer_types"), default=None),
        FieldRule("use_sliding_window", held("use_sliding_window"), default=None, settable=False),
        FieldRule(
            "sliding_window",
            (*held("sliding_window"), *_windows(container, "swa_window_size")),
            default=None,
        ),
        FieldRule("use_swa", _windows(container, "use_swa"), default=None, joined=("layer_types",)),
        *_rope_rules(container),
    )


def _windows(container: KeyPath, name: str) -> tuple[Place, ...]:
    """A key of Model-Optimizer's about windows, where engines look for it and elsewhere."""
    at = [("dflash_config",), ("dspark_config",), *dict.fromkeys([container, ()])]
    return places(*((*path, name) for path in at), written=0)


def _rope_rules(container: KeyPath) -> tuple[FieldRule, ...]:
    keys = [
        (*at, key)
        for at in dict.fromkeys([container, ()])
        for key in ("rope_parameters", "rope_theta", "rope_scaling")
    ]
    objects = [path for path in keys if path[-1] != "rope_theta"]
    bases = [path if path[-1] == "rope_theta" else (*path, "rope_theta") for path in keys]
    return (
        FieldRule(
            "rope_scaling",
            tuple(Place(path, scaling_of, dict, path == objects[0]) for path in objects),
            default={"rope_type": "default"},
            conflict_code="rope-conflict",
        ),
        FieldRule(
            "rope_theta",
            places(*bases, written=1 if container else 2),
            conflict_code="rope-conflict",
        ),
    )


def scaling_of(parameters: dict[str, Any]) -> dict[str, Any] | None:
    """RoPE parameters without the base and what came with the target; None if nothing is left.

    The type stands under its modern name. Drafts rotate whole heads, whatever the type: Qwen3's
    default type ignores a partial rotation, and with any other the class of DeepSpec does not run.
    """
    aside = {"rope_theta", "type", *inherited_names(parameters)}
    rest = {key: value for key, value in parameters.items() if key not in aside}
    if "type" in parameters:
        rest.setdefault("rope_type", parameters["type"])
    return rest or None


def _tensors(config: DraftConfig) -> dict[str, TensorSpec]:
    hidden = config.hidden_size
    specs = {
        "fc.weight": TensorSpec((hidden, config.feature_size)),
        "hidden_norm.weight": TensorSpec((hidden,)),
        "norm.weight": TensorSpec((hidden,)),
    }
    layer = _layer_tensors(config)
    for number in range(config.num_hidden_layers):
        specs |= {f"layers.{number}.{name}": spec for name, spec in layer.items()}
    return specs


def _layer_tensors(config: DraftConfig) -> dict[str, TensorSpec]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    projections = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
    }
    specs = {f"{name}.weight": TensorSpec(shape) for name, shape in projections.items()}
    if config.attention_bias:
        specs |= {f"{name}.bias": TensorSpec(shape[:1]) for name, shape in projections.items()}
    return specs | {
        "self_attn.q_norm.weight": TensorSpec((config.head_dim,)),
        "self_attn.k_norm.weight": TensorSpec((config.head_dim,)),
        "mlp.gate_proj.weight": TensorSpec((inner, hidden)),
        "mlp.up_proj.weight": TensorSpec((inner, hidden)),
        "mlp.down_proj.weight": TensorSpec((hidden, inner)),
        "input_layernorm.weight": TensorSpec((hidden,)),
        "post_attention_layernorm.weight": TensorSpec((hidden,)),
    }


def _validate(config: DraftConfig, findings: Findings) -> None:
    if config.rope_parameters["rope_theta"] <= 0:
        findings.error(
            "config-invalid",
            "the RoPE base must be positive",
            file=CONFIG_FILE,
            key="rope_theta",
            found=config.rope_parameters["rope_theta"],
            hint="give --set rope_theta=VALUE",
        )
    if config.num_attention_heads % config.num_key_value_heads:
        findings.error(
            "heads-invalid",
            "attention heads must be a multiple of key/value heads",
            file=CONFIG_FILE,
            key="num_key_value_heads",
            found=f"{config.num_attention_heads} and {config.num_key_value_heads}",
            hint="give --set num_key_value_heads=N: k_proj.weight has N x head_dim rows",
        )


QWEN3 = Decoder(
    name="qwen3",
    title="Qwen3",
    architectures=("Qwen3DSparkModel",),
    model_types=("qwen3",),
    rules=_rules,
    tensors=_tensors,
    validate=_validate,
)
