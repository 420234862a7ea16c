"""Drafts that are recognised and refused: one row each, tried after every supported row."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import DialectError, Finding
from dspark_convert.formats.bundled import BUNDLED
from dspark_convert.formats.decoders import DECODERS
from dspark_convert.formats.decoders.base import architectures_of
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.dialects.shared import DFLASH_ARCHITECTURES, nests_heads

OTHER_DRAFTS: Mapping[str, str] = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "dflash": "DFlash",
    "mtp": "multi-token prediction (MTP)",
    "peagle": "P-EAGLE",
    "mlp": "an MLP speculator",
    "independent": "an independent draft model",
}
"""``speculators_model_type`` values that are not DSpark."""

OTHER_ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLMEagle": "EAGLE",
    "LlamaForCausalLMEagle3": "EAGLE-3",
    "Eagle3Speculator": "EAGLE-3",
    "Eagle3DraftModel": "EAGLE-3",
    "EagleSpeculator": "EAGLE",
    **dict.fromkeys(DFLASH_ARCHITECTURES, "DFlash"),
    "MTPDraftModel": "multi-token prediction (MTP)",
}

_LATENT = re.compile(r"self_attn\.(?:q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.")
_LINEAR = re.compile(r"linear_attn\.|self_attn\.(?:A_log|dt_bias|[qkv]_conv1d|f_[ab]_proj)\b")
_EXPERTS = re.compile(
    r"block_sparse_moe\.|(?:mlp|ffn|feed_forward)\.(?:gate|router|experts|shared_experts?)\."
)
_PUBLISHERS = "the engine that its publisher names"
_PLAIN_PARTS = (".self_attn.q_proj.weight", ".mlp.gate_proj.weight")
"""Of the default decoder's tensors, one of its attention and one of its MLP."""

_MINIMAX_PREFIXES = ("dspark.", "model.dspark.", "language_model.model.dspark.")


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """A DSpark draft that is known but not supported: what is different, and who serves it."""

    name: str
    what: str
    served_by: str
    architectures: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    marks: Callable[[Mapping[str, Any], Collection[str]], bool] = lambda config, names: False
    """Whether a config or the stored names identify it if no class name does."""


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        name="gemma4",
        what="shares K and V, scales embeddings and caps logits",
        served_by="vLLM and DeepSpec",
        architectures=("Gemma4DSparkModel",),
    ),
    Unsupported(
        name="kimi-k3",
        what="uses multi-head latent attention; its num_target_layers counts the captured layers",
        served_by="vLLM",
        architectures=("K3DSparkModel",),
        model_types=("k3_dspark",),
    ),
    Unsupported(
        name="lfm2",
        what="targets LFM2",
        served_by="SGLang and llama.cpp",
        architectures=("Lfm2DSparkDraftModel",),
    ),
    Unsupported(
        name="muse-spark",
        what="is causal everywhere, caps its logits and always needs lm_head and d2t",
        served_by="vLLM",
        architectures=("MuseSparkDSparkModel",),
    ),
    Unsupported(
        name="qwen3-omni",
        what="follows its own rules: vanilla head, anchor-first, the width of the thinker",
        served_by="vLLM",
        architectures=("Qwen3OmniDSparkModel",),
    ),
    Unsupported(
        name="ling",
        what="targets Ling",
        served_by="SGLang and llama.cpp",
        architectures=("LingDSparkModel",),
    ),
    Unsupported(
        name="torchspec",
        what='is a training checkpoint (model_type "qwen3_dspark", Markov head "classical")',
        served_by="no engine; export it from TorchSpec to the dense form",
        model_types=("qwen3_dspark",),
        marks=lambda config, names: config.get("markov_head_type") == "classical",
    ),
    Unsupported(
        name=BUNDLED,
        what="is bundled inside its target (dspark_* keys, mtp.* tensors)",
        served_by="vLLM and SGLang, from the target's own folder: nothing is renamed",
        architectures=("DeepseekV4ForCausalLMDSpark", "DSparkV41DraftModel"),
        marks=lambda config, names: (
            config.get("dspark_target_layer_ids") is not None
            or any(name.startswith("mtp.") for name in names)
        ),
    ),
    Unsupported(
        name="minimax-m3",
        what="stores its tensors under dspark. among the target's, and is bidirectional everywhere",
        served_by="SGLang",
        architectures=("DSparkMiniMaxDraftModel",),
        marks=lambda config, names: any(name.startswith(_MINIMAX_PREFIXES) for name in names),
    ),
    Unsupported(
        name="qwen3.5-gated",
        what="gates its attention, adds one to its norms and rotates a part of each head",
        served_by="mlx-dspark",
        architectures=("Qwen35DSparkModel",),
    ),
    Unsupported(
        name="linear-attention",
        what="has layers of linear attention (KDA)",
        served_by=_PUBLISHERS,
        marks=lambda config, names: (
            _stored(_LINEAR, names)
            or _names_kind(config, "kda", "linear")
            or (_gives(config, "linear_attn_config") and _lacks_plain_parts(names))
        ),
    ),
    Unsupported(
        name="latent-attention",
        what="uses multi-head latent attention (MLA)",
        served_by=_PUBLISHERS,
        marks=lambda config, names: (
            _stored(_LATENT, names)
            or _names_kind(config, "mla")
            or (_gives(config, "q_lora_rank", "kv_lora_rank") and _lacks_plain_parts(names))
        ),
    ),
    Unsupported(
        name="mixture-of-experts",
        what="has experts in the place of its MLP (MoE)",
        served_by=_PUBLISHERS,
        marks=lambda config, names: (
            _stored(_EXPERTS, names)
            or (
                _gives(config, "n_routed_experts", "num_experts", "num_local_experts")
                and _lacks_plain_parts(names)
            )
        ),
    ),
)
"""Identified by architecture, else by model type, else by their marks, each in this order."""


def refuse_other_drafts(config: Mapping[str, Any]) -> None:
    """Refuse drafts of other kinds.

    Raises:
        DialectError: ``unsupported-draft``.
    """
    kind = config.get("speculators_model_type")
    if isinstance(kind, str) and kind != "dspark":
        raise _other_draft(OTHER_DRAFTS.get(kind, kind), f"speculators_model_type {kind!r}")
    for name in architectures_of(config):
        if name in OTHER_ARCHITECTURES and not _has_markov(config):
            raise _other_draft(OTHER_ARCHITECTURES[name], f"architectures {name!r}")


def refuse_unsupported(config: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse DSpark drafts of a shape that is known but not supported.

    Raises:
        DialectError: ``unsupported-dialect``.
    """
    architectures = architectures_of(config)
    told = (
        [row for row in UNSUPPORTED if not set(row.architectures).isdisjoint(architectures)]
        or [row for row in UNSUPPORTED if config.get("model_type") in row.model_types]
        or [row for row in UNSUPPORTED if row.marks(config, names)]
    )
    if told:
        raise unsupported_dialect(told[0].name, told[0].what, told[0].served_by)


def unsupported_dialect(name: str, what: str, served_by: str) -> DialectError:
    """The refusal of a DSpark draft that is known but not supported."""
    dialects = one_of([dialect.title for dialect in DIALECTS.values()])
    decoders = one_of([decoder.title for decoder in DECODERS.values()])
    return DialectError(
        Finding(
            code="unsupported-dialect",
            message=f"a DSpark draft of the {name} dialect, which {what}; it is not supported",
            file=CONFIG_FILE,
            found=name,
            expected=f"{dialects}, with a {decoders}-style decoder",
            hint=f"served by: {served_by}",
        )
    )


def _stored(pattern: re.Pattern[str], names: Collection[str]) -> bool:
    return any(pattern.search(name) for name in names)


def _gives(config: Mapping[str, Any], *keys: str) -> bool:
    """Whether the config has one of ``keys``; drafts inherit such keys from their targets."""
    return any(_anywhere(config, key) for key in keys)


def _lacks_plain_parts(names: Collection[str]) -> bool:
    """Whether weights are stored, but not those of the default decoder."""
    return bool(names) and not all(any(x.endswith(part) for x in names) for part in _PLAIN_PARTS)


def _names_kind(config: Mapping[str, Any], *kinds: str) -> bool:
    """Whether the draft's own list of layer kinds has one of ``kinds``."""
    named: list[Any] = []
    for key in ("attention_modes", "attention_mode", "draft_layer_types"):
        value = _anywhere(config, key)
        named += value if isinstance(value, list) else [value]
    words = [word for value in named for word in re.split("[^a-z]+", str(value).lower())]
    return not set(kinds).isdisjoint(words)


def _anywhere(config: Mapping[str, Any], key: str) -> Any:
    """A key of the top level, of the nested decoder, or of a block of DFlash-derived writers."""
    blocks = ("transformer_layer_config", "dflash_config", "dspark_config")
    held = [config, *(config.get(block) for block in blocks)]
    values = [block.get(key) for block in held if isinstance(block, Mapping)]
    return next((value for value in values if value), None)


def one_of(choices: Sequence[str]) -> str:
    """Choices, listed as in a sentence."""
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def _has_markov(config: Mapping[str, Any]) -> bool:
    return config.get("markov_rank") is not None or nests_heads(config)


def _other_draft(kind: str, found: str) -> DialectError:
    return DialectError(
        Finding(
            code="unsupported-draft",
            message=f"this draft is {kind}, not DSpark",
            file=CONFIG_FILE,
            found=found,
            hint="only DSpark drafts can be converted; use the tools of that draft's own library",
        )
    )
