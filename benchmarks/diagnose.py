"""Seconds of a diagnosis, in replays of the declared reading over the same texts.

    python -m benchmarks.diagnose [--texts 16] [--tokens 2000] [--json FILE]
    python -m benchmarks.diagnose --tiny

The draft is the random one of the sizes of Qwen3-8B, with the full vocabulary, on a CUDA device;
``--tiny`` takes a small one on the CPU, to show that it runs. Texts are random, with random
features of the layers that the draft listens to and of their neighbours, so that nearly all
readings can be tried; none of them is any better.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.random_pair import QWEN3_8B, TINY, Size, build_draft
from benchmarks.replay import TOP, describe_machine, random_sequence, replay_one, stopwatch
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime import DecodeOptions
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.schemas.trace import TraceHeader, TraceSampling, TraceTarget
from dspark_convert.verification.diagnose import diagnose, plan_trials
from dspark_convert.verification.hypotheses import MAX_MASKS, Surroundings
from dspark_convert.verification.suspect import Subject, Suspect
from dspark_convert.verification.together import SharedReplay
from dspark_convert.verification.trace import TraceSequence

TEMPERATURE = 1.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one replay and of the diagnosis, and how much there was to do.

    ``whole`` are the hypotheses that were judged on all anchors, the declared one among them.
    """

    name: str
    texts: int
    anchors: int
    readings: int
    backbones: int
    whole: int
    replay_seconds: float
    diagnosis_seconds: float

    @property
    def ratio(self) -> float:
        """Replays that the diagnosis costs."""
        return self.diagnosis_seconds / self.replay_seconds


def measure_diagnosis(name: str, subject: Subject, tokens: int) -> Cost:
    """Both on the same texts, of which ``tokens`` anchors each are replayed."""
    draft, texts = subject.draft, list(subject.texts)
    steps = choose_steps(draft, "auto")
    readings, backbones = count_work(subject)
    decode = DecodeOptions(max_new_tokens=tokens, temperature=TEMPERATURE)
    # Kernels are compiled once for a machine, and kept.
    replay_one(draft, texts[0], TEMPERATURE)
    first = replace(subject, texts=texts[:1])
    diagnose(Suspect(name, "random", (), (), first), decode, steps=steps)
    with stopwatch(draft.device) as replay_seconds:
        for text in texts:
            replay_one(draft, text, TEMPERATURE)
    suspect = Suspect(name, "random", (), (), subject)
    with stopwatch(draft.device) as diagnosis_seconds:
        diagnosis = diagnose(suspect, decode, steps=steps)
    return Cost(
        name=name,
        texts=diagnosis.texts,
        anchors=diagnosis.anchors,
        readings=readings,
        backbones=backbones,
        whole=sum(result.anchors == diagnosis.anchors for result in diagnosis.hypotheses),
        replay_seconds=replay_seconds(),
        diagnosis_seconds=diagnosis_seconds(),
    )


def count_work(subject: Subject) -> tuple[int, int]:
    """Readings that are tried, and backbones among them."""
    readings = [trial.reading for trial in plan_trials(subject)[0]]
    return len(readings), len(SharedReplay(readings).backbones)


def build_subject(size: Size, device: torch.device, texts: int, tokens: int) -> Subject:
    """A random draft with all that is known of its target, and texts of ``tokens`` anchors."""
    draft = build_draft(size, size.vocabulary, device)
    past = draft.config.num_speculative_tokens + 1
    near = {layer + step for layer in size.target_layer_ids for step in (-1, 0, 1)}
    layer_ids = tuple(sorted(near))
    sequences = [
        random_sequence(draft, 1 + tokens + past, layer_ids, seed=seed) for seed in range(texts)
    ]
    weights = draft.state_dict()
    around = Surroundings(
        build_header(size, sequences, tokens, past),
        config={"rope_theta": 5e6},
        tensors={name: weights[name].cpu().roll(1, 0) for name in (EMBEDDING, LM_HEAD)},
        special_token_ids=tuple(range(MAX_MASKS)),
    )
    return Subject(draft, around, sequences)


def build_header(
    size: Size, sequences: Sequence[TraceSequence], tokens: int, past: int
) -> TraceHeader:
    """What a trace of these texts would say of them."""
    return TraceHeader(
        tool_version="0",
        recorded_by="dspark-verify",
        target=TraceTarget(
            name="random",
            config_sha256="0",
            revision=None,
            tokenizer_sha256=None,
            hidden_size=size.hidden,
            vocab_size=size.vocabulary,
            num_hidden_layers=size.layers,
            dtype="bfloat16",
        ),
        text_origin="target",
        sampling=TraceSampling(temperature=TEMPERATURE, top_k=None, top_p=None),
        max_new_tokens=tokens,
        extra_tokens=past,
        stop_token_ids=(),
        seed=0,
        layer_ids=sequences[0].layer_ids,
        feature_dtype="bfloat16",
        has_log_probs=True,
        has_argmax=False,
        top_log_probs=min(TOP, size.vocabulary),
        top_temperature=TEMPERATURE,
        has_embedding=False,
        has_lm_head=False,
        sequences=tuple(sequence.entry for sequence in sequences),
    )


def show(costs: Sequence[Cost]) -> Iterator[str]:
    """A Markdown table."""
    yield (
        "| draft | texts | anchors | readings | backbones | judged on all anchors "
        "| one replay, s | diagnosis, s | ratio |"
    )
    yield "| --- |" + " --- |" * 8
    for cost in costs:
        yield (
            f"| {cost.name} | {cost.texts} | {cost.anchors} | {cost.readings} | {cost.backbones} "
            f"| {cost.whole} | {cost.replay_seconds:.2f} | {cost.diagnosis_seconds:.2f} "
            f"| {cost.ratio:.2f} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    size, device = (TINY, "cpu") if options.tiny else (QWEN3_8B, "cuda")
    subject = build_subject(size, torch.device(device), options.texts, options.tokens)
    name = f"random, D = {size.vocabulary}"
    costs = [measure_diagnosis(name, subject, options.tokens)]
    print(describe_machine())
    print("\n".join(show(costs)))
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")


if __name__ == "__main__":
    main()
