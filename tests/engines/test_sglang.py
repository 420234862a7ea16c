"""SGLang's own config and weight-name functions, on what we write for it and what it refuses."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, Qwen3Config

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.schemas.draft import Layout
from fixtures.broken.edits import Edit, cut, prefix_all, put
from tests.engines.written_for import VARIANTS, refused

from .lift import Quiet, engine_root, lift
from .toys import add_backbone, confidence_head, refusal, unfilled, weights_of

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
DENSE, REDUCED = "dense_vanilla_bf16", "spec_vanilla_reduced_anchor_bf16"
TARGET_LAYERS = 4


class Struct:
    """Stands for the record type of msgspec."""

    def __init_subclass__(cls, frozen: bool = False) -> None: ...

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@cache
def sglang() -> dict[str, Any]:
    """Everything that is run of SGLang."""
    root = engine_root("sglang") / "srt"
    msgspec = type("msgspec", (), {"Struct": Struct})
    known: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "ABC": ABC,
        "abstractmethod": abstractmethod,
        "dataclass": dataclass,
        "Integral": Integral,
        "Sequence": Sequence,
        "msgspec": msgspec,
        "logger": Quiet(),
    }
    known |= lift(root / "model_loader/weight_utils.py", ["default_weight_loader"], known)
    flash = ["DEFAULT_DFLASH_MASK_TOKEN", "_cfg_get", "_get_text_config", "_get_dflash_config"]
    flash += ["is_nemotron_35_draft_config", "_parse_optional_int", "DFlashDraftConfig"]
    flash += ["parse_dflash_draft_config", "build_target_layer_ids", "get_dflash_layer_types"]
    flash += ["get_dflash_attention_sliding_window_size"]
    known |= lift(root / "speculative/dflash_utils.py", flash, known)
    spark = ["SUPPORTED_DSPARK_MARKOV_HEAD_TYPES", "_cfg_get", "_get_text_config"]
    spark += ["_get_nested_config", "_get_dspark_config", "DSparkDraftConfig"]
    spark += ["DSparkRuntimeConfig", "parse_dspark_draft_config", "resolve_runtime_config"]
    spark += ["get_dspark_sample_from_anchor", "dspark_gamma_from_num_draft_tokens"]
    known |= lift(root / "speculative/dspark_components/dspark_config.py", spark, known)
    heads = ["BaseDSparkMarkovHead", "VanillaMarkov", "GatedMarkovHead", "RNNHead"]
    heads += ["build_markov_head", "_DSPARK_SKIPPED_WEIGHT_PREFIXES"]
    known |= lift(root / "models/dflash.py", {"DFlashDraftModel": ("load_weights",)}, known)
    mixin = ("load_weights", "_load_confidence_weights")
    wanted = {**dict.fromkeys(heads, ()), "DSparkDraftMixin": mixin}
    return known | lift(root / "models/dspark.py", wanted, known)


def read_config(folder: Path) -> Qwen3Config:
    config = AutoConfig.from_pretrained(folder)
    assert isinstance(config, Qwen3Config)
    return config


def build(config: Qwen3Config, ragged: bool) -> nn.Module:
    """A toy with the parameters of the draft class."""
    engine = sglang()
    parsed = engine["parse_dspark_draft_config"](draft_hf_config=config)
    flash = engine["parse_dflash_draft_config"](draft_hf_config=config)
    ids = flash.resolve_target_layer_ids(target_num_layers=TARGET_LAYERS)
    engine["get_dflash_attention_sliding_window_size"](config)
    bases = (engine["DSparkDraftMixin"], engine["DFlashDraftModel"], nn.Module)
    toy = type("Toy", bases, {"is_nemotron_35_draft": False, "projector_type": None})()
    toy.config, toy.num_context_features = config, len(ids)
    add_backbone(toy, config, len(ids))
    toy.markov_head = engine["build_markov_head"](config)
    for parameter in toy.markov_head.parameters():
        parameter.data.fill_(float("nan"))
    rank = parsed.markov_rank
    with_markov = bool(getattr(config, "confidence_head_with_markov", rank > 0))
    toy.confidence_head = confidence_head(config, with_markov) if ragged else None
    return toy.requires_grad_(False)


def load(folder: Path, ragged: bool = False) -> nn.Module:
    toy = build(read_config(folder), ragged)
    toy.load_weights(weights_of(folder))
    return toy


def verdict(folder: Path) -> str:
    (report,) = [r for r in report_engines(folder).engines if r.engine == "SGLang"]
    return report.verdict


def refused_for(folder: Path) -> set[str]:
    """The codes of the refusals that ``engines`` tells of."""
    (report,) = [r for r in report_engines(folder).engines if r.engine == "SGLang"]
    return {note.code for note in report.notes if note.verdict == "refuses"}


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_written_for_sglang_is_read_as_meant(
    variant: str, with_target: bool, tmp_path: Path
) -> None:
    target = GOLDEN / json.loads((GOLDEN / variant / "expected.json").read_text())["verifier"]
    source, engine = GOLDEN / variant / "checkpoint", sglang()
    options = {"written_for": "sglang", "target": target if with_target else None}
    codes = refused("sglang", variant, with_target=with_target)
    assert refusal(source, **options) == codes
    if codes:
        return
    conversion = plan_to_dense(source, **options)
    run_conversion(conversion, tmp_path / "out")
    config, draft = read_config(tmp_path / "out"), conversion.plan.draft
    parsed = engine["parse_dspark_draft_config"](draft_hf_config=config)
    assert parsed.gamma == draft.block_size
    assert parsed.mask_token_id == draft.mask_token_id
    assert parsed.target_layer_ids == list(draft.target_layer_ids)
    assert parsed.num_target_layers == draft.num_target_layers
    assert (parsed.markov_rank, parsed.markov_head_type) == (
        draft.markov_rank,
        draft.markov_head_type,
    )
    anchored = engine["get_dspark_sample_from_anchor"](config)
    assert anchored is (draft.layout is Layout.ANCHOR_FIRST)
    window = engine["get_dflash_attention_sliding_window_size"](config)
    assert window == (draft.sliding_window - 1 if draft.sliding_window else None)
    assert unfilled(load(tmp_path / "out")) == set()
    if draft.enable_confidence_head:
        assert unfilled(load(tmp_path / "out", ragged=True)) == set()


@pytest.mark.parametrize("layout", ["anchor_first", "bonus_anchor"])
def test_number_of_the_launch_line_is_the_number_drafted(
    layout: str, draft: Callable[..., Path]
) -> None:
    folder = draft(put(sample_from_anchor=layout == "anchor_first"), base=DENSE)
    report = report_engines(folder)
    (line,) = next(r for r in report.engines if r.engine == "SGLang").launch
    gamma = int(line.rpartition(" ")[2])
    runtime = sglang()["resolve_runtime_config"](
        draft_hf_config=read_config(folder),
        speculative_num_draft_tokens=gamma + 1,
        target_vocab_size=320,
    )
    assert runtime.gamma == report.num_speculative_tokens


Refusal = tuple[set[str], str]
"""The codes that we give, and some words of the engine's own ValueError."""
NO_TYPE = "Should have a `model_type` key"
READ_OR_NOT: dict[str, tuple[str, tuple[Edit, ...], Refusal | None]] = {
    "speculators": (REDUCED, (), ({"dialect-unread", "vocabulary-unsupported"}, NO_TYPE)),
    "speculators, full": (
        "spec_vanilla_full_anchor_fp32",
        (),
        ({"dialect-unread"}, NO_TYPE),
    ),
    "dense": (DENSE, (), None),
    "dense, gated": ("dense_gated_fp32", (), None),
    "dense, rnn": ("dense_rnn_bf16", (), None),
    "prefixed": (DENSE, (prefix_all("model."),), None),
    "the embedding as a feature": (
        DENSE,
        (put(target_layer_ids=[-1, 1, 2]),),
        ({"layer-id-unsupported"}, "out-of-range layer id"),
    ),
    "no markov_rank": (DENSE, (cut("markov_rank"),), ({"key-unread"}, "requires markov_rank > 0")),
    "no markov_head_type": (
        DENSE,
        (cut("markov_head_type"),),
        ({"key-unread"}, "requires markov_head_type"),
    ),
    "no model_type": (DENSE, (cut("model_type"),), ({"key-unread"}, NO_TYPE)),
}


@pytest.mark.parametrize("case", READ_OR_NOT)
@pytest.mark.filterwarnings("ignore")
def test_what_engines_calls_refused_is_refused(case: str, draft: Callable[..., Path]) -> None:
    sglang()
    base, edits, expected = READ_OR_NOT[case]
    folder = draft(*edits, base=base)
    if expected is None:
        assert refused_for(folder) == set()
        assert unfilled(load(folder)) == set()
        return
    codes, words = expected
    assert refused_for(folder) == codes
    with pytest.raises(ValueError, match=words):
        load(folder)


def test_reduced_vocabulary_is_refused_also_when_flattened(tmp_path: Path) -> None:
    sglang()
    run_conversion(plan_to_dense(GOLDEN / REDUCED / "checkpoint"), tmp_path / "out")
    assert verdict(tmp_path / "out") == "refuses"
    with pytest.raises(AssertionError, match="Attempted to load weight"):
        load(tmp_path / "out")
