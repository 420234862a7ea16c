"""Who can load what: every kind of draft of ours, against every engine."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from dspark_convert.engines import ENGINES as TABLE
from dspark_convert.engines import Claim, EngineView, engine_notes, gravest, notes_of
from dspark_convert.errors import Findings
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.parse import parse_config, render
from dspark_convert.formats.tensors import expected_tensors
from dspark_convert.schemas.draft import DraftConfig, Layout
from fixtures.broken.drafts import read_draft

CLAIMS = [(engine.name, claim) for engine in TABLE.values() for claim in engine.claims]
ENGINES = ("vLLM", "SGLang", "llama.cpp", "DeepSpec")
BONUS = {"layout": Layout.BONUS_ANCHOR}
REDUCED = {"draft_vocab_size": 200}
PADDED = {"draft_vocab_size": 384}
OFF = {"enable_confidence_head": False, "confidence_head_with_markov": False}
HIDDEN = {"target_layer_ids": [0, 1, 2], "mask_token_id": 319}
SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6}


def dense(*without: str, table: str = "d2t", silent_about: str = "", **changes: Any) -> EngineView:
    """A dense draft whose embedding and head are stored, as ``render`` describes it."""
    base = read_draft("dense_vanilla_bf16").config
    parsed = parse_config(base, DIALECTS["dense"], {}, Findings())
    assert parsed is not None
    config = DraftConfig(**{**parsed.config.model_dump(), **changes})
    names = set(expected_tensors(config)) - set(without)
    names = {table if name == "draft_id_to_target_id" else name for name in names}
    document = render(config, DIALECTS["dense"])
    for key in silent_about.split():
        del document[key]
    return EngineView(DIALECTS["dense"], config, document, names)


def speculators(variant: str, **keys: Any) -> EngineView:
    draft = read_draft(variant)
    document = {**draft.config, **keys}
    parsed = parse_config(document, DIALECTS["speculators"], {}, Findings())
    assert parsed is not None
    return EngineView(DIALECTS["speculators"], parsed.config, document, list(draft.tensors))


def with_keys(draft: EngineView, **keys: Any) -> EngineView:
    return replace(draft, document={**draft.document, **keys})


def worst(draft: EngineView) -> str:
    """The gravest verdict of each engine, in the order of ``ENGINES``."""
    first = {note.engine: note.verdict for note in reversed(engine_notes(draft))}
    return " ".join(first[engine] for engine in ENGINES)


ROWS = {
    "1 speculators, 1+N, reduced": (
        speculators("spec_gated_reduced_1plusN_bf16", markov_head_type="vanilla"),
        "silent refuses loads refuses",
    ),
    "2 speculators, anchor-first, reduced": (
        speculators("spec_vanilla_reduced_anchor_bf16"),
        "loads refuses loads refuses",
    ),
    "2 the same, key missing": (
        speculators("spec_vanilla_reduced_anchor_bf16", sample_from_anchor=None, block_size=7),
        "silent refuses silent refuses",
    ),
    "3 speculators, full": (
        speculators("spec_vanilla_full_anchor_fp32"),
        "loads refuses loads refuses",
    ),
    "3 the same, own weights": (
        EngineView(
            DIALECTS["speculators"],
            speculators("spec_vanilla_full_anchor_fp32").config,
            speculators("spec_vanilla_full_anchor_fp32").document,
            list(dense().tensors),
        ),
        "loads refuses loads refuses",
    ),
    "4 dense, anchor-first, full": (dense(), "loads loads loads loads"),
    "5 dense, reduced, d2t": (dense(**REDUCED), "loads refuses loads refuses"),
    "5b dense, reduced, the other name": (
        dense(table="draft_id_to_target_id", **REDUCED),
        "refuses refuses refuses refuses",
    ),
    "6 dense, 1+N": (dense(**BONUS), "silent silent loads silent"),
    "7 gated": (dense(markov_head_type="gated"), "refuses loads refuses loads"),
    "8 rnn": (dense(markov_head_type="rnn"), "refuses loads refuses loads"),
    "8 rnn, 1+N": (dense(markov_head_type="rnn", **BONUS), "refuses silent refuses silent"),
    "9 no confidence head": (dense(**OFF), "loads loads loads loads"),
    "10 no embedding": (dense("embed_tokens.weight"), "loads loads loads silent"),
    "11 no head, full": (dense("lm_head.weight"), "loads loads loads silent"),
    "11 no head, padded": (dense("lm_head.weight", **PADDED), "silent refuses refuses refuses"),
    "12 own embedding and head": (dense(), "loads loads loads loads"),
    "14 prefixed": (
        EngineView(
            DIALECTS["dense"],
            dense().config,
            dense().document,
            ["model.fc.weight", "model.lm_head.weight"],
        ),
        "refuses loads loads silent",
    ),
    "17 the embedding as a feature": (
        dense(target_layer_ids=(-1, 1, 2)),
        "loads refuses loads loads",
    ),
    "17 the last layer as a feature": (
        dense(target_layer_ids=(0, 1, 3)),
        "loads refuses loads loads",
    ),
    "18 sliding, not switched on": (
        dense(silent_about="use_sliding_window", **SLIDING),
        "refuses refuses silent silent",
    ),
    "20 type of the Markov head missing": (
        dense(silent_about="markov_head_type"),
        "loads refuses loads refuses",
    ),
    "21 input of the confidence head missing": (
        dense(silent_about="confidence_head_with_markov"),
        "refuses loads loads refuses",
    ),
    "9b enable_confidence_head missing": (
        dense(silent_about="enable_confidence_head"),
        "loads loads loads refuses",
    ),
    "6 dense, 1+N, key missing": (
        dense(silent_about="sample_from_anchor", **BONUS),
        "silent silent silent silent",
    ),
    "no Markov head": (
        dense(markov_rank=0, **OFF),
        "loads refuses loads loads",
    ),
    "15 heads described in dflash_config only": (
        dense(silent_about="markov_rank"),
        "refuses refuses loads refuses",
    ),
    "no model_type": (dense(silent_about="model_type"), "refuses refuses loads loads"),
    "an architecture of its own": (
        with_keys(dense(), architectures=["MyDraft"]),
        "refuses refuses refuses refuses",
    ),
    "no block_size": (dense(silent_about="block_size"), "loads loads silent loads"),
    "a dflash_config that lacks keys": (
        with_keys(dense(), dflash_config={"use_swa": False}),
        "loads loads silent loads",
    ),
    "1 the same, key missing": (
        speculators(
            "spec_gated_reduced_1plusN_bf16", markov_head_type="vanilla", sample_from_anchor=None
        ),
        "silent refuses loads refuses",
    ),
    "3 the same, verifier not named": (
        speculators("spec_vanilla_full_anchor_fp32", speculators_config={}),
        "loads refuses loads refuses",
    ),
    "biases": (dense(attention_bias=True), "loads loads refuses loads"),
    "another target width": (dense(target_hidden_size=96), "loads loads refuses loads"),
    "sliding, causal": (dense(**SLIDING), "loads loads silent silent"),
    "all layers sliding, causal": (
        dense(layer_types=("sliding_attention",) * 2, sliding_window=6),
        "loads loads silent silent",
    ),
    "another activation": (dense(hidden_act="gelu"), "refuses refuses silent loads"),
    "another activation, nested": (
        speculators(
            "spec_vanilla_reduced_anchor_bf16",
            transformer_layer_config={
                **read_draft("spec_vanilla_reduced_anchor_bf16").config["transformer_layer_config"],
                "hidden_act": "gelu",
            },
        ),
        "refuses refuses silent refuses",
    ),
    "partial rotation of the target": (
        with_keys(dense(), partial_rotary_factor=0.25),
        "silent loads loads loads",
    ),
    "partial rotation, undone": (
        with_keys(dense(), rope_parameters={"rope_dim": 24, "partial_rotary_factor": 0.25}),
        "loads loads loads loads",
    ),
    "sliding by use_swa alone": (
        with_keys(
            dense(
                layer_types=("sliding_attention",) * 2,
                sliding_window=6,
                sliding_window_non_causal=True,
            ),
            layer_types=None,
            use_sliding_window=None,
            dflash_config={"use_swa": True, "swa_window_size": 6, **HIDDEN},
        ),
        "loads silent silent silent",
    ),
    "sliding, non-causal": (
        dense(sliding_window_non_causal=True, **SLIDING),
        "silent silent loads silent",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_row_of_the_matrix(row: str) -> None:
    draft, expected = ROWS[row]
    assert worst(draft) == expected


def test_full_vocabulary_with_a_table_is_refused_by_vllm() -> None:
    draft = dense()
    stored = replace(draft, tensors=[*draft.tensors, "d2t"])
    assert worst(stored).startswith("refuses")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"is_causal": False}, "loads loads loads silent"),
        ({"dflash_config": {"causal": False, **HIDDEN}}, "loads silent loads silent"),
    ],
)
def test_causality_in_the_spelling_of_an_engine_is_heard(
    keys: dict[str, Any], expected: str
) -> None:
    draft = dense(sliding_window_non_causal=True, **SLIDING)
    document = {**draft.document, **keys}
    assert worst(replace(draft, document=document)) == expected


def test_confidence_head_without_bias_is_said() -> None:
    assert worst(dense("confidence_head.proj.bias")).startswith("silent")


def test_every_claim_is_shown_by_a_row_and_cites_its_source() -> None:
    shown = [dense("confidence_head.proj.bias"), *(draft for draft, _ in ROWS.values())]
    draft = dense()
    shown.append(replace(draft, tensors=[*draft.tensors, "d2t"]))
    for _, claim in CLAIMS:
        assert claim.evidence
        assert any(claim.when(draft) for draft in shown), claim.reason
        assert not all(claim.when(draft) for draft in shown), claim.reason


def test_notes_put_refusals_first_and_speak_of_every_engine() -> None:
    notes = engine_notes(dense(**BONUS, markov_head_type="rnn"))
    order = ["refuses", "silent", "loads"]
    for engine in ENGINES:
        verdicts = [order.index(note.verdict) for note in notes if note.engine == engine]
        assert verdicts == sorted(verdicts)
        assert verdicts
    assert all("{" not in note.reason for note in notes)


def test_own_form_is_all_that_speculators_reads() -> None:
    verdicts = {draft.dialect.name: verdicts_of("speculators", draft) for draft, _ in ROWS.values()}
    assert verdicts["dense"] == ["refuses"]
    assert verdicts["speculators"] == ["loads"]
    missing, _ = ROWS["1 the same, key missing"]
    assert verdicts_of("speculators", missing) == ["silent"]


def verdicts_of(engine: str, draft: EngineView) -> list[str]:
    return [note.verdict for note in engine_notes(draft) if note.engine == engine]


@pytest.mark.parametrize(
    "claim", [claim for _, claim in CLAIMS], ids=[f"{name}: {c.reason}" for name, c in CLAIMS]
)
def test_claim_is_fit_to_be_shown(claim: Claim) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", claim.code)
    assert claim.verdict == "loads" or claim.way_out
    assert claim.verdict == "silent" or not claim.avoided_by_launch
    assert "{" not in claim.reason.format(n=6, block=7)
    assert claim.inherent or not claim.way_out.startswith("{elsewhere}")
    assert "serve it with" not in claim.way_out


@pytest.mark.parametrize("row", ROWS)
def test_advice_names_only_engines_that_run_the_draft(row: str) -> None:
    draft, _ = ROWS[row]
    by_name = {engine.name: engine for engine in TABLE.values()}
    for note in engine_notes(draft):
        advice = re.match(r"(serve it with|convert it for) (.*?)(, and|;|$)", note.way_out or "")
        if advice is None:
            continue
        for name in advice[2].split(" or "):
            assert name != note.engine
            assert by_name[name].serves
            runs = gravest(notes_of(by_name[name], draft)) == "loads"
            assert runs == (advice[1] == "serve it with")


def test_draft_that_no_engine_runs_is_told_so() -> None:
    gated = speculators("spec_gated_reduced_1plusN_bf16")
    advice = {note.code: note.way_out for note in engine_notes(gated)}
    assert str(advice["markov-head-unsupported"]).startswith("none of these engines")
    biased = {note.code: note.way_out for note in engine_notes(dense(attention_bias=True))}
    assert biased["attention-bias-unsupported"] == "serve it with vLLM or SGLang or DeepSpec"
    reduced = speculators("spec_vanilla_reduced_anchor_bf16")
    ways = {note.code: note.way_out for note in engine_notes(reduced) if note.engine == "SGLang"}
    assert str(ways["vocabulary-unsupported"]).startswith("serve it with vLLM or llama.cpp;")


@pytest.mark.parametrize(
    ("stored", "overwritten"),
    [(["lm_head.weight"], True), (["embed_tokens.weight"], True), (["fc.weight"], False)],
)
def test_weights_that_speculators_overwrites_are_a_silent_fault(
    stored: list[str], overwritten: bool
) -> None:
    full = replace(speculators("spec_vanilla_full_anchor_fp32"), tensors=stored)
    assert verdicts_of("speculators", full) == (["silent"] if overwritten else ["loads"])
    reduced = replace(speculators("spec_vanilla_reduced_anchor_bf16"), tensors=stored)
    own_head = stored == ["lm_head.weight"]
    assert (verdicts_of("speculators", reduced) == ["silent"]) == (overwritten and not own_head)


LAYOUTS = [({}, 7), (BONUS, 6)]


@pytest.mark.parametrize(("layout", "tokens"), LAYOUTS)
def test_launch_lines_draft_n_tokens_in_both_layouts(layout: dict[str, Any], tokens: int) -> None:
    config = dense(**layout).config
    assert (config.block_size, config.num_speculative_tokens) == (7, tokens)
    path = "a folder/it's"
    lines = {
        engine.name: [shlex.split(line) for line in engine.launch(path, tokens)]
        for engine in TABLE.values()
    }
    (serve,) = lines["vLLM"]
    assert serve[:4] == ["vllm", "serve", "TARGET", "--speculative-config"]
    settings = {"method": "dspark", "model": path, "num_speculative_tokens": tokens}
    assert json.loads(serve[4]) == settings
    (serve,) = lines["SGLang"]
    options = dict(zip(serve[3::2], serve[4::2], strict=True))
    assert options["--speculative-dspark-block-size"] == str(tokens)
    assert options["--speculative-draft-model-path"] == path
    convert, serve = lines["llama.cpp"]
    assert convert[2] == path
    assert serve[-2:] == ["--spec-draft-n-max", str(tokens)]
    assert lines["DeepSpec"][0][-1] == path
    assert path in lines["speculators"][0][-1]


def test_fault_that_the_launch_line_avoids_does_not_count() -> None:
    by_name = {engine.name: engine for engine in TABLE.values()}
    draft = dense(**BONUS)
    assert gravest(notes_of(by_name["vLLM"], draft)) == "loads"
    assert gravest(notes_of(by_name["SGLang"], draft)) == "loads"
    assert gravest(notes_of(by_name["DeepSpec"], draft)) == "silent"
    rnn = dense(**BONUS, markov_head_type="rnn")
    assert gravest(notes_of(by_name["SGLang"], rnn)) == "silent"
    assert gravest(notes_of(by_name["vLLM"], rnn)) == "refuses"
