"""Config documents into ``DraftConfig`` and back: what the tables of ``dialects`` cannot express.

This module joins layer types with their window, the two halves of RoPE, the layout with its
evidence, and the heads with the tensors that prove them if a config is silent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dspark_convert.checkpoint.dtypes import float_name
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.formats.decoders.base import architectures_of
from dspark_convert.formats.dialects import Dialect
from dspark_convert.formats.dialects.shared import DFLASH_ARCHITECTURES
from dspark_convert.formats.rules import (
    UNKNOWN,
    Document,
    FieldValue,
    assign,
    dotted,
    holds,
    lookup,
    read_field,
    write_fields,
)
from dspark_convert.formats.tensors import CONFIDENCE_WEIGHT, MARKOV_W1
from dspark_convert.schemas.draft import MAX_LAYERS, DraftConfig, Layout

_HEAD_FIELDS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)


@dataclass(frozen=True)
class ParsedConfig:
    """A config as understood; ``readings`` says which key each field came from."""

    config: DraftConfig
    layout_evidence: str
    readings: Mapping[str, FieldValue]


def parse_config(
    document: Document,
    dialect: Dialect,
    tensors: Mapping[str, StoredTensor],
    findings: Findings,
    *,
    layout: Layout | None = None,
) -> ParsedConfig | None:
    """Read ``DraftConfig`` from a config document.

    Args:
        document: the parsed ``config.json``, types already checked, overrides already applied.
        dialect: its dialect. tensors: the stored tensors by canonical name, which decide about
        heads and dtype if the config is silent; may be empty. findings: receives every problem;
        None is returned if they leave a field undecided. layout: overrides whatever the config
        says.
    """
    readings = {
        rule.field: read_field(rule, document, CONFIG_FILE, findings) for rule in dialect.rules
    }
    values: dict[str, Any] = {name: reading.value for name, reading in readings.items()}
    layout_value, layout_evidence = _layout(values, document, dialect, findings, layout)
    _fill_from_tensors(values, dialect.body.fc, tensors, findings)
    _join_decoder(values, findings)
    if values["draft_vocab_size"] is None:
        values["draft_vocab_size"] = values["vocab_size"]
    if layout_value is None or any(value is UNKNOWN for value in values.values()):
        return None
    values |= {"layout": layout_value, "decoder": dialect.body.name}
    known = {name: values[name] for name in DraftConfig.model_fields if name in values}
    parameters = dialect.body.parameters
    try:
        own = parameters(**{name: values[name] for name in parameters.model_fields})
        config = DraftConfig(**known, decoder_parameters=own.model_dump(mode="json"))
    except ValidationError as error:
        _report_invalid(error, dialect, findings)
        return None
    return ParsedConfig(config, layout_evidence, readings)


def split_config(config: DraftConfig) -> dict[str, Any]:
    """The fields of ``config`` as the rules spell them; the inverse of the joins above."""
    values = config.model_dump(mode="json")
    values |= values.pop("decoder_parameters")
    rope = values.pop("rope_parameters")
    values["rope_theta"] = rope.pop("rope_theta")
    values["rope_scaling"] = rope
    values["sample_from_anchor"] = config.layout is Layout.ANCHOR_FIRST
    values["use_sliding_window"] = config.slides
    if not config.slides:
        values["sliding_window_non_causal"] = None
    if not config.reduced_vocabulary and config.draft_vocab_size == config.vocab_size:
        values["draft_vocab_size"] = None
    return values


def render(config: DraftConfig, dialect: Dialect) -> Document:
    """``config.json`` of a dialect, as far as ``DraftConfig`` determines it.

    ``draft_vocab_size`` is written if it differs from ``vocab_size``, or if the dialect always
    writes it.
    """
    dialect = dialect.of(config)
    document: Document = {}
    for path, value in dialect.constants.items():
        assign(document, path, copy.copy(value))
    values = split_config(config)
    values |= {name: getattr(config, name) for name in dialect.always_written}
    values |= {name: value for name, value in dialect.supplied.items() if values[name] is None}
    write_fields(dialect.rules, values, document)
    for path in dialect.nulls:
        if not holds(document, path):
            assign(document, path, None)
    return document


def heads_in(
    tensors: Mapping[str, StoredTensor], hidden_size: object, vocab_size: object
) -> dict[str, Any]:
    """What the stored tensors say about the heads, in the terms of the config.

    A tensor that is stored transposed says the same; its shape is validated elsewhere.
    """
    w1 = tensors.get(MARKOV_W1)
    confidence = tensors.get(CONFIDENCE_WEIGHT)
    kind = "vanilla"
    if any(name.startswith("markov_head.gate_proj.") for name in tensors):
        kind = "gated"
    elif any(name.startswith("markov_head.joint_proj.") for name in tensors):
        kind = "rnn"
    return {
        "markov_rank": _rank(w1.shape, vocab_size) if w1 is not None else 0,
        "markov_head_type": kind,
        "enable_confidence_head": confidence is not None,
        "confidence_head_with_markov": confidence is not None
        and math.prod(confidence.shape) != hidden_size,
    }


def _rank(shape: tuple[int, ...], vocab_size: object) -> int:
    """The side of ``markov_w1`` [V, r] that is not the vocabulary."""
    if len(shape) != 2:
        return 0
    rows, columns = shape
    return rows if columns == vocab_size and rows != vocab_size else columns


def _fill_from_tensors(
    values: dict[str, Any], fc: str, tensors: Mapping[str, StoredTensor], findings: Findings
) -> None:
    """Heads and dtype about which the config is silent: the tensors are the evidence."""
    stored = heads_in(tensors, values["hidden_size"], values["vocab_size"])
    backbone = tensors.get(fc)
    stored["dtype"] = (backbone and float_name(backbone.dtype)) or "bfloat16"
    for name in (*_HEAD_FIELDS, "dtype"):
        if values[name] is None:
            values[name] = stored[name]
            findings.note(
                "key-inferred",
                f"{name} is not given; the stored tensors say {stored[name]!r}",
                file=CONFIG_FILE,
                key=name,
            )


def _join_decoder(values: dict[str, Any], findings: Findings) -> None:
    forced = values.get("use_swa") is True and values["layer_types"] is None
    slides = _join_layer_types(values, findings)
    window = values["sliding_window"]
    if slides and window is None:
        findings.error(
            "sliding-window-missing",
            "layers slide but no window size is given",
            file=CONFIG_FILE,
            key="sliding_window",
            hint="give --set sliding_window=N",
        )
    elif slides and not values["use_sliding_window"] and not forced:
        findings.warning(
            "sliding-window-switched-off",
            "layer_types says that layers slide, but use_sliding_window is not true; loaders of "
            "the source drop the window, the result keeps it",
            file=CONFIG_FILE,
            key="use_sliding_window",
        )
    _join_causality(values, slides, findings, forced=forced)
    if not slides:
        values["sliding_window"] = None
    scaling, theta = values.pop("rope_scaling"), values.pop("rope_theta")
    unknown = scaling is UNKNOWN or theta is UNKNOWN
    values["rope_parameters"] = (
        UNKNOWN if unknown else {"rope_type": "default", **scaling, "rope_theta": theta}
    )


def _join_layer_types(values: dict[str, Any], findings: Findings) -> bool:
    """Fill in missing layer types as Qwen3Config does, check given ones; whether any slides."""
    given, depth = values["layer_types"], values["num_hidden_layers"]
    if given is UNKNOWN or not isinstance(depth, int):
        return False
    forced = values.get("use_swa")
    if given is None:
        kind = "sliding_attention" if forced is True else "full_attention"
        given = [kind] * min(depth, MAX_LAYERS)
        if values["use_sliding_window"] and not forced:
            findings.error(
                "key-missing",
                "use_sliding_window is true but layer_types does not say which layers slide",
                file=CONFIG_FILE,
                key="layer_types",
                hint="give --set 'layer_types=[\"sliding_attention\", ...]', one per layer",
            )
    elif len(given) != depth:
        findings.error(
            "config-invalid",
            "layer_types must have one entry per layer",
            file=CONFIG_FILE,
            key="layer_types",
            expected=f"{depth} entries",
            found=f"{len(given)} entries",
            hint="give --set 'layer_types=[...]' with one entry per layer, or --set "
            "num_hidden_layers=N if that is wrong",
        )
    elif forced is True and "sliding_attention" not in given:
        findings.error(
            "key-conflict",
            "use_swa lets every layer slide, but layer_types says that none does; vLLM obeys "
            "use_swa, others layer_types",
            file=CONFIG_FILE,
            key="layer_types",
            found=f"use_swa = True; layer_types = {sorted(set(given))}",
            hint="find out which one is right and give --set use_swa=false, or --set "
            "'layer_types=[\"sliding_attention\", ...]', one per layer",
        )
    values["layer_types"] = tuple(given)
    return "sliding_attention" in given


def _join_causality(
    values: dict[str, Any], slides: bool, findings: Findings, *, forced: bool
) -> None:
    """Whether sliding layers see the whole block; ``forced``: only ``use_swa`` says they slide."""
    non_causal = values["sliding_window_non_causal"]
    if non_causal is UNKNOWN:
        return
    if non_causal is None and forced:
        findings.note(
            "default-used",
            "nothing says whether the layers are causal inside the block; with use_swa and "
            "without layer_types they are not, in vLLM",
            file=CONFIG_FILE,
            key="sliding_window_non_causal",
        )
        non_causal = True
    elif non_causal is None and slides:
        findings.note(
            "default-used",
            "nothing says whether sliding layers are causal inside the block; in speculators, vLLM "
            "and SGLang they are by default",
            file=CONFIG_FILE,
            key="sliding_window_non_causal",
        )
    values["sliding_window_non_causal"] = bool(non_causal) and slides


def _layout(
    values: dict[str, Any],
    document: Document,
    dialect: Dialect,
    findings: Findings,
    override: Layout | None,
) -> tuple[Layout | None, str]:
    declared, block = values.pop("sample_from_anchor"), values["block_size"]
    if override is not None:
        return override, "given with --layout"
    if declared is UNKNOWN:
        return None, ""
    tokens = _speculative_tokens(document)
    suggested = None
    if isinstance(block, int) and tokens is not None:
        suggested = {block: Layout.ANCHOR_FIRST, block - 1: Layout.BONUS_ANCHOR}.get(tokens)
    if declared is not None:
        layout = Layout.ANCHOR_FIRST if declared else Layout.BONUS_ANCHOR
        if suggested not in (None, layout):
            _report_layout_conflict(layout, tokens, block, findings)
            return None, ""
        return layout, "declared in the config"
    if suggested is not None:
        evidence = f"inferred: {tokens} speculative tokens in a block of {block}"
        findings.note(
            "layout-inferred", f"the layout is not declared; {evidence}", file=CONFIG_FILE
        )
        return suggested, evidence
    named = sorted(set(DFLASH_ARCHITECTURES).intersection(architectures_of(document)))
    if dialect.undeclared_layout is not None and not named:
        evidence = f"by convention: {dialect.undeclared_layout}"
        findings.note(
            "layout-by-convention", f"the layout is not declared; {evidence}", file=CONFIG_FILE
        )
        return Layout.ANCHOR_FIRST, evidence
    findings.error(
        "layout-undeclared",
        "neither sample_from_anchor nor the proposal methods say which layout this draft has; "
        "readers disagree about the default, and with the wrong one almost nothing is accepted",
        file=CONFIG_FILE,
        key="sample_from_anchor",
        found=f"block_size {block}, speculative_tokens {tokens}"
        + (f", architectures {named[0]}" if named else ""),
        hint="ask who trained it and give --layout anchor-first or --layout bonus-anchor "
        "(speculators before the key existed trained bonus-anchor only)",
    )
    return None, ""


def _speculative_tokens(document: Document) -> int | None:
    """The count on which all proposal methods agree; None if there is none."""
    methods = lookup(document, ("speculators_config", "proposal_methods")) or []
    counts = {method.get("speculative_tokens") for method in methods} - {None}
    return counts.pop() if len(counts) == 1 else None


def _report_layout_conflict(
    layout: Layout, tokens: int | None, block: int, findings: Findings
) -> None:
    declared = layout is Layout.ANCHOR_FIRST
    findings.error(
        "layout-conflict",
        "the declared layout and the number of speculative tokens contradict each other",
        file=CONFIG_FILE,
        key="sample_from_anchor",
        expected=f"{block if declared else block - 1} speculative tokens for {layout.value}",
        found=f"{tokens} with block_size {block}",
        hint="find out how it was trained, and give --layout anchor-first or --layout bonus-anchor",
    )


def _report_invalid(error: ValidationError, dialect: Dialect, findings: Findings) -> None:
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        rule = dialect.rule(name)
        findings.error(
            "config-invalid",
            problem["msg"],
            file=CONFIG_FILE,
            key=dotted(rule.places[0].path) if rule else name,
            found=repr(problem["input"]),
            hint=", or give ".join(
                filter(None, ["correct the key", rule.setting if rule else None])
            ),
        )
