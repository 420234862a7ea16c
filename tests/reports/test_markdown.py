"""Markdown: tables that hold, read by an independent parser, and no markup of others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dspark_convert.reports.content import list_facts
from dspark_convert.reports.markdown import escape_markdown, render_markdown
from dspark_convert.reports.text import visible
from tests.reports.documents import HOSTILE, report

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
OURS = {"strong", "text", "softbreak"}
AUTOLINK = re.compile(r"https?://|www\.|\S@\S|(?<!&)#\d|@\w|:\w+:", re.IGNORECASE)


def inline(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield from token.children or ()


def cells(text: str) -> list[str]:
    """The texts of all table cells, in order."""
    tokens = PARSER.parse(text)
    return [
        "".join(child.content for child in content.children or ())
        for before, content in pairwise(tokens)
        if before.type in ("td_open", "th_open")
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_data_in_every_place(text: str) -> None:
    tokens = list(inline(render_markdown(report(text))))
    assert {token.type.removesuffix("_open").removesuffix("_close") for token in tokens} <= OURS
    kinds = {token.type for token in PARSER.parse(render_markdown(report(text)))}
    assert kinds == {token.type for token in PARSER.parse(render_markdown(report("plain")))}


@pytest.mark.parametrize("text", HOSTILE)
def test_cells_read_as_they_were(text: str) -> None:
    found = cells(render_markdown(report(text)))
    assert found[3:6] == ["structure", "✅ pass", visible(text)]
    assert len(found) == len(cells(render_markdown(report("plain"))))


@given(st.text(st.characters()))
def test_any_text_reads_as_it_was(text: str) -> None:
    (content,) = [token for token in PARSER.parse(f"x{escape_markdown(text)}x") if token.children]
    read = "".join(child.content for child in content.children or ())
    assert read == f"x{visible(text)}x"


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_is_left_that_github_links_by_itself(text: str) -> None:
    assert not AUTOLINK.search(escape_markdown(text))


def test_numbers_are_those_of_the_report() -> None:
    text = render_markdown(report())
    assert "| 1 | 0.750 | 0.500 to 1.000 | 0.750 | 1.750 |" in text
    assert "| 2 | 0.333 | - | 0.250 | 2.000 |" in text
    assert "Accepted length 2.000 committed tokens per round" in text


def test_what_decoded_is_said_with_the_reason_where_something_was() -> None:
    facts = {
        (engine, reason): dict(
            list_facts(report(settings={"engine": engine, "engine_reason": reason}))
        ).get("decoder")
        for engine, reason in (("plain", "the device is cpu"), ("fast", None), (None, None))
    }
    assert list(facts.values()) == ["plain, since the device is cpu", "fast", None]
    text = render_markdown(report(settings={"engine_reason": "<b>"}))
    assert "- **decoder**: plain, since &#60;b&#62;\n" in text
