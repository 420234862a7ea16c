"""The engine of the rules, and the tables of the dialects as data for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.errors import Findings
from dspark_convert.formats.dialects import DENSE, SPECULATORS, Dialect
from dspark_convert.formats.rules import (
    REQUIRED,
    UNKNOWN,
    FieldRule,
    FieldValue,
    Place,
    assign,
    holds,
    lookup,
    read_field,
    remove,
    walk_keys,
    write_fields,
)

from .helpers import errors, notes

TWO = (Place(("a",)), Place(("block", "a"), written=False))

counts = st.integers(1, 2**40)
flags = st.booleans()
floats = st.floats(1e-8, 1e9, allow_nan=False)
layer_ids = st.lists(st.integers(-1, 200), min_size=1, max_size=6)
scaling = st.dictionaries(st.sampled_from(["factor", "beta_fast"]), floats).map(
    lambda extra: {"rope_type": "yarn", **extra}
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "hidden_act": st.sampled_from(["silu", "gelu"]),
    "rms_norm_eps": floats,
    "attention_bias": flags,
    "layer_types": st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1),
    "use_sliding_window": flags,
    "rope_scaling": scaling,
    "rope_theta": floats,
    "sample_from_anchor": flags,
    "sliding_window_non_causal": flags,
    "target_layer_ids": layer_ids,
    "markov_head_type": st.sampled_from(["vanilla", "gated", "rnn"]),
    "enable_confidence_head": flags,
    "confidence_head_with_markov": flags,
    "dtype": st.sampled_from(["float32", "bfloat16"]),
}


def fields(dialect: Dialect) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {rule.field: VALUES.get(rule.field, counts) for rule in dialect.rules if not rule.joined}
    )


@pytest.mark.parametrize("dialect", [DENSE, SPECULATORS], ids=lambda dialect: dialect.name)
@given(data=st.data())
def test_what_is_written_is_read_back(dialect: Dialect, data: st.DataObject) -> None:
    values = data.draw(fields(dialect))
    before, document, findings = copy.deepcopy(values), {}, Findings()
    write_fields(dialect.rules, values, document)
    assert values == before
    rules = [rule for rule in dialect.rules if not rule.joined]
    read = {rule.field: read_field(rule, document, "f", findings) for rule in rules}
    assert {name: reading.value for name, reading in read.items()} == values
    assert all(reading.paths for reading in read.values())
    assert not list(findings)


@pytest.mark.parametrize("dialect", [DENSE, SPECULATORS], ids=lambda dialect: dialect.name)
@given(data=st.data())
def test_every_single_place_reads_what_it_writes(dialect: Dialect, data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(dialect.rules))
    place = data.draw(st.sampled_from(rule.places))
    value = data.draw(VALUES.get(rule.field, counts))
    document: dict[str, Any] = {}
    assign(document, place.path, place.write(value))
    assert read_field(rule, document, "f", Findings()).value == value


@pytest.mark.parametrize("dialect", [DENSE, SPECULATORS], ids=lambda dialect: dialect.name)
def test_tables_name_each_field_once_and_no_place_twice(dialect: Dialect) -> None:
    names = [rule.field for rule in dialect.rules]
    assert len(names) == len(set(names))
    for rule in dialect.rules:
        paths = [place.path for place in rule.places]
        assert len(paths) == len(set(paths))
        assert rule.places[0].written is not bool(rule.joined)
        assert set(rule.joined) <= set(names)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"a": 1}, FieldValue(1, (("a",),))),
        ({"block": {"a": 2}}, FieldValue(2, (("block", "a"),))),
        ({"a": 1, "block": {"a": 1}}, FieldValue(1, (("a",), ("block", "a")))),
        ({"a": None, "block": {"a": 1}}, FieldValue(1, (("block", "a"),))),
        ({"a": 1, "block": None}, FieldValue(1, (("a",),))),
    ],
)
def test_places_that_agree_are_one_reading(document: dict[str, Any], expected: FieldValue) -> None:
    assert read_field(FieldRule("a", TWO), document, "f", Findings()) == expected


@pytest.mark.parametrize("code", ["key-conflict", "layout-conflict"])
def test_places_that_disagree_are_a_conflict_that_names_both(code: str) -> None:
    findings = Findings()
    rule = FieldRule("a", TWO, conflict_code=code)
    assert read_field(rule, {"a": 1, "block": {"a": 2}}, "f", findings).value is UNKNOWN
    (finding,) = findings
    assert (finding.code, finding.found) == (code, "a = 1; block.a = 2")
    assert ("--layout" in str(finding.hint)) == (code == "layout-conflict")


@pytest.mark.parametrize(
    ("default", "source", "value", "codes"),
    [
        (REQUIRED, "", UNKNOWN, ["key-missing"]),
        (8, "a class default", 8, ["default-used"]),
        (8, "", 8, []),
        (None, "a class default", None, []),
    ],
)
def test_absent_field(default: Any, source: str, value: Any, codes: list[str]) -> None:
    findings = Findings()
    assert read_field(FieldRule("a", TWO, default, source), {}, "f", findings).value == value
    assert errors(findings) + notes(findings) == codes


def test_none_is_not_written() -> None:
    document: dict[str, Any] = {}
    write_fields([FieldRule("a", TWO), FieldRule("b", (Place(("b",)),))], {"a": None}, document)
    assert document == {}


def test_paths() -> None:
    document: dict[str, Any] = {"a": {"b": None}, "c": 1}
    assert holds(document, ("a", "b"))
    assert not holds(document, ("c", "b"))
    assert lookup(document, ("c", "b")) is None
    remove(document, ("x", "y"))
    remove(document, ("a", "b"))
    assign(document, ("d", "e"), 2)
    assert document == {"a": {}, "c": 1, "d": {"e": 2}}


def test_walk_opens_containers_only_and_only_objects() -> None:
    document = {"a": {"b": 1}, "c": {"d": 2}, "e": 3}
    walked = [(("a",), {"b": 1}), (("e",), 3), (("c", "d"), 2)]
    assert list(walk_keys(document, [("c",), ("e",), ("x",)])) == walked
