"""Seconds of a diagnosis, in replays of the declared reading over the same texts.

    python -m benchmarks.diagnose [--texts 16] [--tokens 2000] [--json FILE]
    python -m benchmarks.diagnose --tiny

The draft is the random one of the sizes of Qwen3-8B, with the full vocabulary, on a CUDA device;
``--tiny`` takes a small one on the CPU, to show that it runs. Texts are random, with random
features of the layers that the draft listens to and of their neighbours, so that nearly all
readings can be tried. First none of them is any better. Then the target's probabilities are what
the draft says when it is read in another way, and the diagnosis has to name that reading.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.random_pair import QWEN3_8B, TINY, Size, build_draft
from benchmarks.replay import TOP, describe_machine, random_sequence, replay_one, stopwatch
from dspark_convert.diagnosis.diagnose import diagnose, plan_trials
from dspark_convert.diagnosis.readings import MAX_MASKS, TargetFacts
from dspark_convert.diagnosis.shared_replay import SharedReplay
from dspark_convert.diagnosis.subject import DiagnosisInput, ReplayInput
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime import DecodeOptions, DraftModel
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.runtime.replay import compute_text_context, compute_text_input
from dspark_convert.schemas.diagnosis import ReadingId
from dspark_convert.schemas.trace import TraceHeader, TraceSampling, TraceTarget
from dspark_convert.traces.trace import TraceSequence

TEMPERATURE = 1.0
WARM_UP, RUNS = 1, 3
BETTER: ReadingId = "target-embedding"  # the reading of the second row
ANCHORS = 256  # whose distributions are held at once


@dataclass(frozen=True)
class Cost:
    """Seconds of one replay and of the diagnosis, medians, and how much there was to do.

    ``whole`` are the hypotheses that were judged on all anchors, the declared one among them;
    ``best`` is the reading that the diagnosis names.
    """

    name: str
    best: str
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


def measure_diagnosis(name: str, replay_input: ReplayInput, tokens: int) -> Cost:
    """Both on the same texts, of which ``tokens`` anchors each are replayed."""
    draft = replay_input.draft
    steps = choose_steps(draft, "auto")
    readings, backbones = count_work(replay_input)
    decode = DecodeOptions(max_new_tokens=tokens, temperature=TEMPERATURE)
    inputs = DiagnosisInput(name, "random", (), (), replay_input)
    replays, diagnoses = [], []
    for _ in range(WARM_UP + RUNS):
        with stopwatch(draft.device) as replay_seconds:
            for text in replay_input.texts:
                replay_one(draft, text, TEMPERATURE)
        with stopwatch(draft.device) as diagnosis_seconds:
            diagnosis = diagnose(inputs, decode, steps=steps)
        replays.append(replay_seconds())
        diagnoses.append(diagnosis_seconds())
    return Cost(
        name=name,
        best=diagnosis.best,
        texts=diagnosis.texts,
        anchors=diagnosis.anchors,
        readings=readings,
        backbones=backbones,
        whole=sum(result.anchors == diagnosis.anchors for result in diagnosis.hypotheses),
        replay_seconds=statistics.median(replays[WARM_UP:]),
        diagnosis_seconds=statistics.median(diagnoses[WARM_UP:]),
    )


def count_work(replay_input: ReplayInput) -> tuple[int, int]:
    """Readings that are tried, and backbones among them."""
    readings = [trial.reading for trial in plan_trials(replay_input)[0]]
    return len(readings), len(SharedReplay(readings).backbones)


def build_replay_input(size: Size, device: torch.device, texts: int, tokens: int) -> ReplayInput:
    """A random draft with all that is known of its target, and texts of ``tokens`` anchors."""
    draft = build_draft(size, size.vocabulary, device)
    past = draft.config.num_speculative_tokens + 1
    near = {layer + step for layer in size.target_layer_ids for step in (-1, 0, 1)}
    layer_ids = tuple(sorted(near))
    sequences = [
        random_sequence(draft, 1 + tokens + past, layer_ids, seed=seed) for seed in range(texts)
    ]
    weights = draft.state_dict()
    facts = TargetFacts(
        build_header(size, sequences, tokens, past),
        config={"rope_theta": 5e6},
        tensors={name: weights[name].cpu().roll(1, 0) for name in (EMBEDDING, LM_HEAD)},
        special_token_ids=tuple(range(MAX_MASKS)),
    )
    return ReplayInput(draft, facts, sequences)


def plant_cause(replay_input: ReplayInput) -> ReplayInput:
    """The same draft, with texts on which it would do well if it were read as ``BETTER``."""
    (right,) = (
        trial.reading.draft
        for trial in plan_trials(replay_input)[0]
        if trial.hypothesis.id == BETTER
    )
    return replace(replay_input, texts=[agree_with(right, text) for text in replay_input.texts])


@torch.no_grad()
def agree_with(draft: DraftModel, text: TraceSequence) -> TraceSequence:
    """The same text with the target's probabilities of each token those of a first drafted one."""
    first, steps = text.first_generated, choose_steps(draft, "auto")
    tokens = text.token_ids.to(draft.device)
    features = text.features_of(draft.config.target_layer_ids)
    context = compute_text_context(draft, compute_text_input(draft, features, steps=steps))
    kept: dict[str, list[Tensor]] = {name: [] for name in ("own", "top_ids", "top", "tail")}
    assert draft.markov_head is not None
    assert text.top_ids is not None
    # The position before the first generated one is an anchor too: it is generated after it.
    for start in range(first - 1, len(tokens) - 1, ANCHORS):
        anchors = range(start, min(start + ANCHORS, len(tokens) - 1))
        ids, following = tokens[start : anchors.stop], tokens[start + 1 : anchors.stop + 1]
        hidden = steps.run_blocks(draft, context, draft.embed_block(ids)[:, None], anchors)
        hidden = hidden[:, 0, draft.first_predicting_slot]
        bias, _ = draft.markov_head(draft.markov_head.embed(ids), hidden, None)
        log_q = (draft.compute_draft_logits(hidden) + bias).float().log_softmax(-1)
        top = log_q.topk(text.top_ids.shape[1])
        kept["own"].append(log_q.gather(1, following[:, None])[:, 0])
        kept["top_ids"].append(top.indices.int())
        kept["top"].append(top.values)
        kept["tail"].append((1 - top.values.exp().sum(-1)).clamp(0))
    own, top_ids, top_values, tail = (torch.cat(parts).cpu() for parts in kept.values())
    return replace(text, log_probs=own, top_ids=top_ids, top_log_probs=top_values, tail_mass=tail)


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
        "| draft | named | texts | anchors | readings | backbones | judged on all anchors "
        "| one replay, s | diagnosis, s | ratio |"
    )
    yield "| --- |" + " --- |" * 9
    for cost in costs:
        yield (
            f"| {cost.name} | {cost.best} | {cost.texts} | {cost.anchors} | {cost.readings} "
            f"| {cost.backbones} | {cost.whole} | {cost.replay_seconds:.2f} "
            f"| {cost.diagnosis_seconds:.2f} | {cost.ratio:.2f} |"
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
    replay_input = build_replay_input(size, torch.device(device), options.texts, options.tokens)
    name = f"random, D = {size.vocabulary}"
    inputs = replay_input, plant_cause(replay_input)
    costs = [measure_diagnosis(name, each, options.tokens) for each in inputs]
    print(describe_machine())
    print("\n".join(show(costs)))
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")


if __name__ == "__main__":
    main()
