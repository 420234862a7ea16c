"""What ``inspect`` and ``check`` say, golden and broken drafts alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.errors import CheckpointError
from dspark_convert.formats.overrides import Overrides
from fixtures.broken import CASES, build
from fixtures.broken.edits import absolute, d2t, put

from .helpers import digest
from .reference import CONFIGS

FULL, REDUCED = "spec_vanilla_full_anchor_fp32", "spec_vanilla_reduced_anchor_bf16"
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
