"""The speculators form: the body's keys in ``transformer_layer_config``, the target named.

Source of the keys: speculators 0.9.0, ``models/dflash/core.py``.
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
    layer_ids_in_blocks,
    nests_decoder,
)
from dspark_convert.formats.rules import KeyPath, Place
from dspark_convert.formats.tensors import verifiers_tensors
from dspark_convert.schemas.source import SpeculatorsConfig

USE = "speculators_config"
"""The key that says how a draft is meant to be used, and with which target."""

_DECODER: KeyPath = ("transformer_layer_config",)


def _evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    if not nests_decoder(config):
        return ()
    signs = ["transformer_layer_config nests the decoder"]
    if config.get("speculators_model_type") == "dspark":
        signs.append('speculators_model_type is "dspark"')
    return tuple(signs)


def _constants(body: Decoder) -> Mapping[KeyPath, Any]:
    return {
        ("architectures",): [DSPARK_ARCHITECTURE],
        ("speculators_model_type",): "dspark",
        (*_DECODER, "model_type"): body.model_types[0],
        ("tie_word_embeddings",): False,
    }


SPECULATORS = Dialect(
    name="speculators",
    title="speculators",
    mark="transformer_layer_config",
    recognise=_evidence,
    document=SpeculatorsConfig,
    draft_rules=draft_rules(
        (
            aux("aux_hidden_state_layer_ids", written=True),
            aux("eagle_aux_hidden_state_layer_ids", written=False),
            Place((LAYER_IDS,), written=False),
            *layer_ids_in_blocks(),
        ),
        _DECODER,
        both_spellings=False,
    ),
    constants_of=_constants,
    own_keys={
        (USE,): "proposal methods and verifier: only speculators reads them",
        ("speculators_model_type",): "names the speculators class",
        ("speculators_version",): "version of the library that wrote the source",
    },
    foreign_keys={("model_type",): "vLLM takes a config with a model_type at top level for dense"},
    containers=(_DECODER, ("dflash_config",), ("dspark_config",)),
    decoder=_DECODER,
    decoder_keys=frozenset(
        {
            *("attention_dropout", "initializer_range", "use_cache", "max_window_layers"),
            *("bos_token_id", "eos_token_id", "pad_token_id"),
        }
    ),
    always_written=frozenset({"draft_vocab_size"}),
    added={
        "architectures": "the class that speculators names in what it saves",
        "speculators_model_type": "speculators looks its class up by it",
        "transformer_layer_config.model_type": "the class of the decoder's config",
        "tie_word_embeddings": "draft embedding and head are separate tensors",
        "sample_from_anchor": "the layout, made explicit: readers disagree about its absence",
        "draft_vocab_size": "speculators' default is 32000, whatever the target has",
        "aux_hidden_state_layer_ids": "target_layer_ids + 1, the spelling of speculators",
        USE: "how the draft is meant to be used, and with which target",
    },
    verifiers=verifiers_tensors,
    tags=("speculators",),
)
