"""The dense form: one flat config, as DeepSpec writes it and dense engines read it.

Source of the keys: DeepSpec's model class and published configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_convert.formats.decoders import DECODERS, Decoder
from dspark_convert.formats.decoders.base import architectures_of
from dspark_convert.formats.dialects.base import Dialect
from dspark_convert.formats.dialects.shared import (
    DSPARK_ARCHITECTURE,
    LAYER_IDS,
    aux,
    draft_rules,
    layer_ids_in_blocks,
)
from dspark_convert.formats.rules import KeyPath, Place
from dspark_convert.schemas.source import DenseConfig

_DEEPSPEC_ANCHORS = 512
"""``num_anchors`` of DeepSpec's published configs; its loader accepts any integer."""


def _evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    signs = []
    named = architectures_of(config)
    bodies = {name for decoder in DECODERS.values() for name in decoder.architectures}
    signs += [f'architectures names "{name}"' for name in named if name in bodies][:1]
    if config.get("markov_rank") is not None and config.get(LAYER_IDS) is not None:
        signs.append("markov_rank and target_layer_ids at top level")
    elif DSPARK_ARCHITECTURE in named:
        signs.append(f'architectures names "{DSPARK_ARCHITECTURE}", decoder keys at top level')
    return tuple(signs)


def _constants(body: Decoder) -> Mapping[KeyPath, Any]:
    return {
        ("architectures",): [body.architectures[0]],
        ("model_type",): body.model_types[0],
        ("tie_word_embeddings",): False,
    }


DENSE = Dialect(
    name="dense",
    title="dense",
    mark="markov_rank and target_layer_ids",
    recognise=_evidence,
    document=DenseConfig,
    draft_rules=draft_rules(
        (
            Place((LAYER_IDS,)),
            aux("eagle_aux_hidden_state_layer_ids", written=True),
            aux("aux_hidden_state_layer_ids", written=False),
            *layer_ids_in_blocks(),
        ),
        both_spellings=True,
    ),
    constants_of=_constants,
    containers=(("dflash_config",), ("dspark_config",)),
    undeclared_layout="every reader of the dense form reads a missing key this way",
    supplied={"num_anchors": _DEEPSPEC_ANCHORS},
    nulls=(("sliding_window",),),
    added={
        "architectures": "the class that dense loaders look up",
        "model_type": "SGLang and vLLM need it to load a dense config",
        "tie_word_embeddings": "draft embedding and head are separate tensors",
        "sample_from_anchor": "the layout, made explicit: readers disagree about its absence",
        "dspark_bonus_anchor": "the layout, in its other spelling",
        "eagle_aux_hidden_state_layer_ids": "target_layer_ids + 1, the spelling that vLLM reads "
        "first",
        LAYER_IDS: "the spelling of dense readers",
        "rope_theta": "for readers that do not know rope_parameters",
        "rope_parameters": "for readers that do not know rope_theta",
        "torch_dtype": "for readers that do not know dtype",
        "dtype": "for readers that do not know torch_dtype",
        "num_anchors": "only training uses it, but DeepSpec's loader asks for it",
        "sliding_window": "no layer slides",
    },
)
