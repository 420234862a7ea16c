"""Speculative decoding at the speed of a GPU's memory; ``runtime.decode`` is the oracle.

The host only launches rounds. What they came to it reads some rounds later, so it never keeps the
device waiting; the rounds of a row that turn out to lie after its end are discarded, and a waiting
prompt takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from dspark_convert.errors import DialectError, Finding
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.decode import check_pair, check_prompts
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.engine import Engine, PendingRound
from dspark_convert.runtime.fast.models import why_unsupported
from dspark_convert.runtime.progress import Row
from dspark_convert.runtime.records import DecodeOptions, DecodeResult
from dspark_convert.runtime.target import Target

# Rounds that are launched before the oldest of them is read.
LAG = 2


@torch.no_grad()
def decode_fast(
    target: Target,
    draft: DraftModel,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    *,
    generator: torch.Generator | None = None,
    rows: int | None = None,
) -> tuple[DecodeResult, ...]:
    """Decode prompts (token ids) as ``decode`` does, at most ``rows`` at once (None: all).

    The greedy results are those of ``decode``, up to ties within the rounding of other kernels;
    above temperature 0 the law is the same and the draws differ. On a GPU the first call compiles
    what a round consists of, which takes some seconds, and every call captures a round.

    Raises:
        DialectError: ``target-not-fast``, for a pair that only the plain path can decode.
        UsageError, DraftError: as ``decode``.
    """
    check_pair(target, draft)
    check_prompts(prompts, target.vocab_size)
    if not prompts:
        return ()
    reason = why_unsupported(target, draft)
    if reason is not None or not isinstance(target, CausalTarget):
        raise DialectError(
            Finding(
                code="target-not-fast",
                message=f"the fast path cannot decode this pair: {reason}",
                hint="use the plain path (runtime.decode)",
            )
        )
    engine = Engine(
        target,
        draft,
        options,
        rows=min(len(prompts), rows or len(prompts)),
        longest=max(map(len, prompts)),
        generator=generator,
    )
    schedule = _Schedule(engine, prompts, options)
    schedule.run()
    return tuple(row.result(options) for row in schedule.rows)


class _Schedule:
    """Which prompt each row of the engine works on."""

    def __init__(
        self, engine: Engine, prompts: Sequence[Sequence[int]], options: DecodeOptions
    ) -> None:
        self.engine, self.prompts, self.options = engine, prompts, options
        self.rows = [Row(index, len(prompt)) for index, prompt in enumerate(prompts)]
        self.waiting = deque(self.rows)
        self.working: list[Row | None] = [None] * len(engine.anchors)
        # With each round, what its rows worked on when it was launched.
        self.launched: deque[tuple[list[Row | None], PendingRound]] = deque()

    def run(self) -> None:
        """Decode all prompts."""
        self._fill()
        while any(self.working):
            self.launched.append((list(self.working), self.engine.start_round()))
            if len(self.launched) > LAG:
                self._read_oldest()

    def _read_oldest(self) -> None:
        working, pending = self.launched.popleft()
        for row, outcome in zip(working, pending.wait(), strict=True):
            if row is not None and not row.finished(self.options):
                row.commit(outcome, self.options)
        self._fill()

    def _fill(self) -> None:
        """Replace finished prompts by waiting ones."""
        for slot, row in enumerate(self.working):
            if row is not None and not row.finished(self.options):
                continue
            self.working[slot] = self._admit_next(slot)

    def _admit_next(self, slot: int) -> Row | None:
        """The next prompt that its first token does not finish already."""
        while self.waiting:
            row = self.waiting.popleft()
            row.token_ids.append(self.engine.admit(slot, self.prompts[row.prompt]))
            if not row.finished(self.options):
                return row
        return None
