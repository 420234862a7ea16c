"""Which dialect a config is of, and the evidence for it. Exact names only, never substrings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dspark_convert.errors import DialectError, Finding
from dspark_convert.formats.dialects import DENSE, SPECFORGE, SPECULATORS
from dspark_convert.formats.rules import Dialect

CONFIG = "config.json"

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
    "DFlashDraftModel": "DFlash",
    "DFlashSpeculator": "DFlash",
    "MTPDraftModel": "multi-token prediction (MTP)",
}


class Recognised(NamedTuple):
    """A dialect that is known and not supported: what is different, and who serves it."""

    dialect: str
    what: str
    served_by: str


_DEEPSEEK_V4 = Recognised(
    "deepseek-v4",
    "is bundled inside its target (dspark_* keys, mtp.* tensors)",
    "vLLM and SGLang, from the target's own folder: nothing is renamed",
)
_MODELOPT = Recognised(
    "modelopt", "stores quantised weights with scales", "the engine that it was quantised for"
)
_MINIMAX = Recognised(
    "minimax-m3",
    "stores its tensors below dspark. among the target's and is bidirectional everywhere",
    "SGLang",
)
_NEMOTRON = Recognised(
    "nemotron-nvfp4",
    "stores NVFP4 weights and its own embedding, and lets the target supply the head",
    "SGLang",
)
_TORCHSPEC = Recognised(
    "torchspec",
    'is a training checkpoint (model_type "qwen3_dspark", Markov head "classical")',
    "no engine; export it from TorchSpec to the dense form",
)
_KIMI_K3 = Recognised(
    "kimi-k3",
    "uses multi-head latent attention; its num_target_layers counts the captured layers",
    "vLLM",
)

RECOGNISED_ARCHITECTURES: Mapping[str, Recognised] = {
    "Gemma4DSparkModel": Recognised(
        "gemma4",
        "shares K and V, scales embeddings and caps logits",
        "vLLM and DeepSpec",
    ),
    "K3DSparkModel": _KIMI_K3,
    "Lfm2DSparkDraftModel": Recognised("lfm2", "targets LFM2", "SGLang and llama.cpp"),
    "DSparkMiniMaxDraftModel": _MINIMAX,
    "MuseSparkDSparkModel": Recognised(
        "muse-spark",
        "is causal everywhere, caps its logits and always needs lm_head and d2t",
        "vLLM",
    ),
    "Qwen3OmniDSparkModel": Recognised(
        "qwen3-omni",
        "follows rules of its own: vanilla head, anchor-first, the width of the thinker",
        "vLLM",
    ),
    "LingDSparkModel": Recognised("ling", "targets Ling", "SGLang and llama.cpp"),
    "DeepseekV4ForCausalLMDSpark": _DEEPSEEK_V4,
    "DSparkV41DraftModel": _DEEPSEEK_V4,
}
"""DSpark drafts whose decoder is not the Qwen3 one, by architecture."""

RECOGNISED_MODEL_TYPES: Mapping[str, Recognised] = {
    "k3_dspark": _KIMI_K3,
    "qwen3_dspark": _TORCHSPEC,
}

_MINIMAX_PREFIXES = ("dspark.", "model.dspark.", "language_model.model.dspark.")


@dataclass(frozen=True)
class Detection:
    """A dialect and why it was chosen."""

    dialect: Dialect
    evidence: tuple[str, ...]


def detect(config: Mapping[str, Any], tensor_names: Iterable[str]) -> Detection:
    """Name the dialect of a config.

    Raises:
        DialectError: ``unsupported-draft`` (another kind of draft), ``unsupported-dialect`` (a
            DSpark draft of a shape that is recognised and not supported) or ``unknown-dialect``.
    """
    _refuse_other_drafts(config)
    _refuse_recognised(config, tensor_names)
    if isinstance(config.get("transformer_layer_config"), dict):
        return Detection(SPECULATORS, _speculators_evidence(config))
    if _nested_only(config):
        return Detection(SPECFORGE, _specforge_evidence(config))
    evidence = _dense_evidence(config)
    if evidence:
        return Detection(DENSE, evidence)
    raise DialectError(
        Finding(
            code="unknown-dialect",
            message="nothing in the config says that this is a DSpark draft",
            file=CONFIG,
            found=f"architectures {config.get('architectures')!r}",
            expected="transformer_layer_config (speculators), markov_rank and target_layer_ids "
            "(dense), or markov_rank in dflash_config (SpecForge)",
            hint="give the folder of the draft, not of the target model",
        )
    )


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _speculators_evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    signs = ["transformer_layer_config nests the decoder"]
    if config.get("speculators_model_type") == "dspark":
        signs.append('speculators_model_type is "dspark"')
    return tuple(signs)


def _specforge_evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    block = config["dflash_config"]
    signs = ["dflash_config holds the keys of the heads, the top level none"]
    if block.get("projector_type") == "dspark":
        signs.append('dflash_config.projector_type is "dspark"')
    return tuple(signs)


def _dense_evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    signs = []
    if "Qwen3DSparkModel" in _architectures(config):
        signs.append('architectures names "Qwen3DSparkModel"')
    if config.get("markov_rank") is not None and config.get("target_layer_ids") is not None:
        signs.append("markov_rank and target_layer_ids at top level")
    elif "DSparkDraftModel" in _architectures(config):
        signs.append('architectures names "DSparkDraftModel", decoder keys at top level')
    return tuple(signs)


def _nested_only(config: Mapping[str, Any]) -> bool:
    block = config.get("dflash_config")
    return (
        isinstance(block, dict)
        and config.get("markov_rank") is None
        and (block.get("markov_rank") is not None or block.get("projector_type") == "dspark")
    )


def _refuse_other_drafts(config: Mapping[str, Any]) -> None:
    kind = config.get("speculators_model_type")
    if isinstance(kind, str) and kind != "dspark":
        raise _other_draft(OTHER_DRAFTS.get(kind, kind), f"speculators_model_type {kind!r}")
    for name in _architectures(config):
        if name in OTHER_ARCHITECTURES and not _has_markov(config):
            raise _other_draft(OTHER_ARCHITECTURES[name], f"architectures {name!r}")


def _has_markov(config: Mapping[str, Any]) -> bool:
    return config.get("markov_rank") is not None or _nested_only(config)


def _refuse_recognised(config: Mapping[str, Any], tensor_names: Iterable[str]) -> None:
    for name in _architectures(config):
        if name in RECOGNISED_ARCHITECTURES:
            raise _unsupported(RECOGNISED_ARCHITECTURES[name])
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in RECOGNISED_MODEL_TYPES:
        raise _unsupported(RECOGNISED_MODEL_TYPES[model_type])
    if config.get("markov_head_type") == "classical":
        raise _unsupported(_TORCHSPEC)
    names = tuple(tensor_names)
    if config.get("dspark_target_layer_ids") is not None or any(
        name.startswith("mtp.") for name in names
    ):
        raise _unsupported(_DEEPSEEK_V4)
    if any(name.startswith(_MINIMAX_PREFIXES) for name in names):
        raise _unsupported(_MINIMAX)
    _refuse_quantised(config)


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return
    if quantization.get("quant_algo") == "W4A16_NVFP4" and config.get("has_embed_tokens") is True:
        raise _unsupported(_NEMOTRON)
    if quantization.get("quant_method") == "modelopt":
        raise _unsupported(_MODELOPT)


def _other_draft(kind: str, found: str) -> DialectError:
    return DialectError(
        Finding(
            code="unsupported-draft",
            message=f"this draft is {kind}, not DSpark",
            file=CONFIG,
            found=found,
            hint="only DSpark drafts can be converted; use the tools of that draft's own library",
        )
    )


def _unsupported(recognised: Recognised) -> DialectError:
    dialect, what, served_by = recognised
    return DialectError(
        Finding(
            code="unsupported-dialect",
            message=f"a DSpark draft of the {dialect} dialect, which {what}; it is not supported",
            file=CONFIG,
            found=dialect,
            expected="dense, speculators or SpecForge, with a Qwen3-style decoder",
            hint=f"served by: {served_by}",
        )
    )
