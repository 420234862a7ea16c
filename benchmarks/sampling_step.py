"""One sampling step of the fast path against reading its inputs once.

    python -m benchmarks.sampling_step [--json FILE]

The step is what draws one drafted token of every row: embedding of the token before, Markov bias,
base logits, temperature, noise and argmax, compiled as a round has them. What it is held against is
a kernel that only reads the same logits and weights. Both run in CUDA graphs, over copies of the
inputs that do not fit into the L2 cache together, and over one copy that stays in it, as in the
chain of a block.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.decode import describe_machine, table_row
from benchmarks.random_pair import QWEN3_8B, Size
from dspark_convert.runtime.fast.runners import compile_function
from dspark_convert.runtime.fast.sampling import ROUNDED, draw_token

COPIES, REPEATS = 16, 30
ROWS = (1, 16)
NAMES = (
    "draft vocabulary", "batch", "inputs", "MB read", "read, µs", "step, µs", "step / read",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One row of the table; times in microseconds."""

    draft_vocabulary: int
    batch: int
    cold: bool
    read_bytes: int
    read: float
    step: float


class Inputs:
    """Copies of what a step reads: logits [R, D], ``markov_w2`` [D, r], and small tables."""

    def __init__(self, size: Size, width: int, rows: int, copies: int) -> None:
        new: Any = {"device": "cuda", "dtype": torch.bfloat16}
        self.logits = [torch.randn(rows, width, **new) for _ in range(copies)]
        self.weights = [torch.randn(width, size.markov_rank, **new) for _ in range(copies)]
        self.embedding = torch.randn(size.vocabulary, size.markov_rank, **new)
        self.anchors = torch.arange(rows, device="cuda")
        ids = torch.arange(width, device="cuda")
        self.table = None if width == size.vocabulary else ids * size.vocabulary // width - ids


def time_each(launch: Callable[[int], object], copies: int) -> float:
    """Microseconds of one launch among ``COPIES`` in a row, median of ``REPEATS`` graphs."""
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(COPIES):
            launch(number % copies)
    times: list[float] = []
    for _ in range(REPEATS + 3):
        new_event: Any = torch.cuda.Event
        begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e3 / COPIES)
    return statistics.median(times[3:])


def measure(size: Size, width: int, rows: int, *, cold: bool) -> Figures:
    """Time a step and a reading of the same inputs."""
    copies = COPIES if cold else 1
    inputs = Inputs(size, width, rows, copies)
    return Figures(
        draft_vocabulary=width,
        batch=rows,
        cold=cold,
        read_bytes=inputs.logits[0].nbytes + inputs.weights[0].nbytes,
        read=fastest_read(inputs, copies),
        step=time_each(compile_step(inputs), copies),
    )


def compile_step(inputs: Inputs) -> Callable[[int], object]:
    """A step over one of the copies, its random bits included."""
    bits = torch.empty(inputs.logits[0].shape, dtype=torch.int32, device="cuda")
    temperature = torch.ones((), device="cuda")
    compiled = compile_function(draw_after, ROUNDED)

    def step(copy: int) -> object:
        # The generator that every graph knows.
        bits.random_()
        chosen = inputs.logits[copy], inputs.weights[copy]
        fixed = inputs.embedding, inputs.anchors, inputs.table
        return compiled(*chosen, *fixed, bits, temperature)

    return step


def draw_after(
    logits: Tensor, weight: Tensor, embedding: Tensor, previous: Tensor, table: Tensor | None,
    bits: Tensor, temperature: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Biased logits [R, D], and the target ids [R] drawn from them after ``previous``."""
    biased = logits + functional.linear(embedding[previous], weight)
    drawn = draw_token(biased, bits, temperature)
    return biased, drawn if table is None else drawn + table[drawn]


def fastest_read(inputs: Inputs, copies: int) -> float:
    """Microseconds of reading logits and weights once, with the best of some block sizes."""
    from benchmarks.read_kernel import BLOCKS, read_both

    def read(block: int) -> Callable[[int], object]:
        return lambda copy: read_both(inputs.logits[copy], inputs.weights[copy], block)

    return min(time_each(read(block), copies) for block in BLOCKS)


def describe(figures: Figures) -> str:
    """The row of one setting."""
    return table_row(
        (
            figures.draft_vocabulary,
            figures.batch,
            "from memory" if figures.cold else "in L2",
            f"{figures.read_bytes / 1e6:.1f}",
            f"{figures.read:.1f}",
            f"{figures.step:.1f}",
            f"{figures.step / figures.read:.2f}",
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    size, machine = QWEN3_8B, describe_machine(torch.device("cuda"))
    print(f"{machine}\n")
    print(table_row(NAMES), table_row(["---"] * len(NAMES)), sep="\n")
    every = []
    for width in (size.reduced_vocabulary, size.vocabulary):
        for rows in ROWS:
            for cold in (True, False):
                every.append(measure(size, width, rows, cold=cold))
                print(describe(every[-1]), flush=True)
    if options.json is not None:
        rows_of = [asdict(figures) for figures in every]
        document = {"machine": machine, "settings": rows_of}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
