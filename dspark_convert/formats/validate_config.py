"""Values of a config that no draft can have, whatever its tensors."""

from __future__ import annotations

from itertools import pairwise

from dspark_convert.errors import Findings
from dspark_convert.formats.detect import CONFIG
from dspark_convert.formats.dialects import LAYER_COUNTING, PLAIN_LAYER_IDS
from dspark_convert.formats.rules import Document, KeyPath, Place, dotted, lookup
from dspark_convert.formats.target import validate_depth
from dspark_convert.schemas.draft import DraftConfig, Layout

_CAUSAL: tuple[KeyPath, ...] = (
    ("is_causal",),
    ("transformer_layer_config", "is_causal"),
    ("dflash_config", "causal"),
)


def validate_config(
    config: DraftConfig,
    document: Document,
    findings: Findings,
    *,
    layer_ids: Place = PLAIN_LAYER_IDS,
) -> None:
    """Check the config on its own; ``layer_ids`` is the key of the file that holds them.

    Codes: ``layer-ids-invalid``, ``config-invalid``, ``mask-token-out-of-range``,
    ``block-too-short``, ``speculative-tokens-invalid``, ``heads-invalid``, ``quantised-draft``,
    ``decoder-unsupported``, ``causal-full-attention``.
    """
    _validate_layer_ids(config, layer_ids, findings)
    if config.rope_parameters["rope_theta"] <= 0:
        findings.error(
            "config-invalid",
            "the RoPE base must be positive",
            file=CONFIG,
            key="rope_theta",
            found=config.rope_parameters["rope_theta"],
            hint="give --set rope_theta=VALUE",
        )
    if config.num_target_layers is not None:
        validate_depth(config, config.num_target_layers, findings, layer_ids)
    if config.mask_token_id >= config.vocab_size:
        findings.error(
            "mask-token-out-of-range",
            "the mask token has no row in the embedding",
            file=CONFIG,
            key="mask_token_id",
            expected=f"0 .. {config.vocab_size - 1}",
            found=config.mask_token_id,
            hint="give --set mask_token_id=N",
        )
    if config.layout is Layout.BONUS_ANCHOR and config.block_size < 2:
        findings.error(
            "block-too-short",
            "a 1+N block of one slot proposes nothing",
            file=CONFIG,
            key="block_size",
            expected="at least 2",
            found=config.block_size,
            hint="give --set block_size=N, or --layout anchor-first if the slot is sampled",
        )
    _validate_speculative_tokens(config, document, findings)
    if config.num_attention_heads % config.num_key_value_heads:
        findings.error(
            "heads-invalid",
            "attention heads must be a multiple of key/value heads",
            file=CONFIG,
            key="num_key_value_heads",
            found=f"{config.num_attention_heads} and {config.num_key_value_heads}",
            hint="give --set num_key_value_heads=N: k_proj.weight has N x head_dim rows",
        )
    _validate_document(config, document, findings)


def _validate_speculative_tokens(
    config: DraftConfig, document: Document, findings: Findings
) -> None:
    """No proposal method can take more tokens from a block than it has slots."""
    methods = lookup(document, ("speculators_config", "proposal_methods")) or []
    for index, method in enumerate(methods):
        tokens = method.get("speculative_tokens")
        if tokens is not None and not 0 < tokens <= config.block_size:
            findings.error(
                "speculative-tokens-invalid",
                "a block cannot propose this number of tokens",
                file=CONFIG,
                key=f"speculators_config.proposal_methods.{index}.speculative_tokens",
                expected=f"1 .. {config.block_size}, the block_size",
                found=tokens,
                hint="correct the number in the source, or give --set block_size=N if the draft "
                "was trained with another block",
            )


def _validate_layer_ids(config: DraftConfig, layer_ids: Place, findings: Findings) -> None:
    ids = config.target_layer_ids
    ascending = all(first < second for first, second in pairwise(ids))
    if ids and ascending and ids[0] >= -1:
        return
    findings.error(
        "layer-ids-invalid",
        "target layer ids must be unique, ascending and not before the embedding output; "
        "engines capture in ascending order whatever the list says",
        file=CONFIG,
        key=dotted(layer_ids.path),
        expected=f"ascending from {layer_ids.write([-1])[0]} (the embedding output) or above",
        found=layer_ids.write(list(ids)),
        hint="reorder fc.weight's columns with the ids, or give --set target_layer_ids=[...] "
        f"({LAYER_COUNTING})",
    )


def _validate_document(config: DraftConfig, document: Document, findings: Findings) -> None:
    for key in ("quantization_config", "compression_config"):
        for path in ((key,), ("transformer_layer_config", key)):
            if lookup(document, path) is not None:
                findings.error(
                    "quantised-draft",
                    "the config describes quantised weights",
                    file=CONFIG,
                    key=".".join(path),
                    hint="convert the draft before it is quantised; remove the key if it is not",
                )
    nested = lookup(document, ("transformer_layer_config", "model_type"))
    model_type = nested or document.get("model_type")
    if model_type not in (None, "qwen3"):
        findings.error(
            "decoder-unsupported",
            "only the Qwen3-style decoder is supported",
            file=CONFIG,
            key="model_type",
            expected="qwen3",
            found=model_type,
            hint="convert only drafts with this decoder; correct model_type in the source if the "
            "draft has it",
        )
    causal = [path for path in _CAUSAL if lookup(document, path)]
    if causal and "full_attention" in config.layer_types:
        findings.error(
            "causal-full-attention",
            "the config makes full-attention layers causal inside the block; "
            "DSpark drafts are bidirectional there",
            file=CONFIG,
            key=dotted(causal[0]),
            hint="remove the key if the draft was trained as DSpark drafts are",
        )
