"""What dense readers want of the golden drafts, written by hand from the readers' own sources.

Literal data, on purpose not derived from the package: a wrong rule and its inverse would agree.
"""

from __future__ import annotations

from typing import Any

_FULL_ATTENTION = ["full_attention", "full_attention"]

# Of the decoder as transformers writes it, whether a reader of drafts looks at it or not.
_DECODER = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 24,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": _FULL_ATTENTION,
    "max_position_embeddings": 512,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "transformers_version": "5.19.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 320,
}
_DRAFT = {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 7,
    "confidence_head_with_markov": True,
    "dspark_bonus_anchor": False,
    "dtype": "bfloat16",
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 16,
    "mask_token_id": 319,
    "sample_from_anchor": True,
    "target_layer_ids": [0, 1, 2],
    "torch_dtype": "bfloat16",
}
_SPECULATORS = _DECODER | _DRAFT | {"bos_token_id": None, "eos_token_id": None, "num_anchors": 512}
_DENSE = (
    _DECODER
    | _DRAFT
    | {"bos_token_id": 0, "eos_token_id": 1, "num_anchors": 32, "num_target_layers": 4}
)
_REDUCED = {"draft_vocab_size": 200}
_BONUS = {"sample_from_anchor": False, "dspark_bonus_anchor": True}
_FP32 = {"dtype": "float32", "torch_dtype": "float32"}
_SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 6,
    "sliding_window_non_causal": False,
    "use_sliding_window": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "spec_vanilla_full_anchor_fp32": _SPECULATORS | _FP32,
    "spec_vanilla_reduced_anchor_bf16": _SPECULATORS | _REDUCED,
    "spec_gated_reduced_1plusN_bf16": _SPECULATORS
    | _REDUCED
    | _BONUS
    | {"markov_head_type": "gated"},
    "spec_rnn_full_anchor_sharded_bf16": _SPECULATORS
    | {"markov_head_type": "rnn", "attention_bias": True, "confidence_head_with_markov": False},
    "spec_vanilla_reduced_legacykey_bf16": _SPECULATORS | _REDUCED | _BONUS,
    "spec_swa_default_reduced_bf16": _SPECULATORS | _REDUCED | _SLIDING,
    "spec_nomarkov_noconf_full_bf16": _SPECULATORS
    | {"markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False},
    "dense_vanilla_bf16": _DENSE,
    "dense_gated_fp32": _DENSE
    | _FP32
    | {"markov_head_type": "gated", "confidence_head_with_markov": False},
    "dense_rnn_bf16": _DENSE | {"markov_head_type": "rnn"},
}

_LAYER = {
    "self_attn.q_proj.weight": [96, 64],
    "self_attn.k_proj.weight": [48, 64],
    "self_attn.v_proj.weight": [48, 64],
    "self_attn.o_proj.weight": [64, 96],
    "self_attn.q_norm.weight": [24],
    "self_attn.k_norm.weight": [24],
    "mlp.gate_proj.weight": [96, 64],
    "mlp.up_proj.weight": [96, 64],
    "mlp.down_proj.weight": [64, 96],
    "input_layernorm.weight": [64],
    "post_attention_layernorm.weight": [64],
}
_BIASES = {
    "self_attn.q_proj.bias": [96],
    "self_attn.k_proj.bias": [48],
    "self_attn.v_proj.bias": [48],
    "self_attn.o_proj.bias": [64],
}


def _layers(parts: dict[str, list[int]]) -> dict[str, list[int]]:
    return {f"layers.{layer}.{name}": shape for layer in (0, 1) for name, shape in parts.items()}


_BACKBONE = _layers(_LAYER) | {
    "fc.weight": [64, 192],
    "hidden_norm.weight": [64],
    "norm.weight": [64],
}
_MARKOV = {"markov_head.markov_w1.weight": [320, 16], "markov_head.markov_w2.weight": [320, 16]}
_GATE = {"markov_head.gate_proj.weight": [16, 80], "markov_head.gate_proj.bias": [16]}
_JOINT = {"markov_head.joint_proj.weight": [48, 96], "markov_head.joint_proj.bias": [48]}
_CONFIDENCE = {"confidence_head.proj.weight": [1, 80], "confidence_head.proj.bias": [1]}
_PLAIN_CONFIDENCE = {"confidence_head.proj.weight": [1, 64], "confidence_head.proj.bias": [1]}
_SHARED = {"embed_tokens.weight": [320, 64], "lm_head.weight": [320, 64]}
_REDUCED_TENSORS = {
    "markov_head.markov_w1.weight": [320, 16],
    "markov_head.markov_w2.weight": [200, 16],
    "lm_head.weight": [200, 64],
    "draft_id_to_target_id": [200],
}

SHAPES: dict[str, dict[str, list[int]]] = {
    "spec_vanilla_full_anchor_fp32": _BACKBONE | _MARKOV | _CONFIDENCE,
    "spec_vanilla_reduced_anchor_bf16": _BACKBONE | _REDUCED_TENSORS | _CONFIDENCE,
    "spec_gated_reduced_1plusN_bf16": _BACKBONE | _REDUCED_TENSORS | _GATE | _CONFIDENCE,
    "spec_rnn_full_anchor_sharded_bf16": _BACKBONE
    | _layers(_BIASES)
    | _MARKOV
    | _JOINT
    | _PLAIN_CONFIDENCE,
    "spec_vanilla_reduced_legacykey_bf16": _BACKBONE | _REDUCED_TENSORS | _CONFIDENCE,
    "spec_swa_default_reduced_bf16": _BACKBONE | _REDUCED_TENSORS | _CONFIDENCE,
    "spec_nomarkov_noconf_full_bf16": _BACKBONE,
    "dense_vanilla_bf16": _BACKBONE | _MARKOV | _CONFIDENCE | _SHARED,
    "dense_gated_fp32": _BACKBONE | _MARKOV | _GATE | _PLAIN_CONFIDENCE | _SHARED,
    "dense_rnn_bf16": _BACKBONE | _MARKOV | _JOINT | _CONFIDENCE | _SHARED,
}


def dtype_of(variant: str, tensor: str) -> str:
    """As the safetensors library calls it."""
    if tensor == "draft_id_to_target_id":
        return "I64"
    return "F32" if variant.endswith("fp32") else "BF16"
