"""What ``inspect`` and ``check`` say, golden and broken drafts alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.errors import CheckpointError, Finding
from dspark_convert.formats.overrides import Overrides
from fixtures.broken import CASES, build
from fixtures.broken.edits import absolute, d2t, put, zeros

from .helpers import digest
from .reference import CONFIGS

FULL, REDUCED = "spec_vanilla_full_anchor_fp32", "spec_vanilla_reduced_anchor_bf16"
DENSE = "dense_vanilla_bf16"
UNREADABLE = {"no-config", *(name for name in CASES if name.startswith("config-"))}
"""Cases of which not even the config can be read."""


@pytest.mark.parametrize("variant", CONFIGS)
def test_golden_draft_is_described_as_its_makers_say(variant: str, golden: Path) -> None:
    folder = golden / variant / "checkpoint"
    expected = json.loads((golden / variant / "expected.json").read_text())
    before = digest(folder)
    inspection = inspect_draft(folder)
    assert digest(folder) == before
    assert inspection.draft is not None
    draft = inspection.draft
    assert draft.layout.value == expected["layout"]
    assert inspection.num_speculative_tokens == expected["tokens_per_proposal"]
    assert list(draft.target_layer_ids) == expected["target_layer_ids"]
    assert draft.vocab_size == expected["vocab_size"]
    assert draft.draft_vocab_size == expected["draft_vocab_size"]
    assert draft.markov_rank == expected["markov_rank"]
    assert draft.enable_confidence_head == expected["confidence_head"]
    assert list(draft.layer_types) == expected["layer_types"]
    assert inspection.tensors == len(expected["tensor_names"])
    assert inspection.dialect == ("dense" if variant.startswith("dense") else "speculators")
    assert not [finding for finding in inspection.findings if finding.severity == "error"]


def test_parameters_are_those_of_float_tensors_and_bytes_those_of_all(golden: Path) -> None:
    expected = json.loads((golden / REDUCED / "expected.json").read_text())["tensor_names"]
    size = {"bfloat16": 2, "int64": 8, "bool": 1}
    elements = {name: product(shape) for name, (_, shape) in expected.items()}
    floats = [name for name, (dtype, _) in expected.items() if dtype == "bfloat16"]
    inspection = inspect_draft(golden / REDUCED / "checkpoint")
    assert inspection.parameters == sum(elements[name] for name in floats)
    assert inspection.weight_bytes == sum(
        elements[name] * size[dtype] for name, (dtype, _) in expected.items()
    )
    assert inspection.dtypes["I64"] == 200 * 8
    assert inspection.absent == ("embed_tokens.weight",)


def product(shape: list[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


@pytest.mark.parametrize("case_id", [name for name in CASES if name not in UNREADABLE])
def test_check_reports_every_code_of_a_case(case_id: str, tmp_path: Path) -> None:
    report = check_draft(build(case_id, tmp_path))
    found = {finding.code for finding in report.findings if finding.severity == "error"}
    assert set(CASES[case_id].refused) <= found
    assert report.verdict == ("pass" if CASES[case_id].converts else "fail")
    assert bool(found) == (report.verdict == "fail")


@pytest.mark.parametrize("case_id", sorted(UNREADABLE))
def test_what_cannot_be_read_is_refused(case_id: str, tmp_path: Path) -> None:
    folder = build(case_id, tmp_path)
    for look in (check_draft, inspect_draft):
        with pytest.raises(CheckpointError) as caught:
            look(folder)
        assert caught.value.code in CASES[case_id].refused


@pytest.mark.parametrize("case_id", [name for name in CASES if name not in UNREADABLE])
def test_inspection_of_any_draft_is_a_document(case_id: str, tmp_path: Path) -> None:
    inspection = inspect_draft(build(case_id, tmp_path))
    json.dumps(inspection.model_dump(mode="json"), allow_nan=False)
    assert bool(inspection.engines) == CASES[case_id].converts


def test_vocabulary_table_in_words(draft: Callable[..., Path]) -> None:
    def said(*edits: Any, base: str = REDUCED, **overrides: Any) -> str | None:
        folder = draft(*edits, base=base)
        return inspect_draft(folder, overrides=Overrides(**overrides)).vocabulary_table

    assert said() == "d2t, I64 [200], offsets"
    assert said(base=FULL) == "none: draft ids are target ids"
    assert said(d2t(absolute), d2t="absolute") == (
        "d2t, I64 [200], offsets (absolute ids rewritten as offsets)"
    )
    assert said(put(mask_token_id=999)) is None


@pytest.mark.parametrize("case_id", CASES)
def test_every_refusal_says_what_to_do(case_id: str, tmp_path: Path) -> None:
    folder = build(case_id, tmp_path)
    try:
        findings = check_draft(folder).findings
    except CheckpointError as error:
        findings = error.findings
    errors = [finding for finding in findings if finding.severity == "error"]
    assert bool(errors) != CASES[case_id].converts
    assert [finding for finding in errors if not finding.hint] == []


def refusal(folder: Path, **fields: Any) -> Finding:
    report = check_draft(folder, overrides=Overrides(fields=fields))
    (finding,) = [finding for finding in report.findings if finding.severity == "error"]
    return finding


@pytest.mark.parametrize(
    ("base", "key", "fields", "told"),
    [
        (REDUCED, "aux_hidden_state_layer_ids", {}, "[3, 2, 1]"),
        (DENSE, "target_layer_ids", {}, "[3, 2, 1]"),
        (REDUCED, "target_layer_ids", {"target_layer_ids": [2, 1, 0]}, "[2, 1, 0]"),
    ],
)
def test_layer_ids_are_told_with_the_key_that_gave_them(
    base: str, key: str, fields: dict[str, Any], told: str, draft: Callable[..., Path]
) -> None:
    edits = [] if fields else [put(**{key: [3, 2, 1]})]
    finding = refusal(draft(*edits, base=base), **fields)
    assert (finding.code, finding.key, finding.found) == ("layer-ids-invalid", key, told)


def test_ids_that_look_equal_and_are_not_are_told_with_their_meaning(
    draft: Callable[..., Path],
) -> None:
    finding = refusal(draft(put(target_layer_ids=[1, 2, 3])))
    assert finding.found == (
        "aux_hidden_state_layer_ids = [1, 2, 3], which is target_layer_ids [0, 1, 2]; "
        "target_layer_ids = [1, 2, 3]"
    )
    assert "count decoder layers from 0" in str(finding.hint)


@pytest.mark.parametrize(
    ("keys", "option"),
    [
        ({"block_size": "7"}, "--set block_size="),
        ({"transformer_layer_config__hidden_size": [64]}, "--set hidden_size="),
        ({"aux_hidden_state_layer_ids": [1, "2", 3]}, "--set target_layer_ids="),
        ({"sample_from_anchor": "yes"}, "--layout"),
    ],
)
def test_value_of_a_wrong_type_can_be_overruled(
    keys: dict[str, Any], option: str, draft: Callable[..., Path]
) -> None:
    finding = refusal(draft(put(**keys)))
    assert finding.code == "config-invalid"
    assert option in str(finding.hint)


def test_what_is_not_stored_is_known_of_a_draft_that_fails(draft: Callable[..., Path]) -> None:
    assert inspect_draft(draft(put(mask_token_id=999))).absent == ("embed_tokens.weight",)
    assert (
        inspect_draft(draft(base=DENSE)).absent
        == inspect_draft(draft(put(mask_token_id=999), base=DENSE)).absent
    )


@pytest.mark.parametrize(("base", "warned"), [(FULL, 1), (REDUCED, 1), (DENSE, 0)])
def test_check_warns_of_weights_that_speculators_overwrites(
    base: str, warned: int, draft: Callable[..., Path]
) -> None:
    report = check_draft(draft(zeros("embed_tokens.weight", "BF16", 320, 64), base=base))
    codes = [finding.code for finding in report.findings if finding.severity == "warning"]
    assert (report.verdict, codes) == ("pass", ["own-weights-overwritten"] * warned)
