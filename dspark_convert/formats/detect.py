"""Which dialect a config is of, and the evidence for it. Exact names only, never substrings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_convert.errors import DialectError, Finding
from dspark_convert.formats.dialects import DENSE, SPECULATORS
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

RECOGNISED_ARCHITECTURES: Mapping[str, tuple[str, str]] = {
    "Gemma4DSparkModel": ("gemma4", "shares K and V, scales embeddings and caps logits"),
    "K3DSparkModel": ("kimi-k3", "uses multi-head latent attention"),
    "Lfm2DSparkDraftModel": ("lfm2", "targets LFM2 and is known to SGLang only"),
    "DSparkMiniMaxDraftModel": ("minimax-m3", "stores its tensors inside the target's names"),
    "MuseSparkDSparkModel": ("muse-spark", "is causal everywhere and caps its logits"),
    "Qwen3OmniDSparkModel": ("qwen3-omni", "follows rules of its own in vLLM"),
    "LingDSparkModel": ("ling", "is known to SGLang and llama.cpp only"),
    "DeepseekV4ForCausalLMDSpark": ("deepseek-v4", "is bundled inside its target"),
}
"""DSpark drafts whose decoder is not the Qwen3 one: dialect, and what is different."""


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
        raise _unsupported("specforge", "keeps every DSpark key inside dflash_config")
    evidence = _dense_evidence(config)
    if evidence:
        return Detection(DENSE, evidence)
    raise DialectError(
        Finding(
            code="unknown-dialect",
            message="nothing in the config says that this is a DSpark draft",
            file=CONFIG,
            found=f"architectures {config.get('architectures')!r}",
            expected="transformer_layer_config (speculators), or markov_rank and target_layer_ids",
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
            raise _unsupported(*RECOGNISED_ARCHITECTURES[name])
    if config.get("dspark_target_layer_ids") is not None or any(
        name.startswith("mtp.") for name in tensor_names
    ):
        raise _unsupported("deepseek-v4", "is bundled inside its target (dspark_* keys, mtp.*)")
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("quant_method") == "modelopt":
        raise _unsupported("modelopt", "stores quantised weights with scales")


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


def _unsupported(dialect: str, what: str) -> DialectError:
    return DialectError(
        Finding(
            code="unsupported-dialect",
            message=f"a DSpark draft of the {dialect} dialect, which {what}; it is not supported",
            file=CONFIG,
            found=dialect,
            expected="dense or speculators, with a Qwen3-style decoder",
            hint="serve it with the engine that it was published for",
        )
    )
