"""Stored tensors against those that the config implies; each difference has its own answer."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dspark_convert.checkpoint.dtypes import FLOATS
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.formats.decoders import decoder_of
from dspark_convert.formats.decoders.base import TensorSpec
from dspark_convert.formats.dialects.shared import LAYER_COUNTING, PLAIN_LAYER_IDS
from dspark_convert.formats.parse import heads_in
from dspark_convert.formats.quantisation import Scheme
from dspark_convert.formats.rules import FieldValue, Place, dotted
from dspark_convert.formats.tensors import (
    CONFIDENCE_BIAS,
    CONFIDENCE_WEIGHT,
    FUSED,
    LM_HEAD,
    MARKOV_W1,
    MARKOV_W2,
    VOCABULARY_TABLE,
    expected_tensors,
)
from dspark_convert.formats.unsupported import one_of
from dspark_convert.schemas.draft import MAX_LAYERS, DraftConfig

_LAYER_CODES = {
    "num_hidden_layers": "layer-count-mismatch",
    "attention_bias": "attention-bias-mismatch",
}
_NUMBER = re.compile(r"[0-9]+")
_LAYER = re.compile(r"layers\.(0|[1-9][0-9]{0,5})\.")
_BIAS = re.compile(r"layers\.[0-9]+\.self_attn\.[qkvo]_proj\.bias")
_HEAD_PREFIXES = ("markov_head.", "confidence_head.")
_UNPREFIXED = {
    "markov_w1.weight": MARKOV_W1,
    "markov_w2.weight": MARKOV_W2,
    "confidence_proj.weight": CONFIDENCE_WEIGHT,
    "confidence_proj.bias": CONFIDENCE_BIAS,
}
"""Tensors of the heads as Model-Optimizer's raw export names them, and as engines do."""
_MAX_SUGGESTED = 20
"""Names for which a similar one is looked for, which takes time."""


def validate_tensors(
    config: DraftConfig,
    tensors: Mapping[str, StoredTensor],
    findings: Findings,
    *,
    scheme: Scheme | None = None,
    layer_ids: Place = PLAIN_LAYER_IDS,
    readings: Mapping[str, FieldValue] = MappingProxyType({}),
) -> None:
    """Compare names, shapes and dtypes; ``vocabulary`` validates the vocabulary table.

    ``scheme`` says how weights may be quantised, ``layer_ids`` is the key of the file that holds
    the layer ids, ``readings`` the keys that hold the other fields.

    Codes: ``head-flag-mismatch``, ``head-prefix-missing``, ``layer-count-mismatch``,
    ``attention-bias-mismatch``, ``lm-head-missing``, ``tensor-missing``,
    ``tensor-misspelt``, ``tensor-fused``, ``tensor-unknown``, ``fc-width-mismatch``,
    ``tensor-transposed``, ``tensor-shape``, ``tensor-dtype``.
    """
    fc = decoder_of(config).fc
    heads_agree = _validate_prefixes(tensors, findings) and _validate_heads(
        config, tensors, readings, findings
    )
    config = _validate_layers(config, tensors, findings)
    expected = expected_tensors(config)
    expected.pop(VOCABULARY_TABLE, None)
    stored = {name: tensor for name, tensor in tensors.items() if name != VOCABULARY_TABLE}
    if not heads_agree:
        # One contradiction, one answer: otherwise all the head's tensors would be reported again
        # below.
        expected = {name: spec for name, spec in expected.items() if not _of_head(name)}
        stored = {name: tensor for name, tensor in stored.items() if not _of_head(name)}
        stored = {name: stored[name] for name in stored.keys() - _UNPREFIXED.keys()}
    if scheme is not None:
        expected = scheme.stored_form(expected, stored)
    _validate_names(config, expected, stored, findings)
    for name in sorted(expected.keys() & stored.keys()):
        if name == fc and _other_width(stored[fc].shape, expected[fc].shape):
            _validate_dtype(expected[fc], stored[fc], findings)
            _report_width(config, expected[fc], stored[fc], layer_ids, findings)
        else:
            _validate_tensor(expected[name], stored[name], findings)


def _of_head(name: str) -> bool:
    return name.startswith(_HEAD_PREFIXES)


def _validate_prefixes(tensors: Mapping[str, StoredTensor], findings: Findings) -> bool:
    """Whether no tensor of a head lacks the prefix of its head."""
    bare = sorted(tensors.keys() & _UNPREFIXED.keys())
    if not bare:
        return True
    first = tensors[bare[0]]
    findings.error(
        "head-prefix-missing",
        "the heads are stored without their prefixes, as a raw export of Model-Optimizer does; "
        "no engine finds them",
        file=first.file,
        tensor=first.name,
        expected=", ".join(_UNPREFIXED[name] for name in bare),
        found=", ".join(tensors[name].name for name in bare),
        hint="export the draft again for serving, or save it with the expected names",
    )
    return False


def _validate_heads(
    config: DraftConfig,
    tensors: Mapping[str, StoredTensor],
    readings: Mapping[str, FieldValue],
    findings: Findings,
) -> bool:
    """Compare the heads that the config declares with those that are stored."""
    stored = heads_in(tensors, config.hidden_size, config.vocab_size)
    declared = {name: getattr(config, name) for name in stored}
    if not declared["markov_rank"] and not stored["markov_rank"]:
        stored["markov_head_type"] = declared["markov_head_type"]
    if not declared["enable_confidence_head"] and not stored["enable_confidence_head"]:
        stored["confidence_head_with_markov"] = declared["confidence_head_with_markov"]
    different = [name for name in stored if stored[name] != declared[name]]
    for name in different:
        findings.error(
            "head-flag-mismatch",
            f"the config and the stored tensors disagree about {name}",
            file=CONFIG_FILE,
            key=dotted(readings[name].paths[0]) if _told(name, readings) else name,
            expected=f"{stored[name]!r}, as the tensors say",
            found=f"{declared[name]!r}",
            hint=f"restore the head's tensors, or give --set {name}={_literal(stored[name])}",
        )
    wants_markov = config.enable_confidence_head and config.confidence_head_with_markov
    if wants_markov and not config.markov_rank and not different:
        findings.error(
            "head-flag-mismatch",
            "the confidence head needs the Markov embedding, but markov_rank is 0",
            file=CONFIG_FILE,
            key="confidence_head_with_markov",
            hint="give --set confidence_head_with_markov=false",
        )
        return False
    return not different


def _told(name: str, readings: Mapping[str, FieldValue]) -> bool:
    return name in readings and bool(readings[name].paths)


def _validate_layers(
    config: DraftConfig, tensors: Mapping[str, StoredTensor], findings: Findings
) -> DraftConfig:
    """Layers and biases as a whole; returns what the tensors say if the config disagrees.

    One contradiction, one answer: every tensor of the layers would be reported again otherwise.
    """
    layers = _whole_layers(config, tensors)
    stored = {
        "num_hidden_layers": layers,
        "attention_bias": _stored_biases(
            config.model_copy(update={"num_hidden_layers": layers}), tensors
        ),
    }
    for name, code in _LAYER_CODES.items():
        if stored[name] != getattr(config, name):
            findings.error(
                code,
                f"the config and the stored tensors disagree about {name}",
                file=CONFIG_FILE,
                key=name,
                expected=f"{stored[name]!r}, as the tensors say",
                found=repr(getattr(config, name)),
                hint=f"give --set {name}={_literal(stored[name])}; if the config is right, the "
                "checkpoint is incomplete: save or download it again",
            )
    return config.model_copy(update=stored)


def _stored_biases(config: DraftConfig, tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether the attention has biases: all or none of them, else what the config says."""
    biased = expected_tensors(config.model_copy(update={"attention_bias": True}))
    implied = {name for name in biased if _BIAS.fullmatch(name)}
    stored = implied & tensors.keys()
    return bool(stored) if stored in (set(), implied) else config.attention_bias


def _whole_layers(config: DraftConfig, tensors: Mapping[str, StoredTensor]) -> int:
    """How many layers are stored, if all are complete; else what the config says."""
    numbers = [int(match[1]) for name in tensors if (match := _LAYER.match(name))]
    stored = Counter(numbers)
    contiguous = set(stored) == set(range(len(stored)))
    whole = len(set(stored.values())) == 1 and len(stored) <= MAX_LAYERS
    return len(stored) if contiguous and whole else config.num_hidden_layers


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _validate_names(
    config: DraftConfig,
    expected: Mapping[str, TensorSpec],
    stored: Mapping[str, StoredTensor],
    findings: Findings,
) -> None:
    missing = {name for name, spec in expected.items() if spec.required} - stored.keys()
    if LM_HEAD in missing:
        missing.remove(LM_HEAD)
        findings.error(
            "lm-head-missing",
            "a draft whose vocabulary is not the target's needs its own lm_head.weight",
            tensor=LM_HEAD,
            expected=f"{config.draft_vocab_size} rows",
            hint="publish the draft with its lm_head; the target's has other rows",
        )
    extra = sorted(stored.keys() - expected.keys())
    similar = _similar_names(extra[:_MAX_SUGGESTED], missing)
    for name in extra:
        _validate_extra(name, stored[name], similar.get(name), findings)
    for name in sorted(missing):
        findings.error(
            "tensor-missing",
            "the config implies a tensor that is not stored",
            tensor=name,
            expected=_shape_text(expected[name].shape),
            hint="the checkpoint is incomplete: save or download it again",
        )


def _similar_names(names: Iterable[str], missing: Iterable[str]) -> dict[str, str]:
    """The missing name that each name is probably meant to be; only of the same layer."""
    by_numbers: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(missing):
        by_numbers.setdefault(tuple(_NUMBER.findall(name)), []).append(name)
    found = {}
    for name in names:
        candidates = by_numbers.get(tuple(_NUMBER.findall(name)), [])
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.85)
        if close:
            found[name] = close[0]
    return found


def _validate_extra(
    name: str, tensor: StoredTensor, similar: str | None, findings: Findings
) -> None:
    part = next((part for part in FUSED if f".{part}." in name), None)
    if part:
        findings.error(
            "tensor-fused",
            f"{part} is several projections in one tensor, as engines hold them in memory",
            file=tensor.file,
            tensor=tensor.name,
            hint="save the draft with separate projections",
        )
        return
    if similar is not None:
        findings.error(
            "tensor-misspelt",
            "no loader knows this name, but it is close to one that is missing",
            file=tensor.file,
            tensor=tensor.name,
            expected=similar,
            found=name,
            hint="rename the tensor in the source",
        )
        return
    findings.error(
        "tensor-unknown",
        "no part of a draft with this config has this name",
        file=tensor.file,
        tensor=tensor.name,
        found=f"{tensor.dtype} {_shape_text(tensor.shape)}",
        hint="remove it, or correct the config if the draft really has this part",
    )


def _validate_dtype(spec: TensorSpec, tensor: StoredTensor, findings: Findings) -> None:
    if tensor.dtype in spec.dtypes:
        return
    plain = spec.dtypes == FLOATS
    findings.error(
        "tensor-dtype",
        "weights must be floating point" if plain else "the scheme stores a different dtype here",
        file=tensor.file,
        tensor=tensor.name,
        expected="F32, F16 or BF16" if plain else one_of(sorted(spec.dtypes)),
        found=tensor.dtype,
        hint="save the draft in one of these types",
    )


def _validate_tensor(spec: TensorSpec, tensor: StoredTensor, findings: Findings) -> None:
    _validate_dtype(spec, tensor, findings)
    if tensor.shape == spec.shape:
        return
    code, message = "tensor-shape", "the shape is not the one that the config implies"
    hint = "correct the sizes in the config (see --set), or save the draft again if they are right"
    if tensor.shape == spec.shape[::-1]:
        code, message = "tensor-transposed", "the tensor is stored transposed"
        hint = "transpose it in the source"
    findings.error(
        code,
        message,
        file=tensor.file,
        tensor=tensor.name,
        expected=_shape_text(spec.shape),
        found=_shape_text(tensor.shape),
        hint=hint,
    )


def _other_width(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether the projection of features has the right rows, but columns for other features."""
    return (
        len(shape) == 2
        and shape[0] == expected[0]
        and shape[1] != expected[1]
        and shape != expected[::-1]
    )


def _report_width(
    config: DraftConfig,
    spec: TensorSpec,
    tensor: StoredTensor,
    layer_ids: Place,
    findings: Findings,
) -> None:
    ids = list(config.target_layer_ids)
    findings.error(
        "fc-width-mismatch",
        f"{tensor.name} has {tensor.shape[1]} columns; {len(ids)} target layer ids "
        f"({dotted(layer_ids.path)} {layer_ids.write(ids)}) x target hidden size "
        f"{config.target_hidden_size or config.hidden_size} are {config.feature_size}",
        file=tensor.file,
        tensor=tensor.name,
        expected=_shape_text(spec.shape),
        found=_shape_text(tensor.shape),
        hint=f"give --set target_layer_ids=[...] with the right ids ({LAYER_COUNTING}), or "
        "--set target_hidden_size=N",
    )


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
