"""Reading a folder: refused with everything at once, or examined as far as it goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_convert.errors import CheckpointError, DSparkError
from dspark_convert.formats.read import examine, read_draft
from dspark_convert.schemas.draft import DraftConfig
from fixtures.broken import CASES, build
from fixtures.broken.drafts import read_draft as read_golden
from fixtures.broken.drafts import write_draft, write_json
from fixtures.broken.edits import cut, drop, put

from .helpers import DENSE, FULL, REDUCED, SLIDING, config_of, errors


@pytest.mark.parametrize("case_id", CASES)
def test_case_is_read_or_refused_with_all_its_codes(case_id: str, tmp_path: Path) -> None:
    case, folder = CASES[case_id], build(case_id, tmp_path)
    if case.converts:
        source = read_draft(folder)
        assert (source.d2t is not None) == source.config.reduced_vocabulary
        return
    with pytest.raises(DSparkError) as caught:
        read_draft(folder)
    assert {finding.code for finding in caught.value.findings} == set(case.refused)
    assert all(finding.severity == "error" for finding in caught.value.findings)


def test_findings_of_config_and_tensors_come_together(draft: Callable[..., Path]) -> None:
    folder = draft(put(mask_token_id=320), drop("norm.weight", "d2t"))
    expected = {"mask-token-out-of-range", "tensor-missing", "d2t-missing"}
    assert set(errors(examine(folder).findings)) == expected


def test_config_is_examined_where_weights_cannot_be_read(draft: Callable[..., Path]) -> None:
    folder = draft(cut("mask_token_id"))
    (folder / "model.safetensors").write_bytes(b"")
    examination = examine(folder)
    assert set(errors(examination.findings)) == {"file-truncated", "key-missing"}
    assert examination.detection is not None
    assert examination.source is None


def test_examination_ends_where_nothing_can_be_read(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError):
            examine(folder)


WRONG = [None, True, -1, 0, 7, 10**60, 1.5, "text", "", [], [1], ["x"], {}, {"a": 1}]
BLOCKS = ("dflash_config", "dspark_config", "speculators_config", "transformer_layer_config")


def spots(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every key at two levels, and keys that a rule knows where the draft does not have them."""
    nested = [(outer, key) for outer in BLOCKS for key in (*document, *document.get(outer, {}))]
    extra = ["is_causal", "causal", "swa_window_size", "dspark_block_size", "rope_theta"]
    rope = [("transformer_layer_config", "rope_parameters", "rope_theta")]
    return [(key,) for key in (*document, *extra, *BLOCKS)] + nested + rope


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Golden drafts whose config may be overwritten."""
    folders = {}
    for variant in (DENSE, REDUCED, FULL, SLIDING):
        folders[variant] = tmp_path_factory.mktemp("any") / variant
        write_draft(read_golden(variant), folders[variant])
    return folders


@settings(max_examples=400)
@given(data=st.data())
def test_no_value_of_any_key_ends_in_anything_but_a_refusal(
    folders: dict[str, Path], data: st.DataObject
) -> None:
    variant = data.draw(st.sampled_from(list(folders)))
    document = config_of(variant)
    *outer, key = data.draw(st.sampled_from(spots(document)))
    node = document
    for step in outer:
        node = node.setdefault(step, {})
    node[key] = data.draw(st.sampled_from(WRONG))
    write_json(folders[variant] / "config.json", document)
    with suppress(DSparkError):
        source = read_draft(folders[variant])
        DraftConfig.model_validate(source.config.model_dump(), strict=True)
