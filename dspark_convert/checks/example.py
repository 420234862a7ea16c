"""One output of a decode run as text, marked up by which tokens the draft proposed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dspark_convert.runtime.records import DecodeResult
from dspark_convert.schemas.report import ExampleRound, ExampleText

MAX_ROUNDS = 64


def mark_up(prompt_id: str, result: DecodeResult, tokenizer: Any | None) -> ExampleText:
    """The first rounds of an output; token ids stand for text where there is no tokenizer."""
    first = result.token_ids[:1]
    runs = [first]
    for round_ in result.rounds[:MAX_ROUNDS]:
        ids = round_.committed_ids
        runs += [ids[: round_.accepted], ids[round_.accepted :]]
    start, *pieces = decode_runs(runs, tokenizer)
    rounds = zip(pieces[::2], pieces[1::2], strict=True)
    return ExampleText(
        id=prompt_id,
        first=start,
        rounds=tuple(ExampleRound(accepted=accepted, bonus=bonus) for accepted, bonus in rounds),
    )


def decode_runs(runs: Sequence[Sequence[int]], tokenizer: Any | None) -> Iterator[str]:
    """The text of each run of tokens, as it reads after the runs before it."""
    if tokenizer is None:
        yield from ("".join(f" {token_id}" for token_id in run) for run in runs)
        return
    ids: list[int] = []
    shown = 0
    for run in runs:
        ids += run
        # A character cut between tokens decodes to U+FFFD; it appears with its last token.
        text = tokenizer.decode(ids).rstrip("\ufffd")
        yield text[shown:]
        shown = max(shown, len(text))
