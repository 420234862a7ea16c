"""Config keys that some trainer or engine reads as mathematics, and what becomes of each.

A key that a rule of the dialect reads is *implemented* and has no row here. For every other key a
row says which values are *harmless*: with them the draft computes what it would compute without
the key. Any other value is *refused* by name, or, if the key only came along with the target's
config and training never obeyed it, *left out* of what is written.

Sources: the model classes of vLLM 0.33.0 (``qwen3_dflash.py``, ``qwen3_dspark.py``), SGLang 0.5.23
(``models/dflash.py``, ``models/dspark.py``) and TensorRT-LLM, NVIDIA's Model-Optimizer, and the
configs of targets whose keys drafts inherit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.formats.rules import Document, KeyPath, lookup, remove
from dspark_convert.schemas.draft import DraftConfig

_BLOCKS: tuple[KeyPath, ...] = (("dflash_config",), ("dspark_config",), ("eagle_config",))
_ROPE_OBJECTS = ("rope_parameters", "rope_scaling")

ROPE_KEYS = frozenset(
    {
        *("rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings"),
        *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        *("low_freq_factor", "high_freq_factor", "short_factor", "long_factor"),
    }
)
"""What the types of RoPE take; transformers computes with them."""


@dataclass(frozen=True, kw_only=True)
class ArithmeticKey:
    """One meaning, under every name that it has."""

    names: tuple[str, ...]
    does: str
    """What a reader of the key computes, after "it": "caps the logits"."""
    read_by: str
    harmless: tuple[Any, ...] = ()
    """Values that change nothing, besides null."""
    fits: Callable[[Any, DraftConfig], bool] = lambda value, config: False
    """Whether a value says what the draft does anyway."""
    fitting: str = ""
    """In words, which values those are."""
    inherited: bool = False
    """Whether it is the target's, and no trainer of drafts with the default decoder obeyed it."""

    def is_harmless(self, value: Any, config: DraftConfig | None = None) -> bool:
        """Whether ``value`` changes nothing; without ``config`` only fixed values are."""
        if value is None or any(_same(value, known) for known in self.harmless):
            return True
        return config is not None and self.fits(value, config)

    @property
    def harmless_values(self) -> str:
        """The harmless values in words."""
        spelled = [_spelled(value) for value in self.harmless]
        return " or ".join([*spelled, *([self.fitting] if self.fitting else []), "no key"])


def _same(value: Any, known: Any) -> bool:
    """Equal, and not a number that only passes for a flag: 1.0 is not ``true``."""
    return isinstance(value, bool) == isinstance(known, bool) and bool(value == known)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


_LARGE = 1e9
"""Beyond any size or scale of a draft; much larger integers of JSON have no float."""


def _close(value: Any, number: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < _LARGE
        and math.isclose(value, number, rel_tol=1e-6)
    )


ARITHMETIC: tuple[ArithmeticKey, ...] = (
    # Position
    ArithmeticKey(
        names=("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"),
        does="rotates only this share of each head",
        read_by="vLLM",
        harmless=(1.0,),
        inherited=True,
    ),
    ArithmeticKey(
        names=("rope_dim", "rotary_dim"),
        does="rotates only so many dimensions of each head",
        read_by="vLLM, SGLang",
        fits=lambda value, config: _close(value, config.head_dim),
        fitting="head_dim",
    ),
    ArithmeticKey(
        names=("mrope_section", "mrope_interleaved"),
        does="rotates by three positions, which are one and the same in text",
        read_by="vLLM",
        harmless=(False,),
        inherited=True,
    ),
    ArithmeticKey(
        names=("is_neox_style", "rope_is_neox_style"),
        does="rotates neighbouring dimensions instead of the halves of a head",
        read_by="vLLM, SGLang",
        harmless=(True,),
    ),
    ArithmeticKey(
        names=("rope_interleave", "rope_interleaved", "interleaved_rope"),
        does="rotates neighbouring dimensions instead of the halves of a head",
        read_by="drafts with latent attention",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("no_rope_layers", "nope_layers", "no_rope_layer_interval", "mla_use_nope"),
        does="leaves some layers without rotation",
        read_by="models with NoPE layers",
        harmless=(False, 0, []),
    ),
    # Attention
    ArithmeticKey(
        names=(
            *("attention_sink_bias", "add_swa_attention_sink_bias"),
            *("add_full_attention_sink_bias", "use_attention_sinks"),
        ),
        does="adds a learnt sink to the softmax of each head",
        read_by="vLLM, SGLang",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("attention_value_scale",),
        does="multiplies the values of attention",
        read_by="vLLM, SGLang",
        harmless=(1.0,),
    ),
    ArithmeticKey(
        names=("attention_multiplier", "attention_scale", "attn_scale", "softmax_scale"),
        does="replaces the scale of attention",
        read_by="Granite and its kin",
        fits=lambda value, config: _close(value, config.head_dim**-0.5),
        fitting="head_dim ** -0.5",
    ),
    ArithmeticKey(
        names=("query_pre_attn_scalar",),
        does="replaces the scale of attention by its -0.5th power",
        read_by="Gemma",
        fits=lambda value, config: _close(value, config.head_dim),
        fitting="head_dim",
    ),
    ArithmeticKey(
        names=("attn_logit_softcapping", "attn_logit_softcap", "attn_logit_soft_cap"),
        does="caps the scores of attention",
        read_by="Gemma",
        harmless=(0,),
    ),
    ArithmeticKey(
        names=("attn_temperature_tuning", "attn_temperature_tuning_layers"),
        does="scales queries by their position",
        read_by="Muse Spark",
        harmless=(False, 0, ""),
    ),
    ArithmeticKey(
        names=("attention_k_eq_v",),
        does="uses the keys as values",
        read_by="Gemma 4",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("use_qk_norm", "qk_norm"),
        does="leaves queries and keys without their norms",
        read_by="MiniMax, Muse Spark",
        harmless=(True,),
    ),
    ArithmeticKey(
        names=("qk_norm_type",),
        does="takes the norm of queries and keys over something other than a head",
        read_by="MiniMax",
        harmless=("per_head",),
    ),
    ArithmeticKey(
        names=("enable_qwen35_gated_q_proj", "use_attn_o_gate", "mla_use_output_gate"),
        does="gates the output of attention",
        read_by="mlx-dspark",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("attn_output_gate",),
        does="gates the output of attention, for which q_proj would have twice the rows",
        read_by="Qwen3.5 targets",
        harmless=(False,),
        inherited=True,
    ),
    # Norms, streams and the MLP
    ArithmeticKey(
        names=(
            *("use_gemma_norm", "norm_zero_centered_gamma", "zero_centered_gamma"),
            *("layernorm_zero_centered_gamma", "layernorm_1p"),
        ),
        does="adds one to the weight of every norm",
        read_by="SGLang",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("embedding_multiplier", "embedding_scale", "embed_scale", "scale_emb"),
        does="multiplies the embedding",
        read_by="Granite, MiniCPM",
        harmless=(1.0,),
    ),
    ArithmeticKey(
        names=("scale_embedding", "normalize_embedding"),
        does="multiplies the embedding by the square root of its width",
        read_by="Gemma and its kin",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("residual_multiplier", "residual_scale"),
        does="multiplies what each layer adds",
        read_by="Granite",
        harmless=(1.0,),
    ),
    ArithmeticKey(
        names=("scale_depth", "dim_model_base"),
        does="scales layers or logits by depth or width",
        read_by="MiniCPM",
    ),
    ArithmeticKey(
        names=("use_residual_gate",),
        does="gates what each layer adds",
        read_by="Muse Spark",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("hidden_activation",),
        does="replaces hidden_act in the MLP",
        read_by="Gemma",
        fits=lambda value, config: bool(value == config.hidden_act),
        fitting="the value of hidden_act",
    ),
    ArithmeticKey(
        names=("mlp_bias",),
        does="adds biases to the MLP",
        read_by="Llama",
        harmless=(False,),
    ),
    ArithmeticKey(
        names=("log_snr_conditioning",),
        does="conditions the slots of a block on a noise level",
        read_by="mlx-dspark",
        harmless=(False,),
    ),
    # What goes in and what comes out
    ArithmeticKey(
        names=("use_aux_hidden_state",),
        does="drafts without the features of the target",
        read_by="vLLM",
        harmless=(True,),
    ),
    ArithmeticKey(
        names=(
            *("logit_scale", "logits_scale", "logits_scaling", "logits_mup_width_multiplier"),
            *("lm_head_multiplier", "output_multiplier"),
        ),
        does="scales the logits",
        read_by="vLLM, SGLang",
        harmless=(1.0,),
    ),
    ArithmeticKey(
        names=(
            *("final_logit_softcapping", "final_logit_softcap", "logits_soft_cap"),
            *("logit_softcap", "output_softcap"),
        ),
        does="caps the logits",
        read_by="Gemma, Muse Spark",
        harmless=(0,),
    ),
    ArithmeticKey(
        names=("dspark_draft_topk",),
        does="lets the Markov head choose among so many candidates only",
        read_by="vLLM",
        harmless=(0,),
    ),
    ArithmeticKey(
        names=("selector_rank", "selector_top_k"),
        does="chooses a path through candidates, as DFlash 2 does",
        read_by="TensorRT-LLM",
        harmless=(0,),
    ),
    ArithmeticKey(
        names=("confidence_temperatures", "sts_temperatures"),
        does="divides the logits of the confidence head",
        read_by="SGLang, mlx-dspark",
    ),
)
"""One row for each meaning; a name is in one row only."""

_BY_NAME = {name: row for row in ARITHMETIC for name in row.names}
INHERITED = frozenset(name for row in ARITHMETIC if row.inherited for name in row.names)

_MATHEMATICAL = re.compile(
    "scal|factor|rope|rotary|causal|window|soft_?cap|logit|bias|norm|gate|gating|multiplier|"
    "divisor|sink|swa|conditioning|temperature|activation|attn_|bidirectional",
    re.IGNORECASE,
)
_PLUMBING = frozenset(
    {
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("attn_implementation_internal", "_attn_implementation_internal"),
        *("max_window_layers", "router_aux_loss_coef"),
    }
)
"""Names that look mathematical and decide nothing that is computed."""


def find_row(name: str) -> ArithmeticKey | None:
    """The row of a key, wherever the key stands."""
    return _BY_NAME.get(name)


def looks_mathematical(name: str) -> bool:
    """Whether the name of an unknown key suggests that something is computed with its value."""
    return name not in _PLUMBING and _MATHEMATICAL.search(name) is not None


def objects_of(decoder: KeyPath) -> tuple[KeyPath, ...]:
    """Every object of a config in which arithmetic keys are looked for."""
    bodies = tuple(dict.fromkeys([(), decoder]))
    rope = tuple((*body, name) for body in bodies for name in _ROPE_OBJECTS)
    return (*bodies, *rope, *_BLOCKS)


def keys_in(document: Mapping[str, Any], decoder: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Every key with a value in those objects; ``decoder`` is where the body's keys lie."""
    for path in objects_of(decoder):
        held = lookup(document, path)
        for key, value in held.items() if isinstance(held, Mapping) else ():
            if value is not None:
                yield (*path, key), value


def is_inherited(name: str, value: Any) -> bool:
    """Whether a key is the target's and would mislead an engine that obeys it."""
    row = _BY_NAME.get(name)
    return row is not None and row.inherited and not row.is_harmless(value)


def inherited_names(held: object) -> tuple[str, ...]:
    """The inherited keys of an object; none of anything else."""
    items: Iterable[tuple[str, Any]] = held.items() if isinstance(held, Mapping) else ()
    return tuple(key for key, value in items if is_inherited(key, value))


def remove_inherited(document: Document, decoder: KeyPath, understood: Collection[str]) -> None:
    """Remove from a config what came with the target, unless the decoder understands it."""
    for path, value in list(keys_in(document, decoder)):
        if is_inherited(path[-1], value) and path[-1] not in understood:
            remove(document, path)
