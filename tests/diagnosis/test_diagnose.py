"""Diagnosis of trained drafts: healthy ones, one fault for every reading, and pairs of faults.

Each fault makes the declared reading wrong and the reading of its name right. It is planted in the
files where a file can hold it; the tables of numbers are printed (``pytest -s``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from dspark_convert.cli.convert import app as convert
from dspark_convert.diagnosis.readings import HYPOTHESES
from dspark_convert.errors import DraftError
from dspark_convert.reports.text import number
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.schemas.diagnosis import READING_IDS, Diagnosis, ReadingId
from dspark_convert.traces.trace import Trace
from tests.conftest import mostly_slow
from tests.runtime.helpers import GOLDEN

from .helpers import (
    ANCHOR,
    DENSE,
    ONE_PLUS_N,
    ONE_PLUS_N_DECLARED,
    TARGET,
    TINY,
    Config,
    Plant,
    Tensors,
    absolute_table,
    by_id,
    put,
    record_trace,
    run,
)

HEALTHY = (ONE_PLUS_N, ANCHOR, DENSE)


def show(what: str, diagnosis: Diagnosis) -> None:
    """The table of numbers, for ``pytest -s`` and for failures."""
    lines = [f"{what}: {diagnosis.verdict} {diagnosis.best} ({diagnosis.reason})"]
    for result in diagnosis.hypotheses:
        if result.overlap is not None:
            low, high = result.difference_decision_interval or (0.0, 0.0)
            lines.append(
                f"  {result.id:18} {result.status:9} {number(result.accepted_length)} "
                f"{result.overlap:.4f} {result.difference or 0:+.4f} ({low:+.4f} to {high:+.4f}) "
                f"{result.accepted_tokens_difference or 0:+.3f}"
            )
    sys.stdout.write("\n".join(["", *lines, ""]))


def follow(fix: str, folder: Path) -> Path:
    """Do what the fix says; the draft that comes of it."""
    output = folder.with_name("fixed")
    _, *arguments = shlex.split(fix.replace("DRAFT OUTPUT", f"{folder} {output}"))
    result = CliRunner().invoke(convert, [*arguments, "--target", str(TARGET)])
    assert result.exit_code == 0, result.output
    return output


# Faults ------------------------------------------------------------------------------------------


def layers(*layer_ids: int) -> Plant:
    """Dense ids, and the copy in vLLM's numbering that the converter wrote."""
    aux = [layer_id + 1 for layer_id in layer_ids]
    return put(target_layer_ids=list(layer_ids), eagle_aux_hidden_state_layer_ids=aux)


def rope(**parameters: object) -> Plant:
    def plant(config: Config, tensors: Tensors) -> None:
        del config["rope_theta"]
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0, **parameters}

    return plant


def sliding(window: int, *, non_causal: bool) -> Plant:
    def plant(config: Config, tensors: Tensors) -> None:
        config["sliding_window_non_causal"] = non_causal
        config["transformer_layer_config"].update(
            layer_types=["sliding_attention"] * 2, sliding_window=window, use_sliding_window=True
        )

    return plant


def variant(name: str) -> Plant:
    """Tensors that were trained otherwise (``fixtures/tiny/variants.py``)."""

    def plant(config: Config, tensors: Tensors) -> None:
        tensors.update(load_file(TINY / "variants" / f"{name}.safetensors"))

    return plant


def noise(name: str) -> Plant:
    """Random values of the same scale."""

    def plant(config: Config, tensors: Tensors) -> None:
        old = tensors[name].float()
        drawn = torch.randn(old.shape, generator=torch.Generator().manual_seed(0))
        tensors[name] = (drawn * old.std()).to(tensors[name].dtype)

    return plant


LAST_LAYER = put(aux_hidden_state_layer_ids=[1, 3, 6])
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"

FAULTS: dict[ReadingId, tuple[str, tuple[Plant, ...]]] = {
    "layout-other": (DENSE, (ONE_PLUS_N_DECLARED,)),
    "layer-ids-minus-1": (DENSE, (layers(1, 3, 5),)),
    "layer-ids-plus-1": (DENSE, (layers(-1, 1, 3),)),
    "last-layer-normed": (ANCHOR, (variant("last_layer"), LAST_LAYER)),
    "d2t-absolute": (ANCHOR, (absolute_table,)),
    "markov-off": (ANCHOR, (noise("markov_head.markov_w2.weight"),)),
    "markov-late": (ANCHOR, (variant("markov_late"),)),
    "mask-other": (ONE_PLUS_N, (put(mask_token_id=0),)),
    "rope-base": (DENSE, (rope(rope_theta=10000.0),)),
    "rope-unscaled": (DENSE, (rope(rope_type="linear", factor=4.0),)),
    "sliding-full": (ANCHOR, (sliding(8, non_causal=True),)),
    "sliding-causal": (ANCHOR, (variant("sliding_causal"), sliding(64, non_causal=True))),
    "target-embedding": (DENSE, (noise(EMBEDDING),)),
    "target-head": (DENSE, (noise(HEAD),)),
}
IN_RUNTIME = {"positions-plus-1": +1, "positions-minus-1": -1}
"""Context positions moved by this much, wherever a draft is run."""
FIXED_BY_COMMAND = {
    "layout-other",
    "layer-ids-minus-1",
    "layer-ids-plus-1",
    "d2t-absolute",
    "mask-other",
    "rope-base",
    "rope-unscaled",
    "sliding-full",
}
SUBTLE = {"layer-ids-minus-1", "layer-ids-plus-1", "last-layer-normed"}


def test_every_reading_has_a_fault() -> None:
    named = [hypothesis.id for hypothesis in HYPOTHESES]
    assert tuple(named) == READING_IDS, "schemas/diagnosis.py: READING_IDS"
    assert {*named} == {"as-declared", *FAULTS, *IN_RUNTIME}


@pytest.fixture(scope="module")
def greedy_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """As long as ``trace``, at temperature 0."""
    folder = tmp_path_factory.mktemp("greedy")
    return record_trace(folder, every=1, max_new_tokens=48, temperature=0.0)


HEALTHY_RUNS = [
    (name, texts, temperature)
    for name in HEALTHY
    for texts, temperature in (("trace", 1.0), ("greedy_trace", 0.0))
]


@pytest.mark.parametrize(
    ("name", "texts", "temperature"),
    mostly_slow(HEALTHY_RUNS, fast=[(ANCHOR, "trace", 1.0)]),
)
def test_nothing_better_is_found_for_a_healthy_draft(
    name: str, texts: str, temperature: float, request: pytest.FixtureRequest
) -> None:
    diagnosis = run(TINY / name, request.getfixturevalue(texts))
    show(f"{name}, {texts}", diagnosis)
    assert (diagnosis.verdict, diagnosis.best) == ("healthy", "as-declared")
    assert (diagnosis.temperature, diagnosis.overlap_temperature) == (temperature, 1.0)
    assert diagnosis.hypotheses[0].id == "as-declared"
    results = by_id(diagnosis)
    for neighbour in ("layer-ids-minus-1", "layer-ids-plus-1"):
        interval = results[neighbour].difference_decision_interval
        assert interval is not None
        assert interval[1] < 0, "the paired difference shows even neighbouring layers"


@pytest.mark.parametrize("fault", mostly_slow(FAULTS, fast=["layout-other", "target-head"]))
def test_a_fault_in_the_files_is_named(
    fault: ReadingId, build: Callable[..., Path], trace: Trace, short_trace: Trace
) -> None:
    base, plants = FAULTS[fault]
    folder = build(base, *plants)
    recorded = trace if fault in SUBTLE else short_trace
    diagnosis = run(folder, recorded)
    show(f"fault for {fault}", diagnosis)
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", fault)
    assert diagnosis.hypotheses[0].id == fault
    fix = diagnosis.hypotheses[0].fix
    assert fix
    assert fix.startswith("dspark-convert") == (fault in FIXED_BY_COMMAND)
    if fault in FIXED_BY_COMMAND:
        mended = run(follow(fix, folder), recorded)
        show(f"{fault}, mended", mended)
        assert (mended.verdict, mended.best) == ("healthy", "as-declared")


@pytest.mark.parametrize("fault", mostly_slow(IN_RUNTIME, fast=["positions-plus-1"]))
def test_a_block_at_another_position_is_named(
    fault: str, short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = DraftModel.project_context

    def wrong(draft: DraftModel, inputs: Tensor, positions: Tensor) -> Any:
        return right(draft, inputs, positions + IN_RUNTIME[fault])

    monkeypatch.setattr(DraftModel, "project_context", wrong)
    diagnosis = run(TINY / ONE_PLUS_N, short_trace)
    show(f"fault for {fault}", diagnosis)
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", fault)


# Causes that need no run -------------------------------------------------------------------------


def zero_table(config: Config, tensors: Tensors) -> None:
    tensors["d2t"].zero_()
    del tensors["t2d"]


def zero_markov(config: Config, tensors: Tensors) -> None:
    tensors["markov_head.markov_w2.weight"].zero_()


@pytest.mark.parametrize(
    ("cause", "plant"), [("d2t-zero", zero_table), ("untrained-head", zero_markov)]
)
def test_a_static_cause_is_found(
    cause: str, plant: Plant, build: Callable[..., Path], short_trace: Trace
) -> None:
    diagnosis = run(build(ANCHOR, plant), short_trace)
    assert (diagnosis.verdict, diagnosis.best, diagnosis.texts) == ("cause-found", cause, 0)
    assert [result.accepted_length for result in diagnosis.hypotheses] == [None]


def test_a_draft_of_another_target_is_named(short_trace: Trace) -> None:
    folder = GOLDEN / "dense_vanilla_bf16" / "checkpoint"
    diagnosis = run(folder, short_trace)
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", "other-target")
    assert "hidden_size" in diagnosis.reason


def test_layers_beyond_the_target_are_refused(
    build: Callable[..., Path], short_trace: Trace
) -> None:
    with pytest.raises(DraftError) as refusal:
        run(build(DENSE, layers(0, 2, 6), put(num_target_layers=None)), short_trace)
    assert refusal.value.code == "layer-ids-invalid"
