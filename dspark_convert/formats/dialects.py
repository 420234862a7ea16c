"""The dialects as tables: where each keeps every field of a draft (FORMATS, sections 1 and 5).

Four fields are spelled apart from ``DraftConfig``, because files keep their parts in several keys:
``sample_from_anchor`` (the layout), ``rope_theta`` and ``rope_scaling`` (together
``rope_parameters``) and ``use_sliding_window``; ``formats.neutral`` joins and splits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dspark_convert.formats.rules import LAYOUT_CONFLICT, Dialect, FieldRule, KeyPath, Place

QWEN3_DEFAULT = "transformers' Qwen3Config default"
DEEPSPEC_NUM_ANCHORS = 512
"""``num_anchors`` of DeepSpec's published configs; its loader wants any integer."""
LAYER_IDS = "target_layer_ids"
LAYER_COUNTING = (
    "target_layer_ids count decoder layers from 0, one less than aux_hidden_state_layer_ids"
)
PLAIN_LAYER_IDS = Place((LAYER_IDS,))
"""The layer ids as ``DraftConfig`` and ``--set`` spell them."""

_DECODER_DEFAULTS: Mapping[str, Any] = {
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


def negated(value: bool) -> bool:
    """The opposite flag; its own inverse."""
    return not value


def from_aux_ids(ids: list[int]) -> list[int]:
    """ "Layers before the feature" (embedding 0) to "after layer k" (embedding -1)."""
    return [layer_id - 1 for layer_id in ids]


def to_aux_ids(ids: list[int]) -> list[int]:
    """The inverse of ``from_aux_ids``."""
    return [layer_id + 1 for layer_id in ids]


def without_theta(parameters: dict[str, Any]) -> dict[str, Any] | None:
    """RoPE parameters but the base, the type under its modern name; None when nothing is left."""
    rest = {key: value for key, value in parameters.items() if key not in ("rope_theta", "type")}
    if "type" in parameters:
        rest.setdefault("rope_type", parameters["type"])
    return rest or None


def _places(*paths: KeyPath, written: int = 1) -> tuple[Place, ...]:
    return tuple(Place(path, written=index < written) for index, path in enumerate(paths))


def _decoder_rules(decoder: KeyPath) -> tuple[FieldRule, ...]:
    """Keys of the Qwen3 decoder. A nested dialect may repeat them at top level."""

    def places(name: str) -> tuple[Place, ...]:
        return _places((*decoder, name), *([(name,)] if decoder else []))

    sized = tuple(
        FieldRule(name, places(name), default, QWEN3_DEFAULT)
        for name, default in _DECODER_DEFAULTS.items()
    )
    return (
        *sized,
        FieldRule("layer_types", places("layer_types"), default=None),
        FieldRule("use_sliding_window", places("use_sliding_window"), default=None, settable=False),
        FieldRule(
            "sliding_window",
            (*places("sliding_window"), *_places(("dflash_config", "swa_window_size"), written=0)),
            default=None,
        ),
        *_rope_rules(decoder),
    )


def _rope_rules(decoder: KeyPath) -> tuple[FieldRule, ...]:
    keys = [
        (*at, key)
        for at in dict.fromkeys([decoder, ()])
        for key in ("rope_parameters", "rope_theta", "rope_scaling")
    ]
    objects = [path for path in keys if path[-1] != "rope_theta"]
    bases = [path if path[-1] == "rope_theta" else (*path, "rope_theta") for path in keys]
    return (
        FieldRule(
            "rope_scaling",
            tuple(Place(path, without_theta, dict, path == objects[0]) for path in objects),
            default={"rope_type": "default"},
            conflict_code="rope-conflict",
        ),
        FieldRule(
            "rope_theta",
            _places(*bases, written=1 if decoder else 2),
            conflict_code="rope-conflict",
        ),
    )


def _nested(name: str, *aliases: str) -> tuple[Place, ...]:
    """A draft key at top level, or in the blocks that DFlash-derived writers use."""
    return _places((name,), *_blocks(name), *((alias,) for alias in aliases))


def _blocks(name: str) -> tuple[KeyPath, ...]:
    return ("dflash_config", name), ("dspark_config", name)


def _inside(name: str, *aliases: str) -> tuple[Place, ...]:
    """A draft key that a writer keeps in ``dflash_config``, read at top level too."""
    block, other = _blocks(name)
    return _places(block, other, (name,), *((alias,) for alias in aliases))


def _layout_places(*, both: bool) -> tuple[Place, ...]:
    """Every spelling of the layout; ``shift_label`` is that of DFlash's Domino projector.

    ``query_zero_predicts_next`` and ``shift_label``: SGLang, pull request 40203.
    """
    names = ("sample_from_anchor", "query_zero_predicts_next", "shift_label")
    paths = [path for name in names for path in ((name,), *_blocks(name))]
    first, *others = paths
    return (
        Place(first),
        Place(("dspark_bonus_anchor",), negated, negated, written=both),
        *(Place(path, negated, negated, False) for path in _blocks("dspark_bonus_anchor")),
        *_places(*others, written=0),
    )


def _draft_rules(
    layer_ids: tuple[Place, ...],
    decoder: KeyPath = (),
    *,
    both_spellings: bool,
    heads: Callable[..., tuple[Place, ...]] = _nested,
) -> tuple[FieldRule, ...]:
    causality = (
        Place(("sliding_window_non_causal",)),
        *(
            Place(path, negated, negated, written=False, carried=True)
            for path in dict.fromkeys([(*decoder, "is_causal"), ("is_causal",)])
        ),
        Place(("dflash_config", "causal"), negated, negated, written=False, carried=True),
    )
    dtype = (
        Place(("dtype",), _plain_dtype),
        Place(("torch_dtype",), _plain_dtype, written=both_spellings),
    )
    layout = _layout_places(both=both_spellings)
    return (
        FieldRule("block_size", _nested("block_size", "dspark_block_size")),
        FieldRule("mask_token_id", heads("mask_token_id", "dspark_noise_token_id")),
        FieldRule("target_layer_ids", layer_ids, counting=LAYER_COUNTING),
        FieldRule("sample_from_anchor", layout, None, conflict_code=LAYOUT_CONFLICT),
        FieldRule("draft_vocab_size", _nested("draft_vocab_size"), default=None),
        FieldRule("target_hidden_size", _nested("target_hidden_size"), default=None),
        FieldRule("num_target_layers", _nested("num_target_layers"), default=None),
        FieldRule("sliding_window_non_causal", causality, default=None),
        FieldRule("markov_rank", heads("markov_rank", "dspark_markov_rank"), default=None),
        FieldRule(
            "markov_head_type", heads("markov_head_type", "dspark_markov_head_type"), default=None
        ),
        FieldRule("enable_confidence_head", heads("enable_confidence_head"), default=None),
        FieldRule(
            "confidence_head_with_markov", heads("confidence_head_with_markov"), default=None
        ),
        FieldRule("num_anchors", _places(("num_anchors",)), default=None),
        FieldRule("dtype", dtype, default=None),
    )


def _plain_dtype(name: str) -> str:
    return name.removeprefix("torch.")


def _aux(*path: str, written: bool) -> Place:
    return Place(path, from_aux_ids, to_aux_ids, written=written)


_BLOCK_LAYER_IDS = _places(*_blocks("target_layer_ids"), written=0)

DENSE = Dialect(
    name="dense",
    rules=(
        *_decoder_rules(()),
        *_draft_rules(
            (
                Place(("target_layer_ids",)),
                _aux("eagle_aux_hidden_state_layer_ids", written=True),
                _aux("aux_hidden_state_layer_ids", written=False),
                *_BLOCK_LAYER_IDS,
            ),
            both_spellings=True,
        ),
    ),
    constants={
        ("architectures",): ["Qwen3DSparkModel"],
        ("model_type",): "qwen3",
        ("tie_word_embeddings",): False,
    },
    containers=(("dflash_config",), ("dspark_config",)),
    undeclared_layout="every reader of the dense form takes an absent key as this",
)

SPECFORGE = Dialect(
    name="specforge",
    rules=(
        *_decoder_rules(()),
        *_draft_rules(
            (
                Place(("dflash_config", "target_layer_ids")),
                Place(("dspark_config", "target_layer_ids"), written=False),
                Place(("target_layer_ids",), written=False),
                _aux("eagle_aux_hidden_state_layer_ids", written=False),
                _aux("aux_hidden_state_layer_ids", written=False),
            ),
            both_spellings=False,
            heads=_inside,
        ),
    ),
    constants={
        ("architectures",): ["DSparkDraftModel"],
        ("model_type",): "qwen3",
        ("tie_word_embeddings",): False,
        ("dflash_config", "projector_type"): "dspark",
    },
    own_keys={
        ("dflash_config", "projector_type"): "tells DSpark from DFlash inside SpecForge",
        ("dflash_config", "attention_mode"): "picks a class of SpecForge; the tensors say the same",
        ("dflash_config", "confidence_head_alpha"): "weight of a training loss",
    },
    containers=(("dflash_config",), ("dspark_config",)),
    undeclared_layout="SpecForge trains no other layout and declares none",
)

SPECULATORS = Dialect(
    name="speculators",
    rules=(
        *_decoder_rules(("transformer_layer_config",)),
        *_draft_rules(
            (
                _aux("aux_hidden_state_layer_ids", written=True),
                _aux("eagle_aux_hidden_state_layer_ids", written=False),
                Place(("target_layer_ids",), written=False),
                *_BLOCK_LAYER_IDS,
            ),
            ("transformer_layer_config",),
            both_spellings=False,
        ),
    ),
    constants={
        ("architectures",): ["DSparkDraftModel"],
        ("speculators_model_type",): "dspark",
        ("transformer_layer_config", "model_type"): "qwen3",
        ("tie_word_embeddings",): False,
    },
    own_keys={
        ("speculators_config",): "proposal methods and verifier: only speculators reads them",
        ("speculators_model_type",): "names the speculators class",
        ("speculators_version",): "version of the library that wrote the source",
    },
    foreign_keys={("model_type",): "vLLM takes a config with a model_type at top level for dense"},
    containers=(("transformer_layer_config",), ("dflash_config",), ("dspark_config",)),
    decoder=("transformer_layer_config",),
    decoder_keys=frozenset(
        {
            *("attention_dropout", "initializer_range", "use_cache", "max_window_layers"),
            *("bos_token_id", "eos_token_id", "pad_token_id"),
        }
    ),
)

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (DENSE, SPECFORGE, SPECULATORS)
}
