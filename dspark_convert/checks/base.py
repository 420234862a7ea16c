"""A check as a row: its words, what it needs, and how it is run.

Rows and their words are available without PyTorch. The module of a check imports what needs PyTorch
inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_convert.schemas.report import CheckId, CheckResult

if TYPE_CHECKING:
    from dspark_convert.checks.context import CheckContext


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something without which a check is skipped, and the reason that the report then gives."""

    met: Callable[[CheckContext], bool]
    otherwise: str
    bring: Callable[[CheckContext], object] = lambda context: None
    """Loads or runs what several checks share, before any of them is timed."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. ``dspark-verify explain``, the docs and the report follow from its row."""

    id: CheckId
    title: str
    looks_at: str
    fails_when: str
    what_to_do: str
    needs: tuple[Need, ...] = ()
    """In the order in which they are examined: the first unmet one is the reason."""
    run: Callable[[CheckContext], CheckResult]

    def why_skipped(self, context: CheckContext) -> str | None:
        """Why it cannot be run; None if it can."""
        return next((need.otherwise for need in self.needs if not need.met(context)), None)

    def explain(self) -> str:
        """What it looks at, when it fails, and what to do then, as paragraphs."""
        return (
            f"{self.id}: {self.title}\n\n{self.looks_at}\n\n"
            f"Fails when: {self.fails_when}\n\nWhat to do: {self.what_to_do}\n"
        )


SOUND_DRAFT = Need(
    met=lambda context: context.passed("structure"), otherwise="the structure is broken"
)
SOURCE = Need(
    met=lambda context: context.options.source is not None, otherwise="no --source was given"
)
TARGET = Need(
    met=lambda context: context.options.target is not None or context.trace is not None,
    otherwise="no target was given",
)
FITTING_TARGET = Need(
    met=lambda context: context.passed("pairing"),
    otherwise="the draft does not fit the target",
    bring=lambda context: context.use_draft(),
)
DECODING = Need(
    met=lambda context: context.trace is None,
    otherwise="a trace was replayed, so nothing was decoded",
)
TEMPERATURE = Need(
    met=lambda context: not context.options.decode.sampling.greedy,
    otherwise="it needs a temperature above 0",
)
OWN_TEXTS = Need(
    met=lambda context: not context.given_texts,
    otherwise="the target did not write the texts of the trace",
)
CONFIDENCE_HEAD = Need(
    met=lambda context: context.draft.confidence_head is not None,
    otherwise="the draft has no confidence head",
)
DRAFTING = (SOUND_DRAFT, TARGET, FITTING_TARGET)
"""What every check needs that runs the draft on texts of its target."""
