"""Outputs as text, marked up by what happened to the draft's tokens.

``mark_up`` shows the first rounds of one output of a decode run; ``worst_texts`` those on which a
draft did worst, in full.

Shapes: M anchors, N drafted tokens, G tokens of the output, the one from the prefill first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from dspark_convert.replay.expectation import Expectation, Floats
from dspark_convert.runtime.records import DecodeResult
from dspark_convert.schemas.report import (
    ExampleRound,
    ExampleText,
    MarkedSpan,
    MarkedText,
    SpanKind,
)

MAX_ROUNDS = 64
"""Of the example."""

_KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
_FIRST, _ACCEPTED, _REJECTED, _BONUS = range(len(_KINDS))


def mark_up(prompt_id: str, result: DecodeResult, tokenizer: Any | None) -> ExampleText:
    """The first rounds of an output; without a tokenizer, token ids stand for text."""
    first = result.token_ids[:1]
    runs = [first]
    for round_ in result.rounds[:MAX_ROUNDS]:
        ids = round_.committed_ids
        runs += [ids[: round_.accepted], ids[round_.accepted :]]
    start, *pieces = _decode_runs(runs, tokenizer)
    rounds = zip(pieces[::2], pieces[1::2], strict=True)
    return ExampleText(
        id=prompt_id,
        first=start,
        rounds=tuple(ExampleRound(accepted=accepted, bonus=bonus) for accepted, bonus in rounds),
    )


@dataclass(frozen=True)
class Marks:
    """One output. ``chances`` [G, kinds]: how likely each token arose in each way."""

    id: str
    token_ids: tuple[int, ...]
    chances: Floats
    rounds: float
    committed: float

    @property
    def accepted_length(self) -> float:
        """Committed tokens per round."""
        return self.committed / self.rounds


def mark_decoded(prompt_id: str, result: DecodeResult) -> Marks:
    """What happened in a decode run."""
    ids, kinds = [result.token_ids[0]], [_FIRST]
    for round_ in result.rounds:
        ids += round_.committed_ids
        kinds += [_ACCEPTED] * round_.accepted
        if not round_.stopped_early:
            rejected = round_.accepted < len(round_.proposed_ids)
            kinds.append(_REJECTED if rejected else _BONUS)
    return Marks(
        prompt_id,
        tuple(ids),
        np.eye(len(_KINDS))[kinds],
        float(len(result.rounds)),
        float(result.committed),
    )


def mark_replayed(prompt_id: str, token_ids: Sequence[int], expectation: Expectation) -> Marks:
    """How likely each token of a recorded text would arise in each way.

    ``token_ids`` are those after the prompt.
    """
    anchors, steps = expectation.exactly.shape
    chances = np.zeros((anchors + steps, len(_KINDS)))
    chances[0, _FIRST] = 1.0
    proposed = np.pad(expectation.proposed, ((0, 0), (0, 1)))
    for step in range(steps):
        later = chances[step + 1 : step + 1 + anchors]
        own = expectation.visits * expectation.exactly[:, step] * (expectation.left > step)
        later[:, _REJECTED] += own * proposed[:, step]
        later[:, _BONUS] += own * ~proposed[:, step]
        if step < steps - 1:
            later[:, _ACCEPTED] += expectation.successes[:, step]
    # Past the last round nothing is certain to be committed, or worth showing.
    length = min(len(token_ids), anchors + 1)
    return Marks(
        prompt_id,
        tuple(token_ids[:length]),
        chances[:length],
        float(expectation.rounds),
        float(expectation.committed),
    )


def worst_texts(
    marks: Sequence[Marks], count: int, tokenizer: Any | None
) -> tuple[MarkedText, ...]:
    """The ``count`` texts of lowest accepted length, worst first; ids if there is no tokenizer."""
    used = sorted((text for text in marks if text.rounds), key=lambda text: text.accepted_length)
    return tuple(_mark_spans(text, tokenizer) for text in used[:count])


def _mark_spans(marks: Marks, tokenizer: Any | None) -> MarkedText:
    """Runs of tokens that most likely arose in the same way."""
    likeliest: npt.NDArray[np.int64] = marks.chances.argmax(-1)
    runs = [list(run) for _, run in groupby(range(len(likeliest)), key=likeliest.__getitem__)]
    texts = _decode_runs([[marks.token_ids[at] for at in run] for run in runs], tokenizer)
    spans = [
        MarkedSpan(
            text=text,
            kind=_KINDS[likeliest[run[0]]],
            probability=float(marks.chances[run].max(-1).mean()),
        )
        for run, text in zip(runs, texts, strict=True)
    ]
    return MarkedText(id=marks.id, accepted_length=marks.accepted_length, spans=tuple(spans))


def _decode_runs(runs: Sequence[Sequence[int]], tokenizer: Any | None) -> Iterator[str]:
    """The text of each run of tokens, as it reads after the previous runs."""
    if tokenizer is None:
        yield from ("".join(f" {token_id}" for token_id in run) for run in runs)
        return
    ids: list[int] = []
    shown = 0
    for run in runs:
        ids += run
        # A character split between tokens decodes to U+FFFD; it appears with its last token.
        text = tokenizer.decode(ids).rstrip("\ufffd")
        yield text[shown:]
        shown = max(shown, len(text))
