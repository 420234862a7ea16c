"""The page: nothing to fetch or run, every text as data, the same bytes each time."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib")

from dspark_convert.reports.content import Table
from dspark_convert.reports.html import render_html
from dspark_convert.reports.text import visible
from tests.reports.documents import HOSTILE, acceptance, report

SVG = {"svg", "g", "path", "defs", "use", "text", "rect", "clippath", "tspan"}
PROSE = {"h1", "h2", "p", "dl", "dt", "dd", "span", "section", "div", "main", "ins", "b"}
TABLES = {"table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"}
TAGS = SVG | PROSE | TABLES | {"html", "head", "meta", "link", "title", "style", "body"}


class Reader(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


@cache
def plain_page() -> str:
    """The page of the report as it comes, drawn once: drawing takes longer than looking at it."""
    return render_html(report())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_data(text: str) -> None:
    page, plain = Reader(render_html(report(text))), Reader(plain_page())
    assert page.tags == plain.tags
    assert set(page.tags) <= TAGS
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    assert visible(text) in page.texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", "".join(page.texts))


def test_nothing_is_fetched_and_nothing_runs() -> None:
    page = Reader(plain_page())
    links = page.values("href", "src", "xlink:href", "action", "srcset")
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert re.findall(r"url\(([^#])", plain_page()) == []
    assert "@import" not in plain_page()


def test_ids_are_unique_and_every_reference_has_one() -> None:
    page = Reader(plain_page())
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    references = {link[1:] for link in page.values("xlink:href", "href") if link[0] == "#"}
    references |= set(re.findall(r"url\(#([^)]+)\)", plain_page()))
    assert references
    assert references <= set(ids)


def test_same_report_gives_the_same_bytes() -> None:
    assert render_html(report()) == plain_page()


def test_plots_have_names_tables_and_the_colours_of_the_page() -> None:
    text = plain_page()
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', text)
    assert labels == [
        "Acceptance and survival by position",
        "Rounds by accepted draft tokens",
        "Reliability of the confidence head",
    ]
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn)
    assert set(re.findall(r"var\(--(\w+)\)", drawn)) == {"ink", "faint", "first", "second"}
    assert Reader(text).tags["caption"] == 6


def test_unknown_positions_and_a_quantile_beside_the_value_are_drawn() -> None:
    numbers = acceptance(
        acceptance_by_position=(0.75, None),
        acceptance_interval95=((0.76, 0.8), None),
        survival_by_position=(0.75, 0.0),
    )
    assert "<svg" in render_html(report(numbers={"acceptance": numbers}))


def test_agreement_is_drawn_in_place_of_acceptance() -> None:
    numbers = {
        "texts": 2,
        "anchors": 9,
        "agreement_by_position": (0.5, 0.25),
        "agreement_interval95": ((0.25, 0.75), None),
    }
    text = render_html(report(numbers={"acceptance": numbers, "confidence": None}, worst=()))
    assert "Agreement by position" in text
    assert "accepted length" not in text.lower()


def test_a_report_without_numbers_has_verdicts_only() -> None:
    empty = {"acceptance": None, "confidence": None}
    page = Reader(render_html(report(numbers=empty, gate=None, example=None, worst=())))
    assert page.tags["svg"] == 0
    assert page.tags["table"] == 1


def test_diagnosis_is_shown_where_there_is_one() -> None:
    diagnosis = Table("Diagnosis", ("if it were read as", "accepted length"), [("<1+N>", "2.4")])
    text = render_html(report(), diagnosis=diagnosis)
    assert "<td>&lt;1+N&gt;</td><td>2.4</td>" in text
    assert "Diagnosis" not in plain_page()


def test_example_keeps_its_lines_and_marks_who_proposed_what() -> None:
    example = {
        "id": "p",
        "first": "a",
        "rounds": ({"accepted": "b\n<c>", "bonus": "d\x1b"},),
    }
    text = render_html(report(example=example))
    assert '<div class="example">a<ins>b\n&lt;c&gt;</ins><b>d\\x1b</b></div>' in text


def test_worst_texts_show_what_became_of_each_token() -> None:
    kinds = ("first", "accepted", "rejected", "bonus")
    spans = tuple({"text": f"<{kind}>", "kind": kind, "probability": 0.5} for kind in kinds)
    worst = ({"id": "p", "accepted_length": 1.5, "spans": spans},)
    text = render_html(report(worst=worst))
    assert (
        "<span>&lt;first&gt;</span><ins>&lt;accepted&gt;</ins><b>&lt;rejected&gt;</b>"
        "<b>&lt;bonus&gt;</b>"
    ) in text
    assert "Prompt p, accepted length 1.500." in text
