"""SpecForge's export: a flat config that keeps the keys of the heads in ``dflash_config``.

Source of the keys: SpecForge's exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_convert.formats.decoders import Decoder
from dspark_convert.formats.dialects.base import Dialect
from dspark_convert.formats.dialects.shared import (
    DSPARK_ARCHITECTURE,
    LAYER_IDS,
    aux,
    draft_rules,
    inside,
    nests_heads,
)
from dspark_convert.formats.rules import KeyPath, Place
from dspark_convert.schemas.source import DenseConfig


def _evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    if not nests_heads(config):
        return ()
    signs = ["dflash_config holds the keys of the heads, the top level none"]
    if config["dflash_config"].get("projector_type") == "dspark":
        signs.append('dflash_config.projector_type is "dspark"')
    return tuple(signs)


def _constants(body: Decoder) -> Mapping[KeyPath, Any]:
    return {
        ("architectures",): [DSPARK_ARCHITECTURE],
        ("model_type",): body.model_types[0],
        ("tie_word_embeddings",): False,
        ("dflash_config", "projector_type"): "dspark",
    }


SPECFORGE = Dialect(
    name="specforge",
    title="SpecForge",
    mark="markov_rank in dflash_config",
    recognise=_evidence,
    document=DenseConfig,
    draft_rules=draft_rules(
        (
            Place(("dflash_config", LAYER_IDS)),
            Place(("dspark_config", LAYER_IDS), written=False),
            Place((LAYER_IDS,), written=False),
            aux("eagle_aux_hidden_state_layer_ids", written=False),
            aux("aux_hidden_state_layer_ids", written=False),
        ),
        both_spellings=False,
        heads=inside,
    ),
    constants_of=_constants,
    own_keys={
        ("dflash_config", "projector_type"): "tells DSpark from DFlash inside SpecForge",
        ("dflash_config", "attention_mode"): "picks a class of SpecForge; the tensors say the same",
        ("dflash_config", "confidence_head_alpha"): "weight of a training loss",
    },
    containers=(("dflash_config",), ("dspark_config",)),
    undeclared_layout="SpecForge trains no other layout and declares none",
)
