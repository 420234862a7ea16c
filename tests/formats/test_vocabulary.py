"""The vocabulary tables: offsets or absolute ids, told apart wherever that is possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark_convert.checkpoint.folder import StoredTensor, open_checkpoint
from dspark_convert.errors import Findings
from dspark_convert.formats.tensors import NamedTensors, name_tensors
from dspark_convert.formats.vocabulary import (
    Ids,
    TableMeaning,
    VocabularyTable,
    validate_vocabulary,
)
from fixtures.broken.drafts import Tensor, pack

from .helpers import REDUCED, config_of, errors, notes, parsed

VOCAB, DRAFT = 12, 5


def judge(
    folder: Path,
    table: Any,
    mask: Any = None,
    *,
    reading: TableMeaning | None = None,
    dtype: str = "I64",
    second: Any = None,
    draft_vocab: int | None = None,
    vocab: int = VOCAB,
) -> tuple[VocabularyTable | None, Findings]:
    tensors = {} if table is None else {"d2t": Tensor.of(np.array(table), dtype)}
    if mask is not None:
        marks = np.zeros(vocab, bool)
        marks[list(mask)] = True
        tensors["t2d"] = Tensor.of(marks, "BOOL")
    if second is not None:
        tensors["draft_id_to_target_id"] = Tensor.of(np.array(second), "I64")
    rows = draft_vocab or len(table)
    sizes = {"vocab_size": vocab, "draft_vocab_size": rows}
    config = parsed(config_of(REDUCED)).model_copy(update=sizes)
    findings = Findings()
    return validate_vocabulary(config, named(folder, tensors), findings, reading=reading), findings


def named(folder: Path, tensors: dict[str, Tensor]) -> NamedTensors:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(pack(tensors))
    return name_tensors(open_checkpoint(folder).tensors.values(), Findings())


def offsets(ids: Any) -> list[int]:
    return [int(target) - draft for draft, target in enumerate(ids)]


IDS = [1, 3, 4, 8, 11]
BOTH_WAYS = [0, 5, 3, 1, 4]  # distinct and in range as ids, and as offsets: 0, 6, 5, 4, 8


@pytest.mark.parametrize("mask", [None, IDS])
def test_offsets_are_taken_as_they_are(tmp_path: Path, mask: Any) -> None:
    table, findings = judge(tmp_path, offsets(IDS), mask)
    assert table is not None
    assert table.target_ids.tolist() == IDS
    assert table.changed is None
    assert not list(findings)


def test_int32_is_widened_and_said(tmp_path: Path) -> None:
    table, findings = judge(tmp_path, offsets(IDS), dtype="I32")
    assert table is not None
    assert table.offsets.dtype == np.int64
    assert table.changed
    assert notes(findings) == ["d2t-widened"]


def test_unsorted_is_a_note(tmp_path: Path) -> None:
    ids = [3, 1, 4, 8, 11]
    table, findings = judge(tmp_path, offsets(ids), ids)
    assert table is not None
    assert table.target_ids.tolist() == ids
    assert notes(findings) == ["d2t-unsorted"]


@pytest.mark.parametrize(
    ("table", "mask", "code"),
    [
        ([1, 3, 4, 8, 11], IDS, "d2t-absolute"),
        ([1, 3, 4, 8, 11], None, "d2t-absolute"),
        (offsets([1, 3, 4, 8, 12]), None, "d2t-out-of-range"),
        (offsets([-1, 3, 4, 8, 11]), None, "d2t-out-of-range"),
        ([2**63 - 1] * 5, None, "d2t-out-of-range"),
        ([-(2**63)] * 5, None, "d2t-out-of-range"),
        (offsets([1, 2, 2, 8, 11]), None, "d2t-duplicate"),
        (BOTH_WAYS, None, "d2t-ambiguous"),
        (offsets([1, 3, 4, 8, 10]), IDS, "d2t-t2d-mismatch"),
        ([0, 0, 0, 0, 0], None, "d2t-all-zero"),
        ([0, 0, 0, 0, 0], IDS, "d2t-all-zero"),
    ],
)
def test_table_that_cannot_be_taken(tmp_path: Path, table: Any, mask: Any, code: str) -> None:
    result, findings = judge(tmp_path, table, mask)
    assert result is None
    assert errors(findings) == [code]


@pytest.mark.parametrize(
    ("table", "mask", "reading", "ids"),
    [
        (IDS, IDS, "absolute", IDS),
        (IDS, None, "absolute", IDS),
        (BOTH_WAYS, None, "offsets", [0, 6, 5, 4, 8]),
        (BOTH_WAYS, None, "absolute", BOTH_WAYS),
        (BOTH_WAYS, [0, 4, 5, 6, 8], None, [0, 6, 5, 4, 8]),
        ([0, 0, 0, 0, 0], None, "offsets", [0, 1, 2, 3, 4]),
        ([0, 0, 0, 0, 0], [0, 1, 2, 3, 4], None, [0, 1, 2, 3, 4]),
        (offsets([1, 3, 4, 8, 10]), IDS, "offsets", [1, 3, 4, 8, 10]),
    ],
)
def test_reading_given_or_proved(
    tmp_path: Path, table: Any, mask: Any, reading: TableMeaning | None, ids: list[int]
) -> None:
    result, findings = judge(tmp_path, table, mask, reading=reading)
    assert not errors(findings)
    assert result is not None
    assert result.target_ids.tolist() == ids
    assert bool(result.changed) == (reading == "absolute")


@pytest.mark.parametrize("reading", ["offsets", "absolute"])
def test_given_reading_is_still_judged(tmp_path: Path, reading: TableMeaning) -> None:
    result, findings = judge(tmp_path, [99] * DRAFT, reading=reading)
    assert result is None
    assert errors(findings) == ["d2t-out-of-range"]


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"table": None, "draft_vocab": DRAFT}, "d2t-missing"),
        ({"table": offsets(IDS), "dtype": "F32"}, "d2t-dtype"),
        ({"table": offsets(IDS), "dtype": "BOOL"}, "d2t-dtype"),
        ({"table": offsets(IDS), "draft_vocab": 4}, "d2t-length"),
        ({"table": offsets(IDS), "second": IDS}, "d2t-conflict"),
        ({"table": [1] * VOCAB}, "d2t-full-vocabulary"),
        ({"table": [0] * VOCAB, "second": [1] * VOCAB}, "d2t-full-vocabulary"),
        ({"table": [0] * 4, "draft_vocab": VOCAB}, "d2t-full-vocabulary"),
    ],
)
def test_table_of_another_kind(tmp_path: Path, keys: dict[str, Any], code: str) -> None:
    result, findings = judge(tmp_path, **keys)
    assert result is None
    assert errors(findings) == [code]


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"table": offsets(IDS), "second": offsets(IDS)}, "d2t-twice"),
        ({"table": [0] * VOCAB}, "d2t-identity"),
    ],
)
def test_needless_tables_are_said(tmp_path: Path, keys: dict[str, Any], note: str) -> None:
    _, findings = judge(tmp_path, **keys)
    assert (notes(findings), errors(findings)) == ([note], [])


@pytest.mark.parametrize(
    "mask",
    [Tensor.zeros("BOOL", VOCAB - 1), Tensor.zeros("I64", VOCAB), Tensor.zeros("BOOL", 3, 4)],
)
def test_mask_of_another_shape_or_dtype(tmp_path: Path, mask: Tensor) -> None:
    sizes = {"vocab_size": VOCAB, "draft_vocab_size": DRAFT}
    config = parsed(config_of(REDUCED)).model_copy(update=sizes)
    tensors = {"d2t": Tensor.of(np.array(offsets(IDS)), "I64"), "t2d": mask}
    findings = Findings()
    validate_vocabulary(config, named(tmp_path, tensors), findings)
    assert "t2d-invalid" in errors(findings)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Judges tables without files, for many examples."""
    contents: dict[str, bytes] = {}
    monkeypatch.setattr(
        "dspark_convert.formats.vocabulary.read_bytes", lambda tensor, limit: contents[tensor.name]
    )

    def run(table: Ids, mask: Any, vocab: int, reading: TableMeaning | None = None) -> Any:
        sizes = {"vocab_size": vocab, "draft_vocab_size": len(table)}
        config = parsed(config_of(REDUCED)).model_copy(update=sizes)
        contents["d2t"] = table.astype("<i8").tobytes()
        kept = {"draft_id_to_target_id": at("d2t", len(table), "I64")}
        marks = np.zeros(vocab, bool)
        if mask is not None:
            marks[mask] = True
        contents["t2d"] = marks.tobytes()
        stored_mask = at("t2d", vocab, "BOOL") if mask is not None else None
        findings = Findings()
        tensors = NamedTensors(kept, {}, stored_mask, None)
        return validate_vocabulary(config, tensors, findings, reading=reading), errors(findings)

    return run


def at(name: str, length: int, dtype: str) -> StoredTensor:
    return StoredTensor(Path("f"), "f", name, dtype, (length,), 0, 0)


@st.composite
def selections(draw: st.DrawFn) -> tuple[Ids, int]:
    """Distinct target ids, in any order or ascending, and the vocabulary they are from."""
    vocab = draw(st.integers(3, 60))
    size = draw(st.integers(2, vocab - 1))
    ids = draw(st.permutations(range(vocab)))[:size]
    return np.array(sorted(ids) if draw(st.booleans()) else ids), vocab


fast = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)


@fast
@given(selections())
def test_selection_as_offsets_with_mask_is_always_taken(
    in_memory: Callable[..., Any], selection: tuple[Ids, int]
) -> None:
    ids, vocab = selection
    table, codes = in_memory(ids - np.arange(len(ids)), ids, vocab)
    assert codes == []
    assert table.target_ids.tolist() == ids.tolist()
    assert table.changed is None


@fast
@given(selections())
def test_absolute_ids_with_mask_are_never_taken_for_offsets(
    in_memory: Callable[..., Any], selection: tuple[Ids, int]
) -> None:
    ids, vocab = selection
    table, codes = in_memory(ids, ids, vocab)
    same_set = sorted(ids + np.arange(len(ids))) == sorted(ids)
    assert not same_set  # offsets would add up to more than the ids do
    assert codes in (["d2t-absolute"], ["d2t-all-zero"])
    table, codes = in_memory(ids, ids, vocab, "absolute")
    assert codes == []
    assert table.target_ids.tolist() == ids.tolist()


@fast
@given(selections(), st.booleans())
def test_without_mask_nothing_ambiguous_is_taken(
    in_memory: Callable[..., Any], selection: tuple[Ids, int], absolute: bool
) -> None:
    ids, vocab = selection
    stored = ids if absolute else ids - np.arange(len(ids))
    table, codes = in_memory(stored, None, vocab)
    usable = [
        name
        for name, values in (("offsets", stored + np.arange(len(ids))), ("absolute", stored))
        if values.min() >= 0 and values.max() < vocab and len(set(values)) == len(values)
    ]
    if not stored.any():
        assert codes == ["d2t-all-zero"]
    elif len(usable) == 2:
        assert codes == ["d2t-ambiguous"]
    elif usable == ["absolute"]:
        assert codes == ["d2t-absolute"]
    else:
        assert table.target_ids.tolist() == ids.tolist()
