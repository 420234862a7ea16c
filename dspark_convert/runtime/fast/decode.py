"""Speculative decoding at the speed of a GPU's memory; ``runtime.decode`` is the oracle.

The host only launches rounds. It reads their results some rounds later, so it never keeps the
device waiting; rounds that turn out to lie after the end of a row are discarded, and a waiting
prompt takes its place. With an observer, each round is read before the next is launched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dspark_convert.errors import DialectError, Finding
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.decode import check_pair, check_prompts
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.models import why_unsupported
from dspark_convert.runtime.fast.observing import describe_round
from dspark_convert.runtime.fast.rounds import PendingRound, Rounds
from dspark_convert.runtime.progress import Outcome, Row
from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Observer
from dspark_convert.runtime.target import Target

# Rounds that are launched before the oldest of them is read, unless they are observed.
LAG = 2

OnFinished = Callable[[int], None]
"""Called with the number of prompts that are finished."""


@torch.no_grad()
def decode_fast(
    target: Target,
    draft: DraftModel,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    *,
    generator: torch.Generator | None = None,
    rows: int | None = None,
    observer: Observer | None = None,
    on_finished: OnFinished = lambda finished: None,
) -> tuple[DecodeResult, ...]:
    """Decode prompts (token ids) as ``decode`` does, at most ``rows`` at once (None: all).

    The greedy results are those of ``decode``, up to ties within the rounding of other kernels;
    above temperature 0 the distribution is the same and the draws differ. On a GPU the first call
    compiles what a round consists of, which takes some seconds, and every call captures a round.

    ``observer`` sees what ``decode`` would show, each prefill by itself; p and q are computed for
    it from the logits. Whenever a prompt is done, ``on_finished`` is called with the number done.

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
                hint="use the plain path: --decoder plain, in Python runtime.decode",
            )
        )
    # Streams, graphs and our kernels belong to the current device, which may be another GPU.
    device_of: Any = torch.cuda.device_of  # torch leaves it untyped
    with device_of(draft.fc.weight):
        rounds = Rounds(
            target,
            draft,
            options,
            rows=min(len(prompts), rows or len(prompts)),
            longest=max(map(len, prompts)),
            generator=generator,
            observed=observer is not None,
        )
        schedule = _Schedule(rounds, prompts, observer, on_finished)
        schedule.run()
    return tuple(row.result(options) for row in schedule.rows)


class _Schedule:
    """Which prompt each row works on."""

    def __init__(
        self,
        rounds: Rounds,
        prompts: Sequence[Sequence[int]],
        observer: Observer | None,
        on_finished: OnFinished,
    ) -> None:
        self.rounds, self.prompts, self.options = rounds, prompts, rounds.options
        self.observer, self.on_finished = observer, on_finished
        self.lag = LAG if observer is None else 0
        self.rows = [Row(index, len(prompt)) for index, prompt in enumerate(prompts)]
        self.waiting = deque(self.rows)
        self.working: list[Row | None] = [None] * len(rounds.anchors)
        self.finished = 0
        # With each round, what its rows worked on when it was launched.
        self.launched: deque[tuple[list[Row | None], PendingRound]] = deque()

    def run(self) -> None:
        """Decode all prompts."""
        self._fill()
        while any(self.working):
            self.launched.append((list(self.working), self.rounds.start_round()))
            if len(self.launched) > self.lag:
                self._read_oldest()

    def _read_oldest(self) -> None:
        working, pending = self.launched.popleft()
        outcomes = self._read(working, pending)
        for row, outcome in zip(working, outcomes, strict=True):
            if row is not None and not row.finished(self.options):
                row.commit(outcome, self.options)
                self._count(row)
        self._fill()

    def _read(self, working: Sequence[Row | None], pending: PendingRound) -> list[Outcome]:
        """The outcome of a round, shown to the observer before anything is committed."""
        outcomes = pending.wait()
        if self.observer is not None:
            self.observer(describe_round(self.rounds, pending.output, working))
        return outcomes

    def _fill(self) -> None:
        """Replace finished prompts by waiting ones."""
        for slot, row in enumerate(self.working):
            if row is not None and not row.finished(self.options):
                continue
            self.working[slot] = self._admit_next(slot)

    def _admit_next(self, slot: int) -> Row | None:
        """The next prompt that its first token does not already finish."""
        while self.waiting:
            row = self.waiting.popleft()
            (outcome,) = self._read([row], self.rounds.admit(slot, self.prompts[row.prompt]))
            row.token_ids.append(outcome.next_token_id)
            self._count(row)
            if not row.finished(self.options):
                return row
        return None

    def _count(self, row: Row) -> None:
        if row.finished(self.options):
            self.finished += 1
            self.on_finished(self.finished)
