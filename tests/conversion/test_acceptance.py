"""Every acceptance case by its verdict; those of the config (H1 to H3, H8, H14) as tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.formats.overrides import Overrides
from dspark_convert.schemas.draft import Layout
from fixtures.broken import CASES, build
from fixtures.broken.edits import cut, proposes, put, resize

from .acceptance import (
    DENSE,
    DENSE_GATED,
    FULL,
    GATED,
    REDUCED,
    Build,
    codes,
    plan,
    refused,
    verdicts,
)
from .helpers import config_of, convert


@pytest.mark.parametrize("case_id", CASES)
def test_case_ends_as_it_says_and_leaves_nothing_when_refused(
    case_id: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    case, source, output = CASES[case_id], build(case_id, tmp_path), tmp_path / "out"
    outcome = cli("to-dense", source, output, "--json")
    assert outcome.code == (0 if case.converts else 3)
    assert output.exists() == case.converts
    if case.refused:
        assert set(outcome.codes) == set(case.refused)
    if case.cure:
        assert cli("to-dense", source, output, "--quiet", *case.cure).code == 0
        reading = ["--d2t", "offsets"] if "--d2t" in case.cure else []
        assert cli("check", output, *reading).code == 0


# H1: the layout key is absent -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "tokens", "layout"),
    [
        (8, 7, Layout.BONUS_ANCHOR),  # the public draft that this began with
        (7, 7, Layout.ANCHOR_FIRST),
        (7, 6, Layout.BONUS_ANCHOR),
        (16, 15, Layout.BONUS_ANCHOR),
        (1, 1, Layout.ANCHOR_FIRST),
    ],
)
def test_h1_absent_layout_is_inferred_and_said(
    draft: Build, tmp_path: Path, block: int, tokens: int, layout: Layout
) -> None:
    source = draft(cut("sample_from_anchor"), put(block_size=block), proposes(tokens))
    manifest = convert(source, tmp_path / "out")
    assert manifest.layout is layout
    assert (
        manifest.layout_evidence == f"inferred: {tokens} speculative tokens in a block of {block}"
    )
    assert "layout-inferred" in codes(manifest.findings)
    config = config_of(tmp_path / "out")
    assert config["sample_from_anchor"] is (layout is Layout.ANCHOR_FIRST)
    assert config["dspark_bonus_anchor"] is (layout is Layout.BONUS_ANCHOR)


@pytest.mark.parametrize(
    "edit",
    [
        proposes(),
        proposes(5),
        proposes(6, 7),
        proposes(8),
        put(speculators_config__proposal_methods=None),
        put(speculators_config__proposal_methods=[{"proposal_type": "greedy"}]),
        cut("speculators_config"),
    ],
)
def test_h1_nothing_decides(draft: Build, edit: Any) -> None:
    (finding,) = refused(draft(cut("sample_from_anchor"), edit))
    assert finding.code == "layout-undeclared"
    assert "--layout anchor-first" in str(finding.hint)


# H2: 1+N -------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [REDUCED, FULL, GATED, DENSE, DENSE_GATED])
@pytest.mark.parametrize("block", [2, 7, 8])
def test_h2_one_plus_n(draft: Build, tmp_path: Path, base: str, block: int) -> None:
    edits = [put(sample_from_anchor=False, block_size=block)]
    edits += [proposes(block - 1)] if base.startswith("spec_") else []
    source = draft(*edits, base=base)
    planned = plan(source)
    assert planned.num_speculative_tokens == block - 1
    assert planned.config["sample_from_anchor"] is False
    assert planned.config["dspark_bonus_anchor"] is True
    said = verdicts(planned)
    assert f"num_speculative_tokens={block - 1}" in said["vLLM", "silent"]
    assert f"block-size {block - 1}" in said["SGLang", "silent"]
    if planned.draft.draft_vocab_size == planned.draft.vocab_size:
        reasons = [n.reason for n in planned.engines if n.engine == "DeepSpec"]
        assert any("sample_from_anchor is ignored" in reason for reason in reasons)


# H3: layer ids --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aux", "layers"),
    [([2, 4, 7], [1, 3, 6]), ([0, 2, 3], [-1, 1, 2]), ([1, 2, 4], [0, 1, 3]), ([0], [-1])],
)
@pytest.mark.parametrize("key", ["aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"])
@pytest.mark.parametrize("base", [REDUCED, DENSE])
def test_h3_layer_ids_both_ways(
    draft: Build, tmp_path: Path, base: str, key: str, aux: list[int], layers: list[int]
) -> None:
    other = "target_layer_ids" if base == DENSE else "aux_hidden_state_layer_ids"
    source = draft(
        cut(other),
        put(**{key: aux}, num_target_layers=None),
        resize("fc.weight", 64, 64 * len(aux)),
        base=base,
    )
    convert(source, tmp_path / "out")
    config = config_of(tmp_path / "out")
    assert config["target_layer_ids"] == layers
    assert config["eagle_aux_hidden_state_layer_ids"] == aux
    again = plan(tmp_path / "out")
    assert again.draft.target_layer_ids == tuple(layers)
    assert ("SGLang", "refuses") in verdicts(again) or -1 not in layers


# H8: mask token -------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", [cut("mask_token_id"), put(mask_token_id=None)])
@pytest.mark.parametrize("base", [REDUCED, DENSE])
def test_h8_mask_token(draft: Build, tmp_path: Path, base: str, edit: Any) -> None:
    source = draft(edit, base=base)
    (finding,) = refused(source)
    assert finding.code == "key-missing"
    assert "--set mask_token_id=VALUE" in str(finding.hint)
    manifest = convert(source, tmp_path / "out", overrides=Overrides({"mask_token_id": 7}))
    assert config_of(tmp_path / "out")["mask_token_id"] == 7
    assert manifest.overrides == {"mask_token_id": 7}
    assert codes(refused(source, Overrides({"mask_token_id": 320}))) == ["mask-token-out-of-range"]


# H14: RoPE ------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [REDUCED, DENSE])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 5000000}},
        {"rope_parameters": None, "rope_theta": 5e6, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e6}, "rope_theta": 5e6},
    ],
)
def test_h14_rope_base_is_written_in_both_spellings(
    draft: Build, base: str, rope: dict[str, Any]
) -> None:
    prefix = "transformer_layer_config__" if base == REDUCED else ""
    config = plan(
        draft(put(**{prefix + key: value for key, value in rope.items()}), base=base)
    ).config
    assert config["rope_theta"] == 5e6
    assert config["rope_parameters"] == {"rope_theta": 5e6, "rope_type": "default"}
