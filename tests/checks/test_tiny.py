"""The trained tiny pair: healthy drafts draft, broken ones do not, and the output never changes.

Accepted lengths are greedy, bonus token included, pooled over the bundled prompts. Run with
``-rP`` to see the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - the modules below need PyTorch
from dspark_convert.formats.overrides import Overrides
from dspark_convert.replay.intervals import ratio_interval95
from dspark_convert.replay.replay import ReplayOptions, replay_sequence
from dspark_convert.runtime import (
    CausalTarget,
    DecodeOptions,
    DecodeResult,
    DraftModel,
    decode,
    decode_plain,
    load_draft,
    load_target,
)
from dspark_convert.schemas.draft import Layout
from dspark_convert.traces.generate import TextInput, TextSettings, sample_texts
from dspark_convert.traces.tokenizer import load_tokenizer
from tests.conftest import ROOT, mostly_slow
from tests.diagnosis.helpers import absolute_table

TINY = ROOT / "fixtures" / "tiny"
DRAFTS = ("draft_1plusN_reduced", "draft_anchor_reduced", "draft_dense_full")
ONE = DRAFTS[0]
OPTIONS = DecodeOptions(max_new_tokens=48)


@cache
def target() -> CausalTarget:
    return load_target(TINY / "target", dtype=torch.float32)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    tokenizer = load_tokenizer(TINY / "target")
    assert tokenizer is not None
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    texts = [json.loads(line)["prompt"] for line in lines]
    return tuple(tuple(tokenizer(text)["input_ids"]) for text in texts)


def load(name: str, overrides: Overrides | None = None) -> DraftModel:
    options = {} if overrides is None else {"overrides": overrides}
    return load_draft(TINY / name, dtype=torch.float32, target=TINY / "target", **options)


def run(draft: DraftModel) -> tuple[DecodeResult, ...]:
    return decode(target(), draft, prompts(), OPTIONS)


def inputs() -> list[TextInput]:
    return [TextInput(id=str(index), prompt_ids=prompt) for index, prompt in enumerate(prompts())]


def text_settings(draft: DraftModel) -> TextSettings:
    return TextSettings(
        layer_ids=draft.config.target_layer_ids,
        max_generated=OPTIONS.max_new_tokens + draft.config.num_speculative_tokens + 1,
        sampling=OPTIONS.sampling,
        stop_token_ids=frozenset(),
        top_log_probs=4,
        feature_dtype=torch.float32,
    )


def accepted_length(results: tuple[DecodeResult, ...]) -> float:
    return sum(result.committed for result in results) / sum(
        len(result.rounds) for result in results
    )


@cache
def healthy(name: str) -> tuple[DecodeResult, ...]:
    return run(load(name))


@cache
def plain_outputs() -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(decode_plain(target(), prompt, OPTIONS)) for prompt in prompts())


@pytest.mark.parametrize("name", DRAFTS)
def test_speculative_output_is_the_plain_output(name: str) -> None:
    assert tuple(tuple(result.token_ids) for result in healthy(name)) == plain_outputs()


@pytest.mark.parametrize("name", mostly_slow(DRAFTS, fast=[ONE]))
def test_replay_makes_the_rounds_of_the_loop(name: str) -> None:
    """Temperature 0, every prompt: the same anchors, the same number of accepted tokens."""
    draft = load(name)
    results = healthy(name)
    texts = list(sample_texts(target(), inputs(), text_settings(draft), batch_size=8))
    settings = ReplayOptions(decode=OPTIONS, target_vocab_size=target().vocab_size)
    assert len(texts) == len(results) == len(prompts())
    for text, prompt, result in zip(texts, prompts(), results, strict=True):
        decoded = [(r.anchor_position - len(prompt), r.accepted) for r in result.rounds]
        replayed = replay_sequence(draft, text, settings)
        assert replayed.expectation.certain_rounds() == tuple(decoded)


@pytest.mark.parametrize("name", DRAFTS)
def test_healthy_drafts_commit_two_tokens_a_round(name: str) -> None:
    assert accepted_length(healthy(name)) >= 2.0


def other_layout(name: str) -> DraftModel:
    layout = load(name).config.layout
    other = Layout.ANCHOR_FIRST if layout is Layout.BONUS_ANCHOR else Layout.BONUS_ANCHOR
    return load(name, Overrides(layout=other))


def markov_zeroed(name: str) -> DraftModel:
    draft = load(name)
    assert draft.markov_head is not None
    draft.markov_head.markov_w2.weight.zero_()
    return draft


def random_weights(name: str) -> DraftModel:
    draft, generator = load(name), torch.Generator().manual_seed(0)
    for parameter in draft.parameters():
        parameter.normal_(std=0.02, generator=generator)
    return draft


def embedding_of_another_model(name: str) -> DraftModel:
    draft, generator = load(name), torch.Generator().manual_seed(0)
    weight = draft.embed_tokens.weight
    weight.normal_(std=float(weight.std()), generator=generator)
    return draft


def layer_ids_one_too_high(name: str) -> DraftModel:
    ids = [layer_id + 1 for layer_id in load(name).config.target_layer_ids]
    return load(name, Overrides(fields={"target_layer_ids": ids}))


BROKEN: Mapping[str, Callable[[str], DraftModel]] = {
    "other layout": other_layout,
    "Markov head zeroed": markov_zeroed,
    "random weights": random_weights,
    "embedding of another model": embedding_of_another_model,
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("name", mostly_slow(DRAFTS, fast=[ONE]))
def test_a_broken_draft_is_clearly_below(name: str, fault: str) -> None:
    right, wrong = accepted_length(healthy(name)), accepted_length(run(BROKEN[fault](name)))
    print(f"{name:22} {right:.3f}   {fault:28} {wrong:.3f}")  # noqa: T201
    assert wrong < 0.9 * right


@pytest.mark.parametrize("name", mostly_slow(DRAFTS[:2], fast=[ONE]))
def test_a_table_of_absolute_ids_that_is_read_as_offsets_is_clearly_below(
    name: str, build: Callable[..., Path]
) -> None:
    folder = build(name, absolute_table)
    right, wrong = (
        accepted_length(
            run(
                load_draft(
                    folder,
                    dtype=torch.float32,
                    target=TINY / "target",
                    overrides=Overrides(d2t=reading),
                )
            )
        )
        for reading in ("absolute", "offsets")
    )
    print(f"{name:22} {right:.3f}   {'absolute ids read as offsets':28} {wrong:.3f}")  # noqa: T201
    assert right >= 2.0
    assert wrong < 1.1


@pytest.mark.parametrize("name", mostly_slow(DRAFTS, fast=[ONE]))
def test_a_decode_run_cannot_tell_layer_ids_off_by_one(name: str) -> None:
    """Neighbouring layers carry nearly the same stream: the drop is smaller than the noise of a
    run of this size (the 1+N draft even gains). Paired replay on a trace is what tells them apart.
    """
    bounds = [interval(healthy(name)), interval(run(layer_ids_one_too_high(name)))]
    print(f"{name:22} {bounds[0]}   {'layer ids one too high':28} {bounds[1]}")  # noqa: T201
    assert bounds[0][0] < bounds[1][1]
    assert bounds[1][0] < bounds[0][1]


def interval(results: tuple[DecodeResult, ...]) -> tuple[float, float]:
    bounds = ratio_interval95(
        np.array([float(result.committed) for result in results]),
        np.array([float(len(result.rounds)) for result in results]),
        seed=0,
    )
    assert bounds is not None
    return bounds


def test_the_fixture_is_small() -> None:
    files = [path for path in Path(TINY).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= 6_000_000
