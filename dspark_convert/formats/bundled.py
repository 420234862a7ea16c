"""Drafts bundled inside a DeepSeek-V4 target: what ``mtp.*`` must hold.

They are read and validated but not converted: engines load them from the target's folder under
exactly these names, so there is nothing to map, and ``runtime`` does not implement their decoder.
Source: vLLM 0.33.0, ``models/deepseek_v4/nvidia/dspark.py``.

H hidden, hd head size, nh heads, q and o low ranks, G output groups, I expert width, E experts,
L captured layers, V vocabulary, r Markov rank, hc copies of the stream, mix = (2 + hc) hc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from pydantic import ValidationError

from dspark_convert.checkpoint.dtypes import FLOATS
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import Findings
from dspark_convert.schemas.bundled import BundledConfig, BundledDraft

BUNDLED = "deepseek-v4"
"""What takes the place of a dialect in reports about such a draft."""

Storage = Literal["float", "quantised"]

FP8, PACKED_FP4, FP4 = "F8_E4M3", frozenset({"I8", "U8"}), "F4"
FP8_BLOCK, FP4_BLOCK = 128, 32
"""Weights that share a scale: 128 x 128 in fp8, 32 of a row in fp4."""
SCALE_DTYPES = frozenset({"F8_E8M0", "U8", "F32"})

_STAGE = re.compile(r"mtp\.(\d{1,6})\.(.+)", re.ASCII)
_MAX_REPORTED = 20
_VLLM_STAGES = 3
"""How many vLLM loads if ``n_mtp_layers`` is not given."""


@dataclass(frozen=True)
class Wanted:
    """A tensor of a stage: its shape before any packing, how it may be stored, and need."""

    shape: tuple[int, ...]
    storage: Storage = "float"
    required: bool = True


def holds_stages(names: Iterable[str]) -> bool:
    """Whether a checkpoint holds a bundled draft, whatever its config says."""
    return any(_STAGE.fullmatch(name) for name in names)


def read_bundled(
    document: Mapping[str, Any], tensors: Mapping[str, StoredTensor], findings: Findings
) -> BundledDraft | None:
    """Validate the draft inside a DeepSeek-V4 target; None if its config leaves it undecided.

    Codes: ``key-missing``, ``config-invalid``, ``mask-token-out-of-range``, ``layer-ids-invalid``,
    ``stages-missing``, ``stage-count-mismatch``, ``tensor-missing``, ``tensor-unknown``,
    ``tensor-shape``, ``tensor-dtype``, ``scale-missing``, ``scale-stray``, ``scale-shape``.
    """
    config = _config(document, findings)
    if config is None:
        return None
    stages = _stages(tensors)
    generation: Literal["v4", "v4.1"] = "v4.1" if _is_v41(document, stages) else "v4"
    _validate_config(config, generation, findings)
    _validate_stages(config, stages, findings)
    report = _Reporter(findings)
    for number, stored in stages.items():
        wanted = dict(_wanted(config, generation, number == 0, number == max(stages)))
        _validate_stage(f"mtp.{number}.", wanted, stored, report)
    report.close()
    findings.note(
        "bundled-draft",
        "the draft is served from the target's own folder: nothing is renamed or mapped, and the "
        "decoder of dspark-verify does not run it",
    )
    return _describe(config, generation, stages)


def _config(document: Mapping[str, Any], findings: Findings) -> BundledConfig | None:
    try:
        return BundledConfig.model_validate({k: v for k, v in document.items() if v is not None})
    except ValidationError as error:
        for problem in error.errors():
            missing = problem["type"] == "missing"
            findings.error(
                "key-missing" if missing else "config-invalid",
                "the bundled draft needs this key" if missing else problem["msg"],
                file=CONFIG_FILE,
                key=".".join(str(part) for part in problem["loc"]),
                found=None if missing else repr(problem["input"])[:120],
                hint="restore the target's config",
            )
    return None


def _stages(tensors: Mapping[str, StoredTensor]) -> dict[int, dict[str, StoredTensor]]:
    """The tensors of each stage, without their prefix, by number."""
    stages: dict[int, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        match = _STAGE.fullmatch(name)
        if match:
            stages.setdefault(int(match[1]), {})[match[2]] = tensor
    return dict(sorted(stages.items()))


def _is_v41(document: Mapping[str, Any], stages: Mapping[int, Mapping[str, StoredTensor]]) -> bool:
    names = {name for stored in stages.values() for name in stored}
    return document.get("model_type") == "deepseek_v41" or "markov_head.embed.weight" in names


def _validate_config(config: BundledConfig, generation: str, findings: Findings) -> None:
    if config.dspark_noise_token_id >= config.vocab_size:
        findings.error(
            "mask-token-out-of-range",
            "the mask token has no row in the target's embedding",
            file=CONFIG_FILE,
            key="dspark_noise_token_id",
            expected=f"0 .. {config.vocab_size - 1}",
            found=config.dspark_noise_token_id,
            hint="correct the key in the target's config, or download the target again",
        )
    ids = config.dspark_target_layer_ids
    last = config.num_hidden_layers - (generation == "v4")
    if any(first >= second for first, second in pairwise(ids)) or ids[0] < 0 or ids[-1] > last:
        findings.error(
            "layer-ids-invalid",
            "target layer ids must ascend, and name layers of the target",
            file=CONFIG_FILE,
            key="dspark_target_layer_ids",
            expected=f"0 .. {last}",
            found=ids,
            hint="correct the key in the target's config, or download the target again",
        )


def _validate_stages(
    config: BundledConfig, stages: Mapping[int, object], findings: Findings
) -> None:
    """Check that there are no gaps, and how many stages each engine will look for."""
    count = len(stages)
    if list(stages) != list(range(count)):
        findings.error(
            "stages-missing",
            "the stages of the draft must be mtp.0, mtp.1, ... without a gap",
            expected="mtp.0 .. mtp.{n-1}",
            found=", ".join(f"mtp.{number}" for number in list(stages)[:8]),
            hint="the checkpoint is incomplete: save or download it again",
        )
    looked_for = {
        "vLLM": config.n_mtp_layers or _VLLM_STAGES,
        "SGLang": len(config.dspark_target_layer_ids),
    }
    for engine, wanted in looked_for.items():
        if wanted != count:
            findings.warning(
                "stage-count-mismatch",
                f"{engine} looks for {wanted} stages, {count} are stored",
                file=CONFIG_FILE,
                key="n_mtp_layers" if engine == "vLLM" else "dspark_target_layer_ids",
            )
    if config.num_nextn_predict_layers not in (None, count):
        findings.note(
            "stage-count-from-tensors",
            f"{count} stages are stored; num_nextn_predict_layers does not count them",
            file=CONFIG_FILE,
            key="num_nextn_predict_layers",
            found=config.num_nextn_predict_layers,
        )


def _wanted(
    config: BundledConfig, generation: str, first: bool, last: bool
) -> Iterator[tuple[str, Wanted]]:
    """Every tensor of a stage, by name without ``mtp.{i}.``."""
    hidden = config.hidden_size
    if first:
        captured = len(config.dspark_target_layer_ids) * hidden
        yield "main_proj.weight", Wanted((hidden, captured), "quantised")
        yield "main_norm.weight", Wanted((hidden,))
    yield from _attention(config)
    yield from _experts(config)
    copies = config.hc_mult
    mixed = (2 + copies) * copies
    for part in ("hc_attn", "hc_ffn"):
        yield f"{part}_fn", Wanted((mixed, copies * hidden))
        yield f"{part}_base", Wanted((mixed,))
        yield f"{part}_scale", Wanted((3,))
    if last:
        yield from _heads(config, generation)


def _attention(config: BundledConfig) -> Iterator[tuple[str, Wanted]]:
    hidden, rank = config.hidden_size, config.q_lora_rank
    width = config.num_attention_heads * config.head_dim
    grouped = config.o_groups * config.o_lora_rank
    for name, shape in {
        "wq_a": (rank, hidden),
        "wq_b": (width, rank),
        "wkv": (config.head_dim, hidden),
        "wo_a": (grouped, width // config.o_groups),
        "wo_b": (hidden, grouped),
    }.items():
        yield f"attn.{name}.weight", Wanted(shape, "quantised")
    yield "attn.q_norm.weight", Wanted((rank,))
    yield "attn.kv_norm.weight", Wanted((config.head_dim,))
    yield "attn.attn_sink", Wanted((config.num_attention_heads,))
    yield "attn_norm.weight", Wanted((hidden,))
    yield "ffn_norm.weight", Wanted((hidden,))


def _experts(config: BundledConfig) -> Iterator[tuple[str, Wanted]]:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    experts = _routed_experts(config)
    yield "ffn.gate.weight", Wanted((experts, hidden))
    yield "ffn.gate.bias", Wanted((experts,))
    yield "ffn.gate.bias_vl", Wanted((experts,), required=False)
    widths = {f"experts.{number}": inner for number in range(experts)}
    if config.n_shared_experts:
        widths["shared_experts"] = inner * config.n_shared_experts
    for part, width in widths.items():
        yield f"ffn.{part}.w1.weight", Wanted((width, hidden), "quantised")
        yield f"ffn.{part}.w2.weight", Wanted((hidden, width), "quantised")
        yield f"ffn.{part}.w3.weight", Wanted((width, hidden), "quantised")


def _heads(config: BundledConfig, generation: str) -> Iterator[tuple[str, Wanted]]:
    hidden, rank, copies = config.hidden_size, config.dspark_markov_rank, config.hc_mult
    yield "norm.weight", Wanted((hidden,))
    names = ("embed", "head") if generation == "v4.1" else ("markov_w1", "markov_w2")
    for name in names if rank else ():
        yield f"markov_head.{name}.weight", Wanted((config.vocab_size, rank))
    if generation == "v4":
        yield "hc_head_fn", Wanted((copies, copies * hidden))
        yield "hc_head_base", Wanted((copies,))
        yield "hc_head_scale", Wanted((1,))
    declared = config.enable_confidence_head is True
    yield "confidence_head.proj.weight", Wanted((1, hidden + rank), required=declared)


def _routed_experts(config: BundledConfig) -> int:
    return config.dspark_n_routed_experts or config.n_routed_experts


class _Reporter:
    """Reports tensors, but not thousands: one fault often repeats for every expert."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._counts = Counter[str]()

    def error(self, code: str, message: str, tensor: str, **details: Any) -> None:
        self._counts[code] += 1
        if self._counts[code] <= _MAX_REPORTED:
            self._findings.error(code, message, tensor=tensor, **details)

    def close(self) -> None:
        """Say how many of each kind were omitted."""
        for code, count in self._counts.items():
            if count > _MAX_REPORTED:
                self._findings.note(code, f"{count - _MAX_REPORTED} more tensors have this fault")


def _validate_stage(
    prefix: str,
    wanted: Mapping[str, Wanted],
    stored: Mapping[str, StoredTensor],
    report: _Reporter,
) -> None:
    scales = {scale_name(name): name for name in wanted}
    for name, spec in wanted.items():
        if name in stored:
            _validate_tensor(
                prefix + name, spec, stored[name], stored.get(scale_name(name)), report
            )
        elif spec.required:
            report.error(
                "tensor-missing",
                "a stage of the draft lacks a tensor",
                prefix + name,
                expected=str(list(spec.shape)),
                hint="the checkpoint is incomplete: save or download it again",
            )
    for name in sorted(stored.keys() - wanted.keys()):
        owner = scales.get(name)
        if owner is None:
            report.error(
                "tensor-unknown",
                "no part of a draft with this config has this name; vLLM stops at it",
                prefix + name,
                found=f"{stored[name].dtype} {list(stored[name].shape)}",
            )
        elif owner not in stored or stored[owner].dtype in FLOATS:
            report.error(
                "scale-stray", "there is no quantised weight for this scale", prefix + name
            )


def scale_name(name: str) -> str:
    """Where the scales of a quantised weight are stored."""
    return f"{name.removesuffix('.weight')}.scale"


def _validate_tensor(
    name: str, spec: Wanted, stored: StoredTensor, scale: StoredTensor | None, report: _Reporter
) -> None:
    layout = _layout(spec, stored.dtype)
    if layout is None:
        expected = "F32, F16 or BF16" if spec.storage == "float" else "float, fp8 or packed fp4"
        message = "the tensor is stored in a dtype that no loader takes here"
        report.error("tensor-dtype", message, name, expected=expected, found=stored.dtype)
        return
    shape, scale_shape = layout
    if stored.shape != shape:
        report.error(
            "tensor-shape",
            "the shape is not the one that the config implies",
            name,
            expected=f"{list(shape)} in {stored.dtype}",
            found=str(list(stored.shape)),
        )
    if scale_shape is None:
        return
    if scale is None:
        message = "a quantised weight is stored without its scales"
        report.error("scale-missing", message, name, expected=scale_name(name))
    elif scale.shape != scale_shape or scale.dtype not in SCALE_DTYPES:
        report.error(
            "scale-shape",
            "the scales do not fit their weight",
            scale.name,
            expected=f"{'/'.join(sorted(SCALE_DTYPES))} {list(scale_shape)}",
            found=f"{scale.dtype} {list(scale.shape)}",
        )


def _layout(spec: Wanted, dtype: str) -> tuple[tuple[int, ...], tuple[int, ...] | None] | None:
    """The stored shape and that of the scales (None: there are none); None: wrong dtype."""
    if dtype in FLOATS:
        return spec.shape, None
    if spec.storage == "float":
        return None
    rows, columns = spec.shape
    if dtype == FP8:
        return spec.shape, (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    if dtype == FP4 or dtype in PACKED_FP4:
        stored = spec.shape if dtype == FP4 else (rows, columns // 2)
        return stored, (rows, -(-columns // FP4_BLOCK))
    return None


def _describe(
    config: BundledConfig,
    generation: Literal["v4", "v4.1"],
    stages: Mapping[int, Mapping[str, StoredTensor]],
) -> BundledDraft:
    tensors = [tensor for stored in stages.values() for tensor in stored.values()]
    sizes = Counter[str]()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.nbytes
    return BundledDraft(
        generation=generation,
        stages=len(stages),
        block_size=config.dspark_block_size,
        mask_token_id=config.dspark_noise_token_id,
        target_layer_ids=tuple(config.dspark_target_layer_ids),
        markov_rank=config.dspark_markov_rank,
        markov_head_type=config.dspark_markov_head_type or "vanilla",
        confidence_head=any("confidence_head.proj.weight" in s for s in stages.values()),
        routed_experts=_routed_experts(config),
        tensors=len(tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        dtypes=dict(sizes),
    )
