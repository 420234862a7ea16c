"""Time and memory of a decoding round on a GPU, against reading the weights once.

    python -m benchmarks.decode [--rounds 32] [--json FILE] [--tiny]

Builds a target with the sizes of Qwen3-8B and drafts of five layers, all of random weights, and
decodes with the reference runtime. The loop is timed from outside: while it is measured, the
functions named in ``PARTS`` are replaced by ones that leave a mark in the CUDA stream before and
after. ``--tiny`` does the same with small sizes on the CPU, to show that it runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor

from benchmarks.random_pair import (
    QWEN3_8B,
    TINY,
    Size,
    build_draft,
    build_target,
    weight_bytes,
)
from dspark_convert.runtime import drafting
from dspark_convert.runtime.causal import CausalSession, CausalTarget
from dspark_convert.runtime.decode import _Batch as Batch
from dspark_convert.runtime.decode import decode
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import GreedyChoice, SampledChoice
from dspark_convert.runtime.records import DecodeOptions, Observation, Observer

WARM_UP = 8  # rounds of each run that are not measured
WAIT_ROUNDS = 4  # rounds over which waits for the device are counted
COPIES = 10
TEMPERATURES = (0.0, 1.0)
REST = "bookkeeping"

# What is replaced while measuring: its time goes to the part, less that of others called inside.
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("target", CausalSession, "extend"),
    ("draft backbone", DraftModel, "compute_context"),
    ("draft backbone", DraftModel, "forward"),
    ("draft head", DraftModel, "compute_draft_logits"),
    ("Markov chain", drafting, "run_chain"),
    ("sampling", GreedyChoice, "__call__"),
    ("sampling", SampledChoice, "__call__"),
    ("sampling", drafting.Drafter, "_probabilities"),
    ("sampling", Batch, "_verify"),
)
PART_NAMES = (*dict.fromkeys(part for part, _, _ in PARTS), REST)


# Measuring -----------------------------------------------------------------------------------


class Stopwatch:
    """Splits the time of each round among the parts.

    On a GPU the marks are events in the stream, read when all is over: nothing waits for them.
    Time in which the device has nothing to do, because Python is slower, counts for the part that
    it passes in.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rounds: list[list[tuple[str, Any]]] = []
        self._open: list[str] = []
        self._marks: list[tuple[str, Any]] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Replace what is timed, and put it back."""
        with ExitStack() as stack:
            for part, owner, name in PARTS:
                timed = self._timed(part, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, timed))
            stack.enter_context(
                mock.patch.object(Batch, "run_round", self._timed_round(Batch.run_round))
            )
            yield

    def milliseconds(self) -> list[dict[str, float]]:
        """Of each whole round: every part, and ``total``."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return [self._split(marks) for marks in self.rounds]

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._open:  # the prefill
                return function(*args, **kwargs)
            self._open.append(part)
            self._mark()
            try:
                return function(*args, **kwargs)
            finally:
                self._open.pop()
                self._mark()

        return timed

    def _timed_round(self, run_round: Callable[[Batch], None]) -> Callable[[Batch], None]:
        @functools.wraps(run_round)
        def timed(batch: Batch) -> None:
            self._marks, self._open = [], [REST]
            self._mark()
            try:
                run_round(batch)
            finally:
                self._open = []
            self._marks.append((REST, self.now()))
            self.rounds.append(self._marks)

        return timed

    def _mark(self) -> None:
        self._marks.append((self._open[-1], self.now()))

    def now(self) -> Any:
        """A mark: an event in the stream, or the time of the host."""
        if self.device.type != "cuda":
            return time.perf_counter()
        new_event: Any = torch.cuda.Event  # torch leaves it untyped
        event = new_event(enable_timing=True)
        event.record()
        return event

    def _split(self, marks: list[tuple[str, Any]]) -> dict[str, float]:
        split = dict.fromkeys(PART_NAMES, 0.0)
        for (part, begin), (_, end) in pairwise(marks):
            split[part] += self.elapsed(begin, end)
        return {"total": self.elapsed(marks[0][1], marks[-1][1]), **split}

    def elapsed(self, begin: Any, end: Any) -> float:
        """Milliseconds between two marks that the device has passed."""
        if self.device.type != "cuda":
            return float(end - begin) * 1e3
        return float(begin.elapsed_time(end))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is decoded with what."""

    target: CausalTarget
    draft: DraftModel
    size: Size
    batch: int
    temperature: float

    @property
    def cuda(self) -> bool:
        """Whether it runs on a GPU."""
        return self.draft.device.type == "cuda"


def settings(size: Size, device: torch.device) -> Iterator[Setting]:
    """All that is measured; one draft is in memory at a time."""
    target = build_target(size, device)
    for vocabulary in (size.reduced_vocabulary, size.vocabulary):
        draft = build_draft(size, vocabulary, device)
        for batch, temperature in product(size.batches, TEMPERATURES):
            yield Setting(
                target=target, draft=draft, size=size, batch=batch, temperature=temperature
            )


class EnoughRoundsError(Exception):
    """Ends a run."""


def run_rounds(setting: Setting, rounds: int, observe: Observer) -> None:
    """Decode random prompts for ``rounds`` rounds, in all of which every row takes part.

    ``observe`` sees the prefill and each round. The round after them is broken off.
    """
    seen = 0

    def observer(observation: Observation) -> None:
        nonlocal seen
        if seen > rounds:
            raise EnoughRoundsError
        seen += 1
        observe(observation)

    size, shape = setting.size, (setting.batch, setting.size.context)
    prompts = torch.randint(size.vocabulary, shape, generator=torch.Generator().manual_seed(2))
    # More than so many rounds can commit, so that no row is done before.
    limit = (rounds + 2) * (size.block_size + 1)
    options = DecodeOptions(max_new_tokens=limit, temperature=setting.temperature)
    generator = torch.Generator(setting.draft.device).manual_seed(3)
    with suppress(EnoughRoundsError):
        decode(
            setting.target,
            setting.draft,
            prompts.tolist(),
            options,
            generator=generator,
            observer=observer,
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One row of the table; times are in milliseconds, medians over the measured rounds."""

    draft_vocabulary: int
    batch: int
    temperature: float
    rounds: int
    accepted_length: float
    milliseconds: dict[str, float]
    fastest: float
    slowest: float
    waits: float | None
    peak_bytes: int | None
    read_bytes: int
    floor: float


def measure(setting: Setting, rounds: int, copy_rate: float) -> Figures:
    """Time ``rounds`` rounds after ``WARM_UP`` others; ``copy_rate`` in bytes moved per second."""
    if setting.cuda:
        torch.cuda.reset_peak_memory_stats()
    stopwatch = Stopwatch(setting.draft.device)
    accepted: list[Tensor] = []
    with stopwatch.attached():
        run_rounds(setting, WARM_UP + rounds, lambda seen: accepted.append(seen.accepted))
    times = stopwatch.milliseconds()[WARM_UP:]
    peak = torch.cuda.max_memory_allocated() if setting.cuda else None
    read = weight_bytes(setting.target.model, setting.draft)
    return Figures(
        draft_vocabulary=setting.draft.config.draft_vocab_size,
        batch=setting.batch,
        temperature=setting.temperature,
        rounds=len(times),
        accepted_length=1 + float(torch.stack(accepted[1 + WARM_UP :]).double().mean()),
        milliseconds={part: statistics.median(each[part] for each in times) for part in times[0]},
        fastest=min(each["total"] for each in times),
        slowest=max(each["total"] for each in times),
        waits=count_waits(setting) if setting.cuda else None,
        peak_bytes=peak,
        read_bytes=read,
        floor=read / copy_rate * 1e3,
    )


def count_waits(setting: Setting) -> float:
    """How often Python waits for the device in a round, by PyTorch's own account (median).

    An upload of a Python list waits too, since its source is not pinned.
    """
    seen: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def observe(_: Observation) -> None:
            seen.append(sum("called a synchronizing" in str(item.message) for item in caught))

        torch.cuda.set_sync_debug_mode("warn")
        try:
            run_rounds(setting, WAIT_ROUNDS, observe)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return statistics.median(after - before for before, after in pairwise(seen))


def measure_copy_rate(size: Size, device: torch.device) -> float:
    """Bytes read and written per second by a large copy on the device (median)."""
    source = torch.empty(size.copied_bytes, dtype=torch.uint8, device=device).random_()
    copy = torch.empty_like(source)
    stopwatch = Stopwatch(device)
    marks = []
    for _ in range(COPIES + 1):
        copy.copy_(source)
        marks.append(stopwatch.now())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    times = [stopwatch.elapsed(begin, end) for begin, end in pairwise(marks)]
    return 2 * size.copied_bytes / (statistics.median(times) / 1e3)


# Telling -------------------------------------------------------------------------------------


def table_row(cells: Sequence[object]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table_head() -> str:
    """The names of the columns; all but the first few are milliseconds."""
    names = (
        "draft vocabulary", "batch", "T", "accepted length", "total (fastest-slowest)", *PART_NAMES,
        "floor", "total / floor", "waits", "peak, GiB",
    )  # fmt: skip
    return f"{table_row(names)}\n{table_row(['---'] * len(names))}"


def describe(figures: Figures) -> str:
    """The row of one setting."""
    total = figures.milliseconds["total"]
    return table_row(
        (
            figures.draft_vocabulary,
            figures.batch,
            f"{figures.temperature:g}",
            f"{figures.accepted_length:.2f}",
            f"{total:.2f} ({figures.fastest:.2f}-{figures.slowest:.2f})",
            *(f"{figures.milliseconds[part]:.2f}" for part in PART_NAMES),
            f"{figures.floor:.2f}",
            f"{total / figures.floor:.2f}",
            "-" if figures.waits is None else f"{figures.waits:g}",
            "-" if figures.peak_bytes is None else f"{figures.peak_bytes / 2**30:.1f}",
        )
    )


def describe_machine(device: torch.device) -> str:
    """Device and versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{name}, torch {torch.__version__}, transformers {transformers.__version__}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=32, help="measured rounds of each setting")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if not options.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device; --tiny runs on the CPU")
    size, device = (TINY, "cpu") if options.tiny else (QWEN3_8B, "cuda")
    run(size, torch.device(device), options.rounds, options.json)


def run(size: Size, device: torch.device, rounds: int, output: Path | None) -> None:
    """Measure and print every setting; ``output`` gets the figures as JSON."""
    machine, copy_rate = describe_machine(device), measure_copy_rate(size, device)
    print(f"{machine}; copies move {copy_rate / 1e9:.0f} GB/s\n\n{table_head()}")
    every = []
    for setting in settings(size, device):
        every.append(measure(setting, rounds, copy_rate))
        print(describe(every[-1]), flush=True)
    if output is not None:
        rows = [asdict(figures) for figures in every]
        document = {"machine": machine, "copy_rate": copy_rate, "settings": rows}
        output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
