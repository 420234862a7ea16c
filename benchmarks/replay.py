"""Speed of replay against the decode loop on the same pair, and its memory on a long trace.

    python -m benchmarks.replay [--tokens 512] [--long 32000] [--json FILE]
    python -m benchmarks.replay --pair TARGET DRAFT [--prompts 8] [--tokens 128]
    python -m benchmarks.replay --tiny

Both work on one text at a time. The loop decodes a text; the target then reads it once, as a
recording does (not timed), and the draft replays what the loop had committed. Without ``--pair``
the models have the sizes of Qwen3-8B and random weights, and run on a CUDA device; ``--tiny`` takes
small random ones on the CPU, to show that it runs. ``benchmarks.diagnose`` measures a diagnosis
against a replay.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor

from benchmarks.random_pair import QWEN3_8B, TINY, Size, build_draft, build_target
from dspark_convert.replay.replay import ReplayOptions, replay_sequence
from dspark_convert.runtime import (
    CausalTarget,
    DecodeOptions,
    DecodeResult,
    DraftModel,
    decode,
    load_draft,
    load_target,
)
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.runtime.sampling import compute_probabilities
from dspark_convert.traces.trace import TraceSequence

TEMPERATURES = (0.0, 1.0)
WARM_UP = 8  # new tokens decoded, and replayed, before anything is measured
TOP = 256  # candidates that a trace stores of each position


@dataclass(frozen=True)
class Speed:
    """Verified tokens of all texts, and seconds, of both."""

    name: str
    temperature: float
    tokens: int
    decode_seconds: float
    replay_seconds: float
    accepted_length: float
    accepted_length_error: float | None
    replayed_length: float
    replayed_length_error: float | None

    @property
    def ratio(self) -> float:
        """How many times faster replay is."""
        return self.decode_seconds / self.replay_seconds


@dataclass(frozen=True)
class Memory:
    """Most memory beyond weights, in bytes, and seconds of replaying ``texts`` of ``length``."""

    name: str
    texts: int
    length: int
    seconds: float
    peak_bytes: int


# What is measured ----------------------------------------------------------------------------


def measure_speed(
    name: str, target: CausalTarget, draft: DraftModel, prompts: Sequence[list[int]], tokens: int
) -> Iterator[Speed]:
    """Both on the same texts, at each temperature."""
    for temperature in TEMPERATURES:
        options = DecodeOptions(max_new_tokens=tokens, temperature=temperature)
        warm_up = DecodeOptions(max_new_tokens=WARM_UP, temperature=temperature)
        text = decode_one(target, draft, prompts[0], warm_up)[1]
        replay_one(draft, read_text(target, draft, text, len(prompts[0]), temperature), temperature)
        decoded, replayed = [], []
        for prompt in prompts:
            with stopwatch(draft.device) as decode_seconds:
                result, text = decode_one(target, draft, prompt, options)
            sequence = read_text(target, draft, text, len(prompt), temperature)
            with stopwatch(draft.device) as replay_seconds:
                anchors, expected = replay_one(draft, sequence, temperature)
            decoded.append((result.committed, decode_seconds(), len(result.rounds)))
            replayed.append((anchors, replay_seconds(), *expected))
        yield summarise(name, temperature, decoded, replayed)


def summarise(
    name: str,
    temperature: float,
    decoded: Sequence[tuple[int, float, int]],
    replayed: Sequence[tuple[int, float, float, float]],
) -> Speed:
    """Seconds of replay are scaled to the tokens of the loop: its last few have no whole round."""
    committed, decode_seconds, rounds = (sum(column) for column in zip(*decoded, strict=True))
    anchors, replay_seconds, expected_rounds, expected = (
        sum(column) for column in zip(*replayed, strict=True)
    )
    return Speed(
        name=name,
        temperature=temperature,
        tokens=int(committed),
        decode_seconds=decode_seconds,
        replay_seconds=replay_seconds * committed / anchors,
        accepted_length=committed / rounds,
        accepted_length_error=ratio_error([(tokens, count) for tokens, _, count in decoded]),
        replayed_length=expected / expected_rounds,
        replayed_length_error=ratio_error([(tokens, count) for *_, count, tokens in replayed]),
    )


def ratio_error(counts: Sequence[tuple[float, float]]) -> float | None:
    """Standard error of a ratio of sums over texts (linearised); None for one text."""
    if len(counts) < 2:
        return None
    tops, bottoms = torch.tensor(counts, dtype=torch.float64).T
    spread = (tops - bottoms * tops.sum() / bottoms.sum()).std()
    return float(spread / bottoms.mean() / math.sqrt(len(counts)))


def decode_one(
    target: CausalTarget, draft: DraftModel, prompt: list[int], options: DecodeOptions
) -> tuple[DecodeResult, list[int]]:
    """The result, and the whole text with all that its rounds committed."""
    generator = torch.Generator(draft.device).manual_seed(3)
    (result,) = decode(target, draft, [prompt], options, generator=generator)
    committed = [token for round_ in result.rounds for token in round_.committed_ids]
    return result, [*prompt, result.token_ids[0], *committed]


@torch.no_grad()
def read_text(
    target: CausalTarget, draft: DraftModel, text: list[int], first: int, temperature: float
) -> TraceSequence:
    """What a trace holds of a text, on the CPU as if it had been read from a file."""
    tokens = torch.tensor(text)
    layer_ids = draft.config.target_layer_ids
    with target.tap(layer_ids) as tapped:
        hidden = target.model.model(input_ids=tokens[None].to(target.device)).last_hidden_state
    after = target.model.lm_head(hidden[0, first - 1 : -1])
    options = DecodeOptions(max_new_tokens=1, temperature=temperature)
    p = compute_probabilities(after, options.sampling)
    log_probs = p.gather(1, tokens[first:, None].to(p.device))[:, 0].log()
    features = torch.stack([tapped[layer_id][0] for layer_id in layer_ids], 1)
    return TraceSequence(
        id="text",
        token_ids=tokens,
        first_generated=first,
        layer_ids=layer_ids,
        features=features.cpu(),
        log_probs=log_probs.cpu(),
    )


def replay_one(
    draft: DraftModel, sequence: TraceSequence, temperature: float
) -> tuple[int, tuple[float, float]]:
    """Anchors, and expected rounds and committed tokens."""
    past = draft.config.num_speculative_tokens + 1
    anchors = len(sequence.token_ids) - sequence.first_generated - past
    options = ReplayOptions(
        decode=DecodeOptions(max_new_tokens=max(anchors, 1), temperature=temperature),
        target_vocab_size=draft.config.vocab_size,
        top_temperature=None if sequence.top_ids is None else temperature,
        steps=choose_steps(draft, "auto"),
    )
    expectation = replay_sequence(draft, sequence, options).expectation
    return anchors, (float(expectation.rounds), float(expectation.committed))


def measure_memory(name: str, draft: DraftModel, texts: int, length: int) -> Memory:
    """Replay a random text of ``length`` tokens ``texts`` times, with candidates as traces have."""
    sequence = random_sequence(draft, length)
    before = start_peak(draft.device)
    with stopwatch(draft.device) as seconds:
        for _ in range(texts):
            replay_one(draft, sequence, 1.0)
    return Memory(name, texts, length, seconds(), peak(draft.device) - before)


def random_sequence(
    draft: DraftModel, length: int, layer_ids: tuple[int, ...] | None = None, *, seed: int = 4
) -> TraceSequence:
    """A text of random tokens after the first, with random features in the dtype of the draft.

    ``layer_ids`` are the recorded layers, by default those that the draft listens to.
    """
    config, generator = draft.config, torch.Generator().manual_seed(seed)
    layer_ids = config.target_layer_ids if layer_ids is None else layer_ids
    shape = (length, len(layer_ids), config.target_hidden_size or config.hidden_size)
    on_device = torch.Generator(draft.device).manual_seed(seed)
    features = torch.empty(shape, dtype=draft.dtype, device=draft.device)
    features = features.normal_(generator=on_device).cpu()
    generated, kept = length - 1, min(TOP, config.vocab_size)
    return TraceSequence(
        id="random",
        token_ids=torch.randint(config.vocab_size, (length,), generator=generator),
        first_generated=1,
        layer_ids=layer_ids,
        features=features,
        log_probs=torch.full((generated,), -5.0),
        top_ids=torch.arange(kept, dtype=torch.int32).expand(generated, -1),
        top_log_probs=torch.full((generated, kept), -10.0),
        tail_mass=torch.full((generated,), 0.9),
    )


@contextmanager
def stopwatch(device: torch.device) -> Iterator[Callable[[], float]]:
    """Seconds of what runs inside, the device's work included; known when it is over."""
    synchronize(device)
    start = time.perf_counter()
    end: list[float] = []
    yield lambda: end[0] - start
    synchronize(device)
    end.append(time.perf_counter())


def synchronize(device: torch.device) -> None:
    """Wait for a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def start_peak(device: torch.device) -> int:
    """Bytes in use; on a CPU the largest so far, so that only what goes beyond it counts."""
    if device.type != "cuda":
        return peak(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak(device: torch.device) -> int:
    """Most bytes that were in use."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Pairs and tables ----------------------------------------------------------------------------


def random_prompts(vocabulary: int, length: int, count: int) -> list[list[int]]:
    """Prompts of random tokens."""
    generator = torch.Generator().manual_seed(2)
    drawn: Tensor = torch.randint(vocabulary, (count, length), generator=generator)
    prompts: list[list[int]] = drawn.tolist()
    return prompts


def run_random(
    size: Size, device: torch.device, tokens: int, long: int
) -> tuple[list[Speed], list[Memory]]:
    """The full and the reduced vocabulary; memory with the full one."""
    target = build_target(size, device)
    prompts = random_prompts(size.vocabulary, size.context, 1)
    speeds: list[Speed] = []
    for vocabulary in (size.reduced_vocabulary, size.vocabulary):
        draft = build_draft(size, vocabulary, device)
        name = f"random, D = {vocabulary}"
        speeds += measure_speed(name, target, draft, prompts, tokens)
    memories = [measure_memory(name, draft, texts, long // texts) for texts in (16, 1)]
    return speeds, memories


def run_pair(
    target_folder: Path, draft_folder: Path, prompts: int, tokens: int
) -> tuple[list[Speed], list[Memory]]:
    """A pair on disk, on the CPU."""
    target = load_target(target_folder)
    draft = load_draft(draft_folder, target=target_folder)
    texts = random_prompts(target.vocab_size, 16, prompts)
    return [*measure_speed(draft_folder.name, target, draft, texts, tokens)], []


def show(speeds: Sequence[Speed], memories: Sequence[Memory]) -> Iterator[str]:
    """Markdown tables."""
    yield (
        "| pair | T | tokens | decode, tokens/s | replay, tokens/s | ratio "
        "| accepted length, decoded | replayed |"
    )
    yield "| --- |" + " --- |" * 7
    for speed in speeds:
        yield (
            f"| {speed.name} | {speed.temperature:g} | {speed.tokens} "
            f"| {speed.tokens / speed.decode_seconds:.1f} "
            f"| {speed.tokens / speed.replay_seconds:.0f} | {speed.ratio:.0f} "
            f"| {speed.accepted_length:.3f}{_error(speed.accepted_length_error)} "
            f"| {speed.replayed_length:.3f}{_error(speed.replayed_length_error)} |"
        )
    if memories:
        yield ""
        yield "| draft | texts | tokens of each | seconds | anchors/s | beyond weights, GB |"
        yield "| --- |" + " --- |" * 5
    for memory in memories:
        yield (
            f"| {memory.name} | {memory.texts} | {memory.length} | {memory.seconds:.1f} "
            f"| {memory.texts * memory.length / memory.seconds:.0f} "
            f"| {memory.peak_bytes / 1e9:.2f} |"
        )


def _error(value: float | None) -> str:
    return "" if value is None else f" ± {value:.3f}"


def describe_machine() -> str:
    """What figures depend on beside the code."""
    return (
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {torch.get_num_threads()} threads"
        + (f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pair", nargs=2, type=Path, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--long", type=int, default=32_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.pair:
        target, draft = options.pair
        figures = run_pair(target, draft, options.prompts, options.tokens)
    elif options.tiny:
        figures = run_random(TINY, torch.device("cpu"), options.tokens, options.long)
    else:
        figures = run_random(QWEN3_8B, torch.device("cuda"), options.tokens, options.long)
    print(describe_machine())
    print("\n".join(show(*figures)))
    if options.json:
        document = [[asdict(entry) for entry in kind] for kind in figures]
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
