"""The generated section, whatever the names in it, and front matter, whatever its style."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.manifest import read_manifest
from dspark_convert.errors import DraftError
from dspark_convert.hub.front_matter import (
    MAX_FRONT_BYTES,
    MAX_FRONT_DEPTH,
    split_card,
    with_front_matter,
)
from dspark_convert.hub.model_card import BEGIN, END, update_card
from dspark_convert.schemas.plan import ConversionManifest

SOURCE = "spec_vanilla_reduced_anchor_bf16/checkpoint"
WANTED = {"base_model": "org/draft", "base_model_relation": "quantized", "tags": ("a", "b")}


@pytest.fixture(scope="module")
def dense(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dspark_convert.conversion import plan_to_dense, run_conversion

    folder = tmp_path_factory.mktemp("card") / "dense"
    run_conversion(plan_to_dense(golden / SOURCE), folder)
    return folder


@pytest.fixture
def card(dense: Path) -> Callable[..., str]:
    manifest = read_manifest(dense)
    assert manifest is not None
    engines = report_engines(dense, published_as="me/draft")

    def make(text: str = "", **changes: Any) -> str:
        document = {**json.loads(manifest.model_dump_json()), **changes}
        changed = ConversionManifest.model_validate(document)
        return update_card(text, changed, engines, None, vocabulary="full: 320 tokens")

    return make


def test_section_is_replaced_and_nothing_else(card: Callable[..., str]) -> None:
    first = card("# Mine\n\nText.\n")
    body = split_card(first)[1]
    assert body.startswith("# Mine\n\nText.\n\n" + BEGIN)
    edited = first.replace("Text.", "Other text.") + "\nAfter.\n"
    assert card(edited) == edited
    assert card(edited, tool_version="9.9.9").count(BEGIN) == 1
    assert "9.9.9" in card(edited, tool_version="9.9.9")
    assert card(edited, tool_version="9.9.9").endswith(END + "\n\nAfter.\n")


def test_local_source_has_no_base_model(card: Callable[..., str]) -> None:
    front = yaml.safe_load(split_card(card())[0])
    assert set(front) == {"tags"}
    assert "a local folder" in card()


@pytest.mark.parametrize(
    "name", ["a|b", "`x`", "<script>alert(1)</script>", f"{END} # Free", "a\nb", "[x](http://y)"]
)
def test_hostile_names_are_text(name: str, card: Callable[..., str]) -> None:
    source = {"name": name, "revision": "f" * 40, "config_sha256": "", "files": []}
    text = card(source=source, overrides={"key": name}, layout_evidence=name)
    body = split_card(text)[1]
    assert body.count(BEGIN) == body.count(END) == 1
    assert body.rstrip().endswith(END)
    assert "<script" not in body
    assert "[x](" not in body
    assert "base_model" not in text
    for line in body.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 3
    assert card(text, source=source, overrides={"key": name}, layout_evidence=name) == text


@pytest.mark.parametrize("text", [BEGIN, END, f"{END}\n{BEGIN}", BEGIN + END + BEGIN])
def test_damaged_marks_are_refused(text: str, card: Callable[..., str]) -> None:
    with pytest.raises(DraftError, match="card-marks-damaged"):
        card(text)


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("# no front matter\n", ()),
        ("---\n---\nbody\n", ()),
        ("---\nlicense: mit  # because\n---\nbody\n", ("license: mit  # because\n",)),
        ("---\ntags:\n- old\n# note\nlicense: mit\n---\nx", ("- old\n# note\nlicense: mit\n",)),
        ("---\ntags:\n  - old\n  - b\nx: 1\n---\nx", ("  - old\n  - b\nx: 1\n",)),
        ("---\r\nlicense: mit\r\n---\r\nbody\r\n", ("license: mit\n",)),
        ("---\ntags: [old, b]\n---\nx", ()),
        ("---\ntags: old\n---\nx", ()),
        ("---\ntags:\n---\nx", ()),
        ("---\n{license: mit}\n---\nx", ()),
        ("---\nbase_model: theirs/x\nbase_model_relation: finetune\n---\nx", ("theirs/x\n",)),
    ],
)
def test_front_matter_gains_keys_and_keeps_lines(before: str, kept: tuple[str, ...]) -> None:
    after = with_front_matter(before, WANTED)
    old = yaml.safe_load(split_card(before)[0]) or {}
    new = yaml.safe_load(split_card(after)[0])
    tags = old.pop("tags", None) or []
    tags = [tags] if isinstance(tags, str) else tags
    assert set(new["tags"]) == {*tags, "a", "b"}
    assert len(new["tags"]) == len(set(new["tags"]))
    expected = {k: v for k, v in WANTED.items() if k != "tags"}
    assert {k: v for k, v in new.items() if k != "tags"} == {**expected, **old}
    assert split_card(after)[1] == split_card(before)[1]
    for line in kept:
        assert line in after
    assert with_front_matter(after, WANTED) == after


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: [", 3, ""),
        ("- a", 2, "not a mapping"),
        ("just text", 2, "not a mapping"),
        ("x: 1\na: !!timestamp x", 3, "a tag, tag:yaml.org,2002:timestamp"),
        ('a: !!int ""', 2, "a tag"),
        ('a: !!float ""', 2, "a tag"),
        ("a: !!bool x", 2, "a tag"),
        ("a: !!python/object/apply:os.system [ls]", 2, "a tag"),
        ("!mine\na: 1", 2, "a tag"),
        ("a: &a [x]", 2, "an anchor, &a"),
        ("a: &a [x]\nb: *a", 2, "an anchor, &a"),
        ("a: *a", 2, "an alias, *a"),
        ("&k a: 1", 2, "an anchor, &k"),
        ("x: y\ndate: 2026-13-45", 3, "'2026-13-45': month must be in 1..12"),
        ("a: 0x_", 2, "'0x_': invalid literal"),
        ("a: " + "1" * 5000, 2, "Exceeds the limit"),
        ("? [a]\n: b", 2, "unhashable key"),
        ("a: " + "[" * (MAX_FRONT_DEPTH + 1), 2, f"more than {MAX_FRONT_DEPTH} levels"),
        ("a: " + "{a: " * 5000, 2, f"more than {MAX_FRONT_DEPTH} levels"),
        ("a: " + "x" * MAX_FRONT_BYTES, 2, f"longer than {MAX_FRONT_BYTES} bytes"),
        ("a: \x07", 2, "a character is not allowed"),
        ("a: 1\n...\nb: 2", 4, ""),
        ("%TAG ! tag:x,2000:\n--- {a: !b c}", 3, "a tag, tag:x,2000:b"),
    ],
)
def test_front_matter_that_cards_do_not_need_is_refused(text: str, line: int, why: str) -> None:
    with pytest.raises(DraftError) as caught:
        with_front_matter(f"---\n{text}\n---\n# Body\n", WANTED)
    (finding,) = caught.value.findings
    assert (finding.code, finding.file) == ("card-front-matter-invalid", "README.md")
    assert finding.message.startswith(f"line {line}: ")
    assert why in finding.message


def test_alias_bomb_costs_nothing() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    for n in range(1, 30):
        lines.append(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]")
    with pytest.raises(DraftError, match="an anchor, &a0"):
        with_front_matter("---\n" + "\n".join(lines) + "\n---\n", WANTED)


def test_value_that_is_no_number_changes_no_line() -> None:
    text = "---\nmetric: .nan  # the run broke off\nquoted: '!!int'\n---\nbody\n"
    after = with_front_matter(text, WANTED)
    assert "metric: .nan  # the run broke off\nquoted: '!!int'\n" in after


@given(
    st.dictionaries(
        st.text(st.characters(categories=["Ll"]), min_size=1),
        st.one_of(st.text(), st.lists(st.text()), st.integers(), st.none()),
    ),
    st.text(),
)
def test_front_matter_survives_anything(front: dict[str, Any], body: str) -> None:
    text = yaml.safe_dump(front, sort_keys=False) if front else ""
    before = f"---\n{text}---\n{body}"
    after = with_front_matter(before, WANTED)
    new = yaml.safe_load(split_card(after)[0])
    for key, value in {**WANTED, **front}.items():
        if key != "tags":
            assert new[key] == value
    assert split_card(after)[1] == split_card(before)[1]
    assert with_front_matter(after, WANTED) == after
