"""Plots as SVG elements for a page: the same bytes for the same numbers, coloured by the page.

matplotlib draws in placeholder colours, which become CSS variables, so that one drawing serves
light and dark mode. Text stays text.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from dspark_convert.errors import DependencyError, Finding
from dspark_convert.schemas.numbers import AcceptanceNumbers, ConfidenceNumbers, Interval

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError:
    raise DependencyError(
        Finding(
            code="dependency-missing",
            message="matplotlib, which draws the plots of the HTML page, is not installed",
            hint="pip install 'dspark-convert[report]'",
        )
    ) from None

_INK, _FAINT, _FIRST, _SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {_INK: "ink", _FAINT: "faint", _FIRST: "first", _SECOND: "second"}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "dspark",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _FAINT,
    "grid.alpha": 0.4,
    "legend.frameon": False,
}
_SIZE = (6.0, 3.4)  # inches; 432 by 245 CSS pixels at 72 a inch, scaled by the page
_SQUARE = (4.2, 4.0)

Values = Sequence[float | None]


def plot_positions(numbers: AcceptanceNumbers) -> str:
    """Acceptance with its interval, and survival, by position."""

    def draw(axes: Axes) -> None:
        _draw_shares(
            axes,
            numbers.acceptance_by_position,
            numbers.acceptance_interval95,
            "acceptance, given those before (95 %)",
        )
        known = _known(numbers.survival_by_position)
        axes.plot(*known, "s--", color=_SECOND, label="survival")
        axes.legend(loc="best")

    return _render("positions", _SIZE, "Acceptance and survival by position", draw)


def plot_agreement(values: Values, intervals: Sequence[Interval | None]) -> str:
    """Agreement with the target's choice by position."""

    def draw(axes: Axes) -> None:
        _draw_shares(axes, values, intervals, "agreement (95 %)")
        axes.legend(loc="best")

    return _render("agreement", _SIZE, "Agreement by position", draw)


def plot_histogram(numbers: AcceptanceNumbers) -> str:
    """Share of rounds by accepted draft tokens."""

    def draw(axes: Axes) -> None:
        shares = [rounds / numbers.rounds for rounds in numbers.histogram]
        bars = axes.bar(range(len(shares)), shares, color=_FIRST)
        axes.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2)
        axes.set_xlabel("accepted draft tokens of a round")
        axes.set_ylabel("share of rounds")
        axes.set_xticks(range(len(shares)))
        axes.margins(y=0.12)

    return _render("histogram", _SIZE, "Rounds by accepted draft tokens", draw)


def plot_reliability(numbers: ConfidenceNumbers) -> str:
    """Acceptance against confidence; on the diagonal the head is well calibrated."""
    bins = [
        (entry.mean_confidence, entry.acceptance, entry.tokens)
        for entry in numbers.reliability
        if entry.tokens and entry.mean_confidence is not None and entry.acceptance is not None
    ]
    largest = max((tokens for *_, tokens in bins), default=1)

    def draw(axes: Axes) -> None:
        axes.plot((0, 1), (0, 1), "--", color=_INK, label="calibrated")
        axes.plot([x for x, *_ in bins], [y for _, y, _ in bins], "-", color=_FIRST)
        axes.scatter(
            [x for x, *_ in bins],
            [y for _, y, _ in bins],
            s=[20 + 100 * tokens / largest for *_, tokens in bins],
            color=_FIRST,
            label="tokens of a bin (area: how many)",
        )
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        axes.set_xlabel("confidence")
        axes.set_ylabel("acceptance")
        axes.legend(loc="best")

    return _render("reliability", _SQUARE, "Reliability of the confidence head", draw)


def _draw_shares(
    axes: Axes, values: Values, intervals: Sequence[Interval | None], label: str
) -> None:
    positions, shares = _known(values)
    known = [intervals[position - 1] for position in positions]
    # The quantiles of the resamples may not enclose the value itself.
    pairs = [bounds or (share, share) for bounds, share in zip(known, shares, strict=True)]
    below = [max(share - low, 0.0) for (low, _), share in zip(pairs, shares, strict=True)]
    above = [max(high - share, 0.0) for (_, high), share in zip(pairs, shares, strict=True)]
    axes.errorbar(positions, shares, (below, above), fmt="o-", capsize=3, color=_FIRST, label=label)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("share")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xticks(range(1, len(values) + 1))


def _known(values: Values) -> tuple[list[int], list[float]]:
    pairs = [(k, value) for k, value in enumerate(values, start=1) if value is not None]
    return [k for k, _ in pairs], [value for _, value in pairs]


def _render(name: str, size: tuple[float, float], label: str, draw: Callable[[Axes], None]) -> str:
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _embed(buffer.getvalue(), name, label)


def _embed(document: str, name: str, label: str) -> str:
    """The svg element of a document, with unique ids, CSS colours and a name for screen readers."""
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
