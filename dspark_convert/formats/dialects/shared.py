"""Where the dialects agree: the places of the draft's own keys.

Four fields are spelled differently from ``DraftConfig``, because files keep their parts in several
keys: ``sample_from_anchor`` (the layout), ``rope_theta`` and ``rope_scaling`` (together
``rope_parameters``) and ``use_sliding_window``; ``formats.parse`` joins and splits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dspark_convert.formats.rules import (
    LAYOUT_CONFLICT,
    FieldRule,
    KeyPath,
    Place,
    places,
)

DSPARK_ARCHITECTURE = "DSparkDraftModel"
"""The class that speculators and SpecForge name, whatever the body."""

DFLASH_ARCHITECTURES = ("DFlashDraftModel", "DFlashSpeculator")
"""Classes of DFlash, which trains 1+N; writers name them for drafts with a Markov head too."""

LAYER_IDS = "target_layer_ids"
LAYER_COUNTING = (
    "target_layer_ids count decoder layers from 0, one less than aux_hidden_state_layer_ids"
)
PLAIN_LAYER_IDS = Place((LAYER_IDS,))
"""The layer ids as ``DraftConfig`` and ``--set`` spell them."""


def negated(value: bool) -> bool:
    """The opposite flag; its own inverse."""
    return not value


def from_aux_ids(ids: list[int]) -> list[int]:
    """ "Layers before the feature" (embedding 0) to "after layer k" (embedding -1)."""
    return [layer_id - 1 for layer_id in ids]


def to_aux_ids(ids: list[int]) -> list[int]:
    """The inverse of ``from_aux_ids``."""
    return [layer_id + 1 for layer_id in ids]


def nested(name: str, *aliases: str) -> tuple[Place, ...]:
    """A draft key at top level, or in the blocks that DFlash-derived writers use."""
    return places((name,), *_blocks(name), *_other_names(aliases))


def _blocks(name: str) -> tuple[KeyPath, ...]:
    return ("dflash_config", name), ("dspark_config", name)


def inside(name: str, *aliases: str) -> tuple[Place, ...]:
    """A draft key that a writer keeps in ``dflash_config``, read at top level too."""
    block, other = _blocks(name)
    return places(block, other, (name,), *_other_names(aliases))


def _other_names(aliases: tuple[str, ...]) -> Iterator[KeyPath]:
    """Further names of a key, at top level and in the blocks."""
    for alias in aliases:
        yield from ((alias,), *_blocks(alias))


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
        *places(*others, written=0),
    )


def draft_rules(
    layer_ids: tuple[Place, ...],
    decoder: KeyPath = (),
    *,
    both_spellings: bool,
    heads: Callable[..., tuple[Place, ...]] = nested,
) -> tuple[FieldRule, ...]:
    """Where a dialect keeps everything but the body.

    Args:
        layer_ids: the places of the layer ids.
        decoder: the object that holds the body's keys.
        both_spellings: whether its writer repeats layout and dtype under their other names.
        heads: the places of a key of the heads, by its name and further names.
    """
    causality = (
        Place(("sliding_window_non_causal",)),
        *(
            Place(path, negated, negated, written=False, carried=True)
            for path in _causality_paths(decoder)
        ),
    )
    dtype = (
        Place(("dtype",), _plain_dtype),
        Place(("torch_dtype",), _plain_dtype, written=both_spellings),
    )
    layout = _layout_places(both=both_spellings)
    return (
        FieldRule("block_size", nested("block_size", "dspark_block_size")),
        FieldRule("mask_token_id", heads("mask_token_id", "dspark_noise_token_id")),
        FieldRule("target_layer_ids", layer_ids, counting=LAYER_COUNTING),
        FieldRule("sample_from_anchor", layout, None, conflict_code=LAYOUT_CONFLICT),
        FieldRule("draft_vocab_size", nested("draft_vocab_size"), default=None),
        FieldRule("target_hidden_size", nested("target_hidden_size"), default=None),
        FieldRule("num_target_layers", nested("num_target_layers"), default=None),
        FieldRule("sliding_window_non_causal", causality, default=None),
        FieldRule("markov_rank", heads("markov_rank", "dspark_markov_rank"), default=None),
        FieldRule(
            "markov_head_type", heads("markov_head_type", "dspark_markov_head_type"), default=None
        ),
        FieldRule(
            "enable_confidence_head",
            heads("enable_confidence_head", "use_confidence_head"),
            default=None,
        ),
        FieldRule(
            "confidence_head_with_markov", heads("confidence_head_with_markov"), default=None
        ),
        FieldRule("num_anchors", places(("num_anchors",)), default=None),
        FieldRule("dtype", dtype, default=None),
    )


def _causality_paths(decoder: KeyPath) -> tuple[KeyPath, ...]:
    """Every spelling of causality inside the block; of each name, the first is written back.

    ``is_causal``: vLLM and SGLang; ``causal``: vLLM; ``dflash_query_causal``: Model-Optimizer.
    """
    bodies = tuple(dict.fromkeys([decoder, ()]))
    return (
        *((*at, "is_causal") for at in bodies),
        *_blocks("causal"),
        *((*at, "causal") for at in bodies),
        *((*at, "dflash_query_causal") for at in bodies),
        *_blocks("is_causal"),
        *_blocks("dflash_query_causal"),
    )


def _plain_dtype(name: str) -> str:
    return name.removeprefix("torch.")


def layer_ids_in_blocks() -> tuple[Place, ...]:
    """Layer ids that DFlash-derived writers keep in their blocks, read only."""
    return places(*_blocks(LAYER_IDS), written=0)


def aux(*path: str, written: bool) -> Place:
    """A key that holds layer ids in the counting of speculators and vLLM."""
    return Place(path, from_aux_ids, to_aux_ids, written=written)


def nests_decoder(config: Mapping[str, Any]) -> bool:
    """Whether the body's keys lie in an object of their own."""
    return isinstance(config.get("transformer_layer_config"), dict)


def nests_heads(config: Mapping[str, Any]) -> bool:
    """Whether only ``dflash_config`` holds the keys of DSpark's heads."""
    block = config.get("dflash_config")
    return (
        isinstance(block, dict)
        and config.get("markov_rank") is None
        and (block.get("markov_rank") is not None or block.get("projector_type") == "dspark")
    )
