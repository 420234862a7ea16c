"""A checkpoint as a serving engine sees it: what the claims of ``engines`` ask about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.quantisation import Scheme
from dspark_convert.formats.rules import lookup
from dspark_convert.schemas.draft import DraftConfig, Layout


@dataclass(frozen=True)
class EngineView:
    """A checkpoint as an engine sees it."""

    dialect: Dialect
    config: DraftConfig
    document: Mapping[str, Any]
    """``config.json``."""
    tensors: Collection[str]
    """Stored names."""
    scheme: Scheme | None = None
    """How weights are quantised; None: they are not."""

    @property
    def nested(self) -> bool:
        """Whether the decoder's keys lie in an object of their own."""
        return bool(self.dialect.decoder)

    def silent_about(self, *keys: str) -> bool:
        """Whether a flat config lacks one of ``keys``: engines do not infer what is missing."""
        return not self.nested and any(self.document.get(key) is None for key in keys)

    def named(self, architectures: Collection[str]) -> bool:
        """Whether the config names one of ``architectures``, or a class of its decoder."""
        known = {*architectures, *self.dialect.body.architectures}
        names = self.document.get("architectures")
        return isinstance(names, list) and any(name in known for name in names)

    def decoder_key(self, key: str) -> Any:
        """A key of the decoder, taken from where this dialect keeps it."""
        decoder = lookup(self.document, self.dialect.decoder)
        return (decoder if isinstance(decoder, Mapping) else self.document).get(key)

    def hides(self, key: str) -> bool:
        """Whether there is a ``dflash_config``, and ``key`` is not in it."""
        block = self.document.get("dflash_config")
        return isinstance(block, Mapping) and block.get(key) is None

    @property
    def layout_declared(self) -> bool:
        """Whether ``sample_from_anchor`` is written."""
        return self.document.get("sample_from_anchor") is not None

    @property
    def prefixed(self) -> bool:
        """Whether a tensor is stored with the prefix that decoders carry inside a model."""
        return any(name.startswith("model.") for name in self.tensors)

    @property
    def keys_of_deepspec(self) -> tuple[str, ...]:
        """The keys that its model class asserts."""
        keys = ["target_layer_ids", "mask_token_id", "num_anchors", "enable_confidence_head"]
        keys += ["markov_rank", *(["markov_head_type"] if self.markov else [])]
        heads = ["confidence_head_with_markov"] if self.config.enable_confidence_head else []
        return (*keys, *heads)

    @property
    def rotates_partly(self) -> bool:
        """Whether a reader of the config would rotate only a share of each head."""
        bodies = (self.dialect.decoder, ())
        rope = [(*at, name) for at in bodies for name in ("rope_parameters", "rope_scaling")]
        if any(lookup(self.document, (*path, "rope_dim")) for path in rope):
            return False  # it comes first, and only one that is the whole head is accepted
        shares = [lookup(self.document, (*at, "partial_rotary_factor")) for at in (*bodies, *rope)]
        return any(share not in (None, 1.0) for share in shares)

    @property
    def forced_to_slide(self) -> bool:
        """Whether ``dflash_config`` lets every layer slide where ``layer_types`` names none."""
        named = self.decoder_key("layer_types") or ()
        forced = lookup(self.document, ("dflash_config", "use_swa"))
        return bool(forced) and "sliding_attention" not in named

    @property
    def causal_anyway(self) -> bool:
        """Whether sliding layers should see the whole block but ``is_causal`` does not say so."""
        return self.config.sliding_window_non_causal and self.document.get("is_causal") is not False

    @property
    def markov(self) -> str:
        """The type of the Markov head; empty if there is none."""
        return self.config.markov_head_type if self.config.markov_rank else ""

    @property
    def reduced(self) -> bool:
        """Whether the draft vocabulary is smaller than the target's."""
        return self.config.reduced_vocabulary

    @property
    def resized(self) -> bool:
        """Whether the draft vocabulary is smaller or larger than the target's."""
        return self.config.draft_vocab_size != self.config.vocab_size

    @property
    def bonus_anchor(self) -> bool:
        """Whether the layout is 1+N."""
        return self.config.layout is Layout.BONUS_ANCHOR

    @property
    def last_layer_ids(self) -> bool:
        """Whether the draft reads the target's last layer."""
        depth = self.config.num_target_layers
        return depth is not None and depth - 1 in self.config.target_layer_ids
