"""Time and memory of a round on the fast path, against reading the weights once.

    python -m benchmarks.decode_fast [--rounds 32] [--json FILE] [--compiled] [--tiny]

The pair, the prompts and the floor are those of ``benchmarks.decode``, which measures the plain
path. A round is timed from outside: a CUDA event is recorded between launches, and the results of
every round are copied to the host as decoding copies them. ``--compiled`` measures each setting
again with layers in compiled PyTorch in the place of our kernels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.compiled_layers import compiled_layers
from benchmarks.decode import (
    Setting,
    Stopwatch,
    describe_machine,
    measure_copy_rate,
    settings,
    table_row,
)
from benchmarks.random_pair import QWEN3_8B, TINY, Size, weight_bytes
from dspark_convert.runtime.fast.decode import LAG
from dspark_convert.runtime.fast.rounds import Rounds
from dspark_convert.runtime.records import DecodeOptions

WARM_UP = 8
NAMES = (
    "draft vocabulary", "batch", "T", "layers", "accepted length", "round (fastest-slowest)",
    "round / kernels", "floor", "round / floor", "wall", "start, s",
    "beyond weights and caches, GiB",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One row of the table; times are in milliseconds but ``start``, in seconds."""

    draft_vocabulary: int
    batch: int
    temperature: float
    compiled: bool
    rounds: int
    accepted_length: float
    median: float
    fastest: float
    slowest: float
    wall: float
    start: float
    beyond_bytes: int | None
    floor: float


def build_rounds(setting: Setting, count: int) -> Rounds:
    """Rows that hold random prompts and stay inside their columns for ``count`` rounds."""
    size = setting.size
    rounds = Rounds(
        setting.target,
        setting.draft,
        DecodeOptions(
            max_new_tokens=(count + 2) * (size.block_size + 1), temperature=setting.temperature
        ),
        rows=setting.batch,
        longest=size.context,
        generator=torch.Generator(setting.draft.device).manual_seed(3),
    )
    shape = (setting.batch, size.context)
    prompts = torch.randint(size.vocabulary, shape, generator=torch.Generator().manual_seed(2))
    for row, prompt in enumerate(prompts.tolist()):
        rounds.admit(row, prompt)
    return rounds


@torch.no_grad()
def measure(
    setting: Setting, measured: int, copy_rate: float, *, compiled: bool = False
) -> Figures:
    """Time ``measured`` rounds after ``WARM_UP`` others; ``copy_rate`` in bytes per second."""
    if setting.cuda:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    rounds = build_rounds(setting, WARM_UP + measured)
    start = time.perf_counter() - began
    stopwatch, accepted, pending = Stopwatch(setting.draft.device), [], []
    marks = [stopwatch.now()]
    for number in range(WARM_UP + measured):
        if number == WARM_UP:
            began = time.perf_counter()
        pending.append(rounds.start_round())
        marks.append(stopwatch.now())
        if len(pending) > LAG:
            accepted.append([outcome.accepted for outcome in pending.pop(0).wait()])
    accepted += [[outcome.accepted for outcome in each.wait()] for each in pending]
    wall = (time.perf_counter() - began) / measured
    times = [stopwatch.elapsed(begin, end) for begin, end in itertools.pairwise(marks)][WARM_UP:]
    read = weight_bytes(setting.target.model, setting.draft)
    return Figures(
        draft_vocabulary=setting.draft.config.draft_vocab_size,
        batch=setting.batch,
        temperature=setting.temperature,
        compiled=compiled,
        rounds=measured,
        accepted_length=1 + statistics.mean(itertools.chain(*accepted[WARM_UP:])),
        median=statistics.median(times),
        fastest=min(times),
        slowest=max(times),
        wall=wall * 1e3,
        start=start,
        beyond_bytes=beyond_bytes(setting, rounds) if setting.cuda else None,
        floor=read / copy_rate * 1e3,
    )


def beyond_bytes(setting: Setting, rounds: Rounds) -> int:
    """Most memory that was given out, less all weights and the caches."""
    models = (setting.target.model, setting.draft)
    weights = sum(parameter.nbytes for model in models for parameter in model.parameters())
    caches = (*rounds.target.caches, *rounds.draft.caches)
    held = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
    return int(torch.cuda.max_memory_allocated()) - weights - held


def describe(figures: Figures, kernels: Figures) -> str:
    """The row of one setting; ``kernels`` are the figures of the package as it is."""
    beyond = figures.beyond_bytes
    return table_row(
        (
            figures.draft_vocabulary,
            figures.batch,
            f"{figures.temperature:g}",
            "compiled" if figures.compiled else "kernels",
            f"{figures.accepted_length:.2f}",
            f"{figures.median:.2f} ({figures.fastest:.2f}-{figures.slowest:.2f})",
            f"{figures.median / kernels.median:.3f}",
            f"{figures.floor:.2f}",
            f"{figures.median / figures.floor:.2f}",
            f"{figures.wall:.2f}",
            f"{figures.start:.1f}",
            "-" if beyond is None else f"{beyond / 2**30:.2f}",
        )
    )


def run(
    size: Size, device: torch.device, rounds: int, output: Path | None, *, compiled: bool
) -> None:
    """Measure and print every setting; ``output`` gets the figures as JSON."""
    machine, copy_rate = describe_machine(device), measure_copy_rate(size, device)
    print(f"{machine}; copies move {copy_rate / 1e9:.0f} GB/s\n")
    print(table_row(NAMES), table_row(["---"] * len(NAMES)), sep="\n")
    every = []
    for setting in settings(size, device):
        kernels = measure(setting, rounds, copy_rate)
        every.append(kernels)
        print(describe(kernels, kernels), flush=True)
        if compiled:
            with compiled_layers():
                every.append(measure(setting, rounds, copy_rate, compiled=True))
            print(describe(every[-1], kernels), flush=True)
    if output is not None:
        rows = [asdict(figures) for figures in every]
        document = {"machine": machine, "copy_rate": copy_rate, "settings": rows}
        output.write_text(json.dumps(document, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=32, help="measured rounds of each setting")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--compiled", action="store_true", help="also without our kernels")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if not options.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device; --tiny runs on the CPU")
    size, device = (TINY, "cpu") if options.tiny else (QWEN3_8B, "cuda")
    run(size, torch.device(device), options.rounds, options.json, compiled=options.compiled)


if __name__ == "__main__":
    main()
