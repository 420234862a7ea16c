"""Readings replayed together: the numbers of each alone, and nothing run twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark_convert.diagnosis import shared_replay as together
from dspark_convert.diagnosis.readings import (
    HYPOTHESES,
    NotApplicableError,
    Reading,
    TargetFacts,
    reread,
)
from dspark_convert.diagnosis.shared_replay import SharedReplay
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.replay.replay import Replay, ReplayOptions, replay_sequence
from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.replay_steps import ReplaySteps
from dspark_convert.schemas.diagnosis import READING_IDS, ReadingId
from dspark_convert.traces.trace import TraceSequence
from tests.replay.test_replay import complete, record
from tests.runtime.helpers import (
    VARIANTS,
    golden_draft,
    golden_target,
    make_config,
    make_draft,
    random_prompts,
)
from tests.traces.helpers import header_document, make_header

DECODE = DecodeOptions(max_new_tokens=11, temperature=1.0)
EXTRA = 8  # tokens past the limit: one more than any draft here proposes
OPTIONS = ReplayOptions(decode=DECODE, target_vocab_size=320, top_temperature=1.0)


class CountingSteps(ReplaySteps):
    """The plain steps, and on how many positions or anchors each was taken."""

    def __init__(self) -> None:
        super().__init__("it counts")
        self.inputs = self.contexts = self.blocks = 0

    def compute_input(self, draft: DraftModel, features: Sequence[Tensor]) -> Tensor:
        self.inputs += len(features[0])
        return super().compute_input(draft, features)

    def project_context(
        self, draft: DraftModel, input_TH: Tensor, positions_T: Tensor
    ) -> ContextKV:
        self.contexts += len(positions_T)
        return super().project_context(draft, input_TH, positions_T)

    def run_blocks(
        self, draft: DraftModel, context: ContextKV, x_MWBH: Tensor, anchors: range
    ) -> Tensor:
        self.blocks += x_MWBH.shape[0] * x_MWBH.shape[1]
        return super().run_blocks(draft, context, x_MWBH, anchors)


@cache
def texts() -> list[TraceSequence]:
    """Two texts of the golden verifier with the features of all its layers."""
    target = golden_target()
    prompts = random_prompts(320, [4, 11])
    written = [list(prompt) for prompt in prompts]
    lengths = [len(prompt) + DECODE.max_new_tokens + EXTRA for prompt in prompts]
    complete(target, written, lengths, DECODE, torch.Generator().manual_seed(0))
    return record(target, written, prompts, DECODE)


def target_facts() -> TargetFacts:
    """Everything that a reading may ask for."""
    target = golden_target()
    facts = {"hidden_size": target.hidden_size, "vocab_size": 320, "num_hidden_layers": 4}
    header = make_header(
        target={**header_document()["target"], **facts}, layer_ids=list(range(-1, 4))
    )
    tensors = {
        EMBEDDING: target.model.model.embed_tokens.weight,
        LM_HEAD: target.model.lm_head.weight,
    }
    # Not the draft's own, as that of the golden verifier is.
    tensors = {name: tensor.roll(1, 0) for name, tensor in tensors.items()}
    return TargetFacts(
        header,
        config={"rope_theta": 500.0},
        tensors=tensors,
        norm=target.model.model.norm,
        special_token_ids=(5, 6),
    )


def everything(layout: str) -> DraftModel:
    """A draft to which nearly every reading applies."""
    hidden = golden_target().hidden_size
    config = make_config(
        hidden_size=hidden,
        vocab_size=320,
        draft_vocab_size=100,
        mask_token_id=7,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=5,
        sliding_window_non_causal=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
        target_layer_ids=(1, 3),
        layout=layout,
    )
    # Ids that are in range, and differ, both as offsets and as absolute ids.
    return make_draft(config, table=range(100))


CASES = [*VARIANTS, "anchor_first", "bonus_anchor"]


def find(case: str) -> DraftModel:
    return golden_draft(case) if case in VARIANTS else everything(case)


@cache
def readings_of(case: str) -> tuple[list[ReadingId], list[Reading]]:
    """Every reading of a case, and the hypothesis of each; shared, so not to be changed."""
    return list_readings(find(case))


@cache
def scores_alone(case: str, text: int) -> list[Replay]:
    """What the readings of a case score one by one on a text; shared, so not to be changed."""
    return replay_alone(readings_of(case)[1], texts()[text])


def list_readings(
    draft: DraftModel, facts: TargetFacts | None = None
) -> tuple[list[ReadingId], list[Reading]]:
    """Readings of all hypotheses, and the hypothesis of each."""
    names: list[ReadingId] = []
    readings: list[Reading] = []
    for hypothesis in HYPOTHESES:
        with suppress(NotApplicableError):
            for reading in hypothesis.read(draft, facts or target_facts()):
                names.append(hypothesis.id)
                readings.append(reading)
    return names, readings


def replay_alone(
    readings: Sequence[Reading], text: TraceSequence, options: ReplayOptions = OPTIONS
) -> list[Replay]:
    return [
        replay_sequence(reading.draft, reading.edit_text(text), options) for reading in readings
    ]


def replay_together(
    readings: Sequence[Reading], text: TraceSequence, **changes: Any
) -> dict[int, Replay]:
    return dict(SharedReplay(readings).replay(text, OPTIONS, **changes))


def assert_equal(found: Replay, wanted: Replay, stride: int = 1) -> None:
    """To the last bit: the same code ran on the same numbers in the same chunks."""
    assert found.overlap is not None
    assert wanted.overlap is not None
    pairs = [
        (getattr(found.expectation, name), getattr(wanted.expectation, name))
        for name in ("acceptance", "proposed", "left")
    ]
    pairs += [(found.draftable, wanted.draftable), *zip(found.overlap, wanted.overlap, strict=True)]
    for one, other in pairs:
        np.testing.assert_array_equal(one, other[::stride])


@pytest.mark.parametrize("case", CASES)
def test_every_reading_scores_as_alone(case: str) -> None:
    _, readings = readings_of(case)
    for number, text in enumerate(texts()):
        found = replay_together(readings, text)
        assert sorted(found) == list(range(len(readings)))
        for index, wanted in enumerate(scores_alone(case, number)):
            assert_equal(found[index], wanted)


@pytest.mark.parametrize("case", ["spec_swa_default_reduced_bf16", "bonus_anchor"])
def test_a_sample_scores_as_these_anchors_do_among_all(case: str) -> None:
    _, readings = readings_of(case)
    for number, text in enumerate(texts()):
        found = replay_together(readings, text, stride=4)
        for index, wanted in enumerate(scores_alone(case, number)):
            sampled = found[index].expectation
            assert len(sampled.left) == 3
            np.testing.assert_allclose(
                sampled.acceptance, wanted.expectation.acceptance[::4], rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("case", CASES)
def test_every_reading_moves_the_scores(case: str) -> None:
    """So that two readings that were merged by mistake would not score as alone."""
    names, _ = readings_of(case)
    declared, *others = scores_alone(case, 1)
    for name, other in zip(names[1:], others, strict=True):
        both = (replay.expectation.acceptance for replay in (declared, other))
        width = min(acceptance.shape[1] for acceptance in both)
        assert not np.allclose(
            declared.expectation.acceptance[:, :width], other.expectation.acceptance[:, :width]
        ), name


def test_every_hypothesis_is_among_the_cases() -> None:
    names = {name for case in CASES for name in readings_of(case)[0]}
    assert names == set(READING_IDS)


def test_what_is_shared() -> None:
    names, readings = list_readings(everything("anchor_first"))
    backbones = [[names[index] for index in group] for group in SharedReplay(readings).backbones]
    heads = ["layout-other", "d2t-absolute", "markov-off", "markov-late", "target-head"]
    masks = [["mask-other"]] * names.count("mask-other")
    assert sorted(backbones) == sorted(
        [
            ["as-declared", *heads],
            *masks,
            ["sliding-full"],
            ["sliding-causal"],
            ["target-embedding"],
            ["rope-base"],
            ["rope-base"],
            ["rope-base"],
            ["rope-unscaled"],
            ["positions-plus-1"],
            ["positions-minus-1"],
            ["layer-ids-minus-1"],
            ["last-layer-normed"],
        ]
    )


def test_nothing_is_run_twice() -> None:
    """Inputs: of the declared layers, of those below, with the last one normed. Contexts: of these,
    and for the declared layers of three bases, without scaling, and of two shifts."""
    names, readings = list_readings(everything("anchor_first"))
    steps, text = CountingSteps(), texts()[0]
    options = replace(OPTIONS, steps=steps)
    shared = SharedReplay(readings)
    list(shared.replay(text, options))
    anchors = DECODE.max_new_tokens
    positions = text.first_generated + anchors - 1
    assert steps.inputs == 3 * positions
    assert steps.contexts == (3 + 3 + 1 + 2) * positions
    assert steps.blocks == len(shared.backbones) * anchors
    assert len(shared.backbones) == len(names) - 5


def test_one_input_and_one_context_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, readings = list_readings(everything("anchor_first"))
    alive: dict[str, list[weakref.ref[Any]]] = {"read_input": [], "project_input": []}

    def watch(name: str) -> None:
        make = getattr(together, name)

        def made(*arguments: Any) -> Any:
            assert not [made for made in alive[name] if made() is not None], name
            result = make(*arguments)
            alive[name].append(weakref.ref(result if name == "read_input" else result.keys[0]))
            return result

        monkeypatch.setattr(together, name, made)

    for name in alive:
        watch(name)
    gc.disable()
    try:
        list(SharedReplay(readings).replay(texts()[0], OPTIONS))
    finally:
        gc.enable()
    assert [len(made) for made in alive.values()] == [3, 9]


def change_one_thing(draft: DraftModel) -> Iterator[DraftModel]:
    """The draft again, with one weight, field, module or class that is not the same."""
    for name, weight in draft.state_dict().items():
        if not name.startswith(("lm_head", "markov_head", "confidence_head")):
            yield reread(draft, weights={name: weight.clone()})
    yield reread(draft, {"rms_norm_eps": 1e-5})
    yield reread(draft, {"sliding_window": 4})
    yield reread(draft, kind=type("AnotherDraft", (DraftModel,), {}))
    other = reread(draft)
    other.norm = torch.nn.Identity()
    yield other


def test_whatever_else_differs_keeps_readings_apart() -> None:
    draft = everything("anchor_first")
    same, apart = (Reading(reread(draft), None) for _ in range(2)), change_one_thing(draft)
    readings = [*same, *(Reading(changed, None) for changed in apart)]
    assert len(readings) > 20
    assert len(SharedReplay(readings).backbones) == len(readings) - 1
