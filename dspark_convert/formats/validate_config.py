"""Values of a config that no draft can have, whatever its tensors."""

from __future__ import annotations

from itertools import pairwise

from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.formats.decoders import DECODERS
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.dialects.shared import LAYER_COUNTING, PLAIN_LAYER_IDS
from dspark_convert.formats.rules import Document, Place, dotted, lookup
from dspark_convert.formats.target import validate_depth
from dspark_convert.formats.unsupported import one_of
from dspark_convert.formats.validate_arithmetic import validate_arithmetic
from dspark_convert.schemas.draft import DraftConfig, Layout

_TARGET_DEPTH = "target_num_hidden_layers"
"""TorchSpec's key for the target's depth, beside a ``num_target_layers`` that counts taps."""


def validate_config(
    config: DraftConfig,
    document: Document,
    dialect: Dialect,
    findings: Findings,
    *,
    layer_ids: Place = PLAIN_LAYER_IDS,
) -> None:
    """Check the config on its own; ``layer_ids`` is the key of the file that holds the layer ids.

    Codes: ``layer-ids-invalid``, ``target-depth-counts-taps``, ``mask-token-out-of-range``,
    ``block-too-short``, ``speculative-tokens-invalid``, ``decoder-unsupported``,
    ``causal-full-attention``, and those of the body: ``config-invalid``, ``heads-invalid``;
    those of ``validate_arithmetic``.
    """
    _validate_layer_ids(config, layer_ids, findings)
    if config.num_target_layers is not None and not _counts_taps(config, document, findings):
        validate_depth(config, config.num_target_layers, findings, layer_ids)
    if config.mask_token_id >= config.vocab_size:
        findings.error(
            "mask-token-out-of-range",
            "the mask token has no row in the embedding",
            file=CONFIG_FILE,
            key="mask_token_id",
            expected=f"0 .. {config.vocab_size - 1}",
            found=config.mask_token_id,
            hint="give --set mask_token_id=N",
        )
    if config.layout is Layout.BONUS_ANCHOR and config.block_size < 2:
        findings.error(
            "block-too-short",
            "a 1+N block of one slot proposes nothing",
            file=CONFIG_FILE,
            key="block_size",
            expected="at least 2",
            found=config.block_size,
            hint="give --set block_size=N, or --layout anchor-first if the slot is sampled",
        )
    _validate_speculative_tokens(config, document, findings)
    dialect.body.validate(config, findings)
    validate_arithmetic(config, document, dialect, findings)
    _validate_body(config, document, dialect, findings)


def _counts_taps(config: DraftConfig, document: Document, findings: Findings) -> bool:
    """Whether ``num_target_layers`` is the number of captured layers, as TorchSpec writes it."""
    taps, depth = len(config.target_layer_ids), config.num_target_layers
    told = [
        (path, value)
        for path in ((_TARGET_DEPTH,), ("dflash_config", _TARGET_DEPTH))
        if type(value := lookup(document, path)) is int and value != depth
    ]
    if depth != taps or not (told or any(layer >= taps for layer in config.target_layer_ids)):
        return False
    right = str(told[0][1]) if told else "N"
    findings.error(
        "target-depth-counts-taps",
        f"num_target_layers is {depth}, the number of captured layers; it should be the number of "
        "layers that the target has",
        file=CONFIG_FILE,
        key="num_target_layers",
        expected=f"{dotted(told[0][0])} = {right}" if told else "the depth of the target",
        found=depth,
        hint=f"give --set num_target_layers={right}"
        + ("" if told else ", the target's num_hidden_layers, or correct the layer ids"),
    )
    return True


def _validate_speculative_tokens(
    config: DraftConfig, document: Document, findings: Findings
) -> None:
    """Check that no proposal method takes more tokens from a block than it has slots."""
    methods = lookup(document, ("speculators_config", "proposal_methods")) or []
    for index, method in enumerate(methods):
        tokens = method.get("speculative_tokens")
        if tokens is not None and not 0 < tokens <= config.block_size:
            findings.error(
                "speculative-tokens-invalid",
                "a block cannot propose this number of tokens",
                file=CONFIG_FILE,
                key=f"speculators_config.proposal_methods.{index}.speculative_tokens",
                expected=f"1 .. {config.block_size}, the block_size",
                found=tokens,
                hint="correct the number in the source, or give --set block_size=N if the draft "
                "was trained with another block size",
            )


def _validate_layer_ids(config: DraftConfig, layer_ids: Place, findings: Findings) -> None:
    ids = config.target_layer_ids
    ascending = all(first < second for first, second in pairwise(ids))
    if ids and ascending and ids[0] >= -1:
        return
    findings.error(
        "layer-ids-invalid",
        "target layer ids must be unique, ascending and not before the embedding output; engines "
        "capture in ascending order, whatever the list says",
        file=CONFIG_FILE,
        key=dotted(layer_ids.path),
        expected=f"ascending from {layer_ids.write([-1])[0]} (the embedding output) or above",
        found=layer_ids.write(list(ids)),
        hint="reorder fc.weight's columns with the ids, or give --set target_layer_ids=[...] "
        f"({LAYER_COUNTING})",
    )


def _validate_body(
    config: DraftConfig, document: Document, dialect: Dialect, findings: Findings
) -> None:
    """What the document says about the body, against the body that it was read as."""
    model_type = lookup(document, (*dialect.decoder, "model_type")) or document.get("model_type")
    if model_type not in (None, *dialect.body.model_types):
        known = [name for decoder in DECODERS.values() for name in decoder.model_types]
        findings.error(
            "decoder-unsupported",
            f"only the {one_of([decoder.title for decoder in DECODERS.values()])}-style decoder is "
            "supported",
            file=CONFIG_FILE,
            key="model_type",
            expected=one_of(known),
            found=model_type,
            hint="convert only drafts with this decoder; correct model_type in the source if the "
            "draft has it",
        )
    rule = dialect.rule("sliding_window_non_causal")
    spellings = [place.path for place in rule.places if place.carried] if rule else []
    causal = [path for path in spellings if lookup(document, path)]
    if causal and dialect.body.bidirectional and "full_attention" in config.layer_types:
        findings.error(
            "causal-full-attention",
            "the config makes full-attention layers causal inside the block; "
            "DSpark drafts are bidirectional there",
            file=CONFIG_FILE,
            key=dotted(causal[0]),
            hint="remove the key if the draft was trained as DSpark drafts are",
        )
