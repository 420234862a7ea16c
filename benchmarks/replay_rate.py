"""Arithmetic of a replay per second, against the rate of the card's matrix products.

    python -m benchmarks.replay_rate [--anchors 32000] [--plain-anchors 2048] [--json FILE] [--tiny]

The draft has the sizes of one for Qwen3-8B and random weights, its texts are random. What is timed
is a whole replay of recorded texts, from features in the host's memory to expected counts. Only
products that a replay cannot do without are counted: columns that attention masks are not.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.decode import describe_machine, table_row
from benchmarks.random_pair import QWEN3_8B, TINY, Size, build_draft
from benchmarks.replay import peak, random_sequence, start_peak, stopwatch
from dspark_convert.replay.replay import ReplayOptions, replay_sequence
from dspark_convert.runtime import DecodeOptions, DraftModel
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.runtime.replay import PLAIN
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.traces.trace import TraceSequence

TEXT_LENGTHS = (1, 16)  # texts that share the anchors
REPEATS = 5
NAMES = (
    "draft vocabulary", "T", "steps", "texts", "anchors", "TFLOP", "seconds (fastest-slowest)",
    "TFLOP/s", "of matrix rate", "at matrix rate, s", "beyond weights, GB",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One row of the table; rates in FLOP/s."""

    draft_vocabulary: int
    temperature: float
    steps: str
    texts: int
    anchors: int
    flop: float
    median: float
    fastest: float
    slowest: float
    matrix_rate: float
    beyond_bytes: int

    @property
    def rate(self) -> float:
        """FLOP/s of the whole replay."""
        return self.flop / self.median


def count_flop(draft: DraftModel, prompt: int, anchors: int) -> float:
    """Of the products of one text: two for each weight and token, or key and query."""
    config = draft.config
    heads = config.num_attention_heads * config.head_dim
    kv_heads = config.num_key_value_heads * config.head_dim
    hidden, layers = config.hidden_size, config.num_hidden_layers
    context = config.feature_size * hidden + layers * 2 * hidden * kv_heads
    attention = 2 * hidden * heads + 2 * hidden * kv_heads
    slot = layers * (attention + 3 * hidden * config.intermediate_size)
    slot += (hidden + config.markov_rank) * config.draft_vocab_size
    # Scores and weighted values of all columns before the anchor, and of the block.
    seen = sum(range(prompt, prompt + anchors)) + anchors * config.block_size
    attended = layers * 2 * heads * config.block_size * seen
    return 2.0 * (context * (prompt + anchors) + slot * config.block_size * anchors + attended)


def measure_matrix_rate(size: Size, device: torch.device) -> float:
    """FLOP/s of a bf16 product of random square matrices, median of ten."""
    width = 2 * size.hidden
    one, other = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in "ab")
    times = []
    for _ in range(13):
        with stopwatch(device) as seconds:
            for _ in range(10):
                one @ other
        times.append(seconds() / 10)
    return 2.0 * width**3 / statistics.median(times[3:])


def measure(
    draft: DraftModel, temperature: float, steps: ReplaySteps, texts: int, anchors: int, rate: float
) -> Figures:
    """Replay ``texts`` texts of as many anchors each: one to warm up, all ``REPEATS`` times."""
    sequences = [make_text(draft, anchors // texts)] * texts
    options = ReplayOptions(
        decode=DecodeOptions(max_new_tokens=anchors // texts, temperature=temperature),
        target_vocab_size=draft.config.vocab_size,
        steps=steps,
    )
    replay_sequence(draft, sequences[0], options)
    before, times = start_peak(draft.device), []
    for _ in range(1 if steps is PLAIN else REPEATS):
        with stopwatch(draft.device) as seconds:
            for sequence in sequences:
                replay = replay_sequence(draft, sequence, options)
                assert replay.expectation.rounds > 0
        times.append(seconds())
    return Figures(
        draft_vocabulary=draft.config.draft_vocab_size,
        temperature=temperature,
        steps=steps.name,
        texts=texts,
        anchors=anchors,
        flop=texts * count_flop(draft, 1, anchors // texts),
        median=statistics.median(times),
        fastest=min(times),
        slowest=max(times),
        matrix_rate=rate,
        beyond_bytes=peak(draft.device) - before,
    )


def make_text(draft: DraftModel, anchors: int) -> TraceSequence:
    """A random text with a prompt of one token, and enough after the last anchor for its round."""
    return random_sequence(draft, 1 + anchors + draft.config.num_speculative_tokens + 1)


def describe(figures: Figures) -> str:
    """The row of one setting."""
    return table_row(
        (
            figures.draft_vocabulary,
            f"{figures.temperature:g}",
            figures.steps,
            figures.texts,
            figures.anchors,
            f"{figures.flop / 1e12:.1f}",
            f"{figures.median:.2f} ({figures.fastest:.2f}-{figures.slowest:.2f})",
            f"{figures.rate / 1e12:.0f}",
            f"{figures.rate / figures.matrix_rate:.0%}",
            f"{figures.flop / figures.matrix_rate:.2f}",
            f"{figures.beyond_bytes / 1e9:.2f}",
        )
    )


def run(
    size: Size, device: torch.device, anchors: int, plain_anchors: int, output: Path | None
) -> None:
    """Measure and print every setting; ``output`` gets the figures as JSON."""
    machine, rate = describe_machine(device), measure_matrix_rate(size, device)
    print(f"{machine}; bf16 products run at {rate / 1e12:.0f} TFLOP/s\n")
    print(table_row(NAMES), table_row(["---"] * len(NAMES)), sep="\n")
    every = []
    for vocabulary in (size.vocabulary, size.reduced_vocabulary):
        draft = build_draft(size, vocabulary, device)
        steps = choose_steps(draft, "auto")
        settings = [(1.0, steps, texts, anchors) for texts in TEXT_LENGTHS]
        settings += [(0.0, steps, 1, anchors), (1.0, PLAIN, 1, plain_anchors)]
        for setting in settings:
            every.append(measure(draft, *setting, rate))
            print(describe(every[-1]), flush=True)
    if output is not None:
        rows = [asdict(figures) for figures in every]
        document = {"machine": machine, "matrix_rate": rate, "settings": rows}
        output.write_text(json.dumps(document, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--anchors", type=int, default=32_000)
    parser.add_argument("--plain-anchors", type=int, default=2_048, help="of the plain steps")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    options = parser.parse_args(arguments)
    if not options.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device; --tiny runs on the CPU")
    size, device = (TINY, "cpu") if options.tiny else (QWEN3_8B, "cuda")
    run(size, torch.device(device), options.anchors, options.plain_anchors, options.json)


if __name__ == "__main__":
    main()
