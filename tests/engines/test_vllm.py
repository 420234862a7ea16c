"""vLLM's own config and weight-name functions, on what we write for it and on what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen3Config

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.schemas.draft import Layout
from fixtures.broken.edits import Edit, cut, drop, prefix_all, put, rename, zeros
from tests.engines.written_for import VARIANTS, refused

from .lift import Quiet, engine_root, lift
from .toys import Plain, add_backbone, confidence_head, refusal, unfilled, weights_of

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
DENSE, REDUCED = "dense_vanilla_bf16", "spec_vanilla_reduced_anchor_bf16"
BORROWED = {"model.embed_tokens.weight", "lm_head.weight"}


@cache
def vllm() -> dict[str, Any]:
    """Everything that is run of vLLM."""
    root = engine_root("vllm")
    models = root / "model_executor" / "models"
    known: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "re": re,
        "itertools": itertools,
        "dataclass": dataclasses.dataclass,
        "field": dataclasses.field,
        "replace": dataclasses.replace,
        "logger": Quiet(),
        "VocabParallelEmbedding": nn.Embedding,
        "StageMissingLayer": type("StageMissingLayer", (nn.Module,), {}),
        "PPMissingLayer": type("PPMissingLayer", (nn.Module,), {}),
        "maybe_prefix": lambda prefix, name: f"{prefix}.{name}" if prefix else name,
        "supports_any_eagle": lambda model: True,
    }
    known |= lift(
        root / "model_executor/model_loader/weight_utils.py", ["default_weight_loader"], known
    )
    loader = ["WeightsMapper", "AutoWeightsLoader", "_get_tied_embedding_params"]
    known |= lift(models / "utils.py", [*loader, "process_eagle_weight"], known)
    backbone = {"DFlashQwen3Model": ("hf_to_vllm_mapper", "load_weights")}
    known |= lift(models / "qwen3_dflash.py", backbone, known)
    known |= lift(models / "qwen3_dspark.py", {"Qwen3DSparkForCausalLM": ("load_weights",)}, known)
    algos = root / "transformers_utils/configs/speculators/algos.py"
    known |= lift(algos, ["SUPPORTED_SPECULATORS_TYPES", "register_speculator"], known)
    known |= lift(algos, ["update_dspark"], known)
    decode = root / "v1/worker/gpu/spec_decode"
    known |= lift(decode / "utils.py", ["get_parallel_drafting_token_id"], known)
    known |= lift(decode / "eagle/eagle3_utils.py", ["get_eagle3_aux_layers_from_config"], known)
    return known


def read_config(folder: Path) -> Any:
    """The config as vLLM holds it, by either of its two paths."""
    document = json.loads((folder / "config.json").read_text())
    if document.get("model_type") is None and "speculators_config" in document:
        flat = dict(document["transformer_layer_config"])
        vllm()["update_dspark"](document, flat)
        return SimpleNamespace(**flat)
    return Qwen3Config(**document)


def build(config: Any, target_vocab: int) -> nn.Module:
    """A toy with the parameters of the draft class."""
    engine = vllm()
    toy = type("Toy", (engine["Qwen3DSparkForCausalLM"], nn.Module), {})()
    toy.config, toy.target_vocab_size = config, target_vocab
    draft_vocab = getattr(config, "draft_vocab_size", None) or config.vocab_size
    config.draft_vocab_size = draft_vocab
    toy.model = type("Backbone", (engine["DFlashQwen3Model"], nn.Module), {})()
    toy.model._build_fused_kv_buffers = lambda: None
    add_backbone(toy.model, config, len(captured(config)))
    toy.model.embed_tokens = Plain(config.vocab_size, config.hidden_size)
    toy.model.markov_head = nn.Module()
    toy.model.markov_head.markov_w1 = Plain(config.vocab_size, config.markov_rank)
    toy.model.markov_head.markov_w2 = Plain(draft_vocab, config.markov_rank)
    toy.model.confidence_head = None
    if getattr(config, "enable_confidence_head", False):
        with_markov = getattr(config, "confidence_head_with_markov", False)
        toy.model.confidence_head = confidence_head(config, with_markov)
    toy.lm_head = Plain(draft_vocab, config.hidden_size)
    toy.draft_id_to_target_id = None
    if draft_vocab < target_vocab:
        table = torch.zeros(draft_vocab, dtype=torch.long)
        toy.draft_id_to_target_id = nn.Parameter(table, requires_grad=False)
    return toy


def captured(config: Any) -> tuple[int, ...]:
    draft = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=config))
    return vllm()["get_eagle3_aux_layers_from_config"](draft)


def load(folder: Path) -> nn.Module:
    config = read_config(folder)
    toy = build(config, target_vocab=config.vocab_size)
    toy.load_weights(weights_of(folder))
    return toy


def convert(source: Path, output: Path, **options: Any) -> Path:
    run_conversion(plan_to_dense(source, **options), output)
    return output


def verdict(folder: Path) -> str:
    (report,) = [r for r in report_engines(folder).engines if r.engine == "vLLM"]
    return report.verdict


def refused_for(folder: Path) -> set[str]:
    """The codes of the refusals that ``engines`` tells of."""
    (report,) = [r for r in report_engines(folder).engines if r.engine == "vLLM"]
    return {note.code for note in report.notes if note.verdict == "refuses"}


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_written_for_vllm_is_read_as_meant(
    variant: str, with_target: bool, expand: bool, tmp_path: Path
) -> None:
    target = GOLDEN / json.loads((GOLDEN / variant / "expected.json").read_text())["verifier"]
    options = {
        "written_for": "vllm",
        "target": target if with_target else None,
        "expand_vocabulary": expand,
    }
    source = GOLDEN / variant / "checkpoint"
    codes = refused("vllm", variant, with_target=with_target, expand=expand)
    assert refusal(source, **options) == codes
    if codes:
        return
    plan = plan_to_dense(source, **options).plan
    out = convert(source, tmp_path / "out", **options)
    config, draft = read_config(out), plan.draft
    assert captured(config) == tuple(layer + 1 for layer in draft.target_layer_ids)
    assert vllm()["get_parallel_drafting_token_id"](config) == draft.mask_token_id
    assert config.sample_from_anchor is (draft.layout is Layout.ANCHOR_FIRST)
    assert config.sliding_window == draft.sliding_window
    toy = load(out)
    absent = BORROWED - {f"model.{n}" for n, _ in weights_of(out)} - {n for n, _ in weights_of(out)}
    assert unfilled(toy) == absent
    if draft.reduced_vocabulary:
        assert toy.draft_id_to_target_id.any()
    assert (toy.model.confidence_head is not None) == draft.enable_confidence_head


Refusal = tuple[str, type[Exception], str]
"""The code that we give, and the engine's own exception with some of its words."""
NO_HEAD = ("markov-head-unsupported", ValueError)
READ_OR_NOT: dict[str, tuple[str, tuple[Edit, ...], Refusal | None]] = {
    "speculators": (REDUCED, (), None),
    "speculators, gated": (
        "spec_gated_reduced_1plusN_bf16",
        (),
        (*NO_HEAD, "named 'markov_head.gate_up_proj'"),
    ),
    "speculators, full": ("spec_vanilla_full_anchor_fp32", (), None),
    "dense": (DENSE, (), None),
    "dense, gated": ("dense_gated_fp32", (), (*NO_HEAD, "named 'markov_head.gate_up_proj'")),
    "dense, rnn": ("dense_rnn_bf16", (), (*NO_HEAD, "named 'markov_head.joint_proj'")),
    "prefixed": (
        DENSE,
        (prefix_all("model."),),
        ("prefix-unread", ValueError, "no module or parameter named 'model'"),
    ),
    "the other name of the table": (
        REDUCED,
        (rename("d2t", "draft_id_to_target_id"),),
        ("d2t-name-unread", ValueError, "must include a d2t mapping"),
    ),
    "a needless table": (
        DENSE,
        (zeros("d2t", "I64", 320),),
        ("d2t-full-vocabulary", ValueError, "named 'draft_id_to_target_id'"),
    ),
    "no markov_rank": (
        DENSE,
        (cut("markov_rank"),),
        ("key-unread", AttributeError, "no attribute 'markov_rank'"),
    ),
    "input of the confidence head": (
        DENSE,
        (cut("confidence_head_with_markov"),),
        ("confidence-input-misread", AssertionError, "Attempted to load weight"),
    ),
    "no enable_confidence_head": (DENSE, (cut("enable_confidence_head"),), None),
}


@pytest.mark.parametrize("case", READ_OR_NOT)
def test_what_engines_calls_refused_is_refused(case: str, draft: Callable[..., Path]) -> None:
    base, edits, expected = READ_OR_NOT[case]
    folder = draft(*edits, base=base)
    if expected is None:
        assert refused_for(folder) == set()
        assert unfilled(load(folder)) <= BORROWED
        return
    code, error, words = expected
    assert refused_for(folder) == {code}
    with pytest.raises(error, match=words):
        load(folder)


def test_absent_bias_of_the_confidence_head_stays_as_it_was(draft: Callable[..., Path]) -> None:
    folder = draft(drop("confidence_head.proj.bias"), base=DENSE)
    assert verdict(folder) == "silent"
    assert "model.confidence_head.proj.bias" in unfilled(load(folder))


@pytest.mark.parametrize(("base", "reading"), [(REDUCED, False), (DENSE, True)])
def test_absent_layout_is_read_in_two_ways(
    base: str, reading: bool, draft: Callable[..., Path]
) -> None:
    edits = [put(block_size=7), cut("sample_from_anchor")]
    config = read_config(draft(*(edits if base == REDUCED else edits[:1]), base=base))
    assert getattr(config, "sample_from_anchor", True) is reading
