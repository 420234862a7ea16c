"""Diagnosis of trained drafts: healthy ones, one fault for every reading, and pairs of faults.

Each fault makes the declared reading wrong and the reading of its name right. It is planted in the
files where a file can hold it; the tables of numbers are printed (``pytest -s``).
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from dspark_convert.cli.convert import app as convert
from dspark_convert.cli.verify import app
from dspark_convert.errors import DraftError, UsageError
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.sampling import SamplingOptions
from dspark_convert.schemas.diagnosis import Diagnosis, HypothesisResult, ReadingId
from dspark_convert.verification.diagnose import MIN_TEXTS, diagnose
from dspark_convert.verification.hypotheses import HYPOTHESES, NotApplicableError
from dspark_convert.verification.paired import Resampler
from dspark_convert.verification.record import RecordOptions, record
from dspark_convert.verification.suspect import suspect_of_trace
from dspark_convert.verification.trace import Trace, TraceError, open_trace
from tests.runtime.helpers import GOLDEN

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"
TARGET = TINY / "target"
ANCHOR, ONE_PLUS_N, DENSE = "draft_anchor_reduced", "draft_1plusN_reduced", "draft_dense_full"
HEALTHY = (ONE_PLUS_N, ANCHOR, DENSE)

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Plant = Callable[[Config, Tensors], None]


def record_trace(folder: Path, *, every: int, max_new_tokens: int) -> Trace:
    """Every layer of the tiny target on every n-th prompt, at temperature 1."""
    lines = (TINY / "prompts.jsonl").read_text().splitlines(keepends=True)[::every]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(lines))
    options = RecordOptions(
        target=TARGET,
        draft=TINY / ONE_PLUS_N,
        output=folder / "trace.safetensors",
        prompts=prompts,
        layers="all",
        max_new_tokens=max_new_tokens,
        sampling=SamplingOptions(temperature=1.0),
        dtype=torch.float32,
    )
    record(options)
    return open_trace(options.output)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Long enough for faults that cost little."""
    return record_trace(tmp_path_factory.mktemp("long"), every=1, max_new_tokens=48)


@pytest.fixture(scope="module")
def short_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Long enough for faults that cost much."""
    return record_trace(tmp_path_factory.mktemp("short"), every=2, max_new_tokens=16)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """A tiny draft with faults: ``build(base, *plants)`` returns its folder."""

    def copy(base: str, *plants: Plant) -> Path:
        folder = tmp_path / base
        shutil.copytree(TINY / base, folder)
        config: Config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        for plant in plants:
            plant(config, tensors)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        return folder

    return copy


def run(folder: Path, trace: Trace, *, target: Path | None = TARGET) -> Diagnosis:
    header = trace.header
    decode = DecodeOptions(
        max_new_tokens=header.max_new_tokens,
        stop_token_ids=frozenset(header.stop_token_ids),
        temperature=header.sampling.temperature,
    )
    suspect = suspect_of_trace(folder, trace, target=target, dtype=torch.float32)
    return diagnose(suspect, decode)


def show(what: str, diagnosis: Diagnosis) -> None:
    """The table of numbers, for ``pytest -s`` and for failures."""
    lines = [f"{what}: {diagnosis.verdict} {diagnosis.best} ({diagnosis.reason})"]
    for result in diagnosis.hypotheses:
        if result.overlap is not None:
            low, high = result.difference_decision_interval or (0.0, 0.0)
            lines.append(
                f"  {result.id:18} {result.status:9} {result.accepted_length:.3f} "
                f"{result.overlap:.4f} {result.difference or 0:+.4f} ({low:+.4f} to {high:+.4f}) "
                f"{result.accepted_tokens_difference or 0:+.3f}"
            )
    sys.stdout.write("\n".join(["", *lines, ""]))


def follow(fix: str, folder: Path) -> int:
    """Do what the fix says; the exit code."""
    _, *arguments = shlex.split(fix.replace("DRAFT OUTPUT", f"{folder} {folder}-fixed"))
    result = CliRunner().invoke(convert, [*arguments, "--target", str(TARGET), "--dry-run"])
    sys.stdout.write(result.output if result.exit_code else "")
    return result.exit_code


def by_id(diagnosis: Diagnosis) -> dict[str, HypothesisResult]:
    return {result.id: result for result in diagnosis.hypotheses}


# Faults ------------------------------------------------------------------------------------------


def put(**values: object) -> Plant:
    def plant(config: Config, tensors: Tensors) -> None:
        config.update(values)

    return plant


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


def absolute_table(config: Config, tensors: Tensors) -> None:
    """A smaller vocabulary whose table of absolute ids is in range as offsets too."""
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    kept = (ids < 1024 - 320).nonzero().squeeze(1)[:320]
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        tensors[name] = tensors[name][kept].clone()
    tensors["d2t"] = ids[kept].clone()
    del tensors["t2d"]
    config["draft_vocab_size"] = len(kept)


ONE_PLUS_N_DECLARED = put(sample_from_anchor=False, dspark_bonus_anchor=True)
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
SUBTLE = {"layer-ids-minus-1", "layer-ids-plus-1", "last-layer-normed"}


def test_every_reading_has_a_fault() -> None:
    named = {hypothesis.id for hypothesis in HYPOTHESES}
    assert named == set(get_args(ReadingId))
    assert named == {"as-declared", *FAULTS, *IN_RUNTIME}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_better_is_found_for_a_healthy_draft(name: str, trace: Trace) -> None:
    diagnosis = run(TINY / name, trace)
    show(name, diagnosis)
    assert (diagnosis.verdict, diagnosis.best) == ("healthy", "as-declared")
    assert diagnosis.hypotheses[0].id == "as-declared"
    results = by_id(diagnosis)
    for neighbour in ("layer-ids-minus-1", "layer-ids-plus-1"):
        interval = results[neighbour].difference_decision_interval
        assert interval is not None
        assert interval[1] < 0, "the paired difference shows even neighbouring layers"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_files_is_named(
    fault: ReadingId, build: Callable[..., Path], trace: Trace, short_trace: Trace
) -> None:
    base, plants = FAULTS[fault]
    folder = build(base, *plants)
    diagnosis = run(folder, trace if fault in SUBTLE else short_trace)
    show(f"fault for {fault}", diagnosis)
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", fault)
    assert diagnosis.hypotheses[0].id == fault
    fix = diagnosis.hypotheses[0].fix
    assert fix
    if fix.startswith("dspark-convert"):
        assert follow(fix, folder) == 0


@pytest.mark.parametrize("fault", IN_RUNTIME)
def test_a_block_at_another_position_is_named(
    fault: str, short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = DraftModel.compute_context

    def wrong(draft: DraftModel, features: Tensor, positions: Tensor) -> Any:
        return right(draft, features, positions + IN_RUNTIME[fault])

    monkeypatch.setattr(DraftModel, "compute_context", wrong)
    diagnosis = run(TINY / ONE_PLUS_N, short_trace)
    show(f"fault for {fault}", diagnosis)
    assert (diagnosis.verdict, diagnosis.best) == ("cause-found", fault)


PAIRS: dict[tuple[ReadingId, ReadingId], tuple[Plant, ...]] = {
    ("layout-other", "layer-ids-minus-1"): (ONE_PLUS_N_DECLARED, layers(1, 3, 5)),
    ("rope-base", "mask-other"): (rope(rope_theta=10000.0), put(mask_token_id=0)),
    ("target-embedding", "rope-unscaled"): (noise(EMBEDDING), rope(rope_type="linear", factor=4.0)),
    ("layout-other", "target-embedding"): (ONE_PLUS_N_DECLARED, noise(EMBEDDING)),
}


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_of_two_faults_one_is_named(
    pair: tuple[ReadingId, ReadingId], build: Callable[..., Path], trace: Trace
) -> None:
    diagnosis = run(build(DENSE, *PAIRS[pair]), trace)
    show(" and ".join(pair), diagnosis)
    assert diagnosis.verdict == "cause-found"
    assert diagnosis.best in pair


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


# What cannot be decided --------------------------------------------------------------------------


def test_few_texts_decide_nothing(build: Callable[..., Path], short_trace: Trace) -> None:
    """The gain is as large as before, but a bootstrap over so few texts is not to be believed."""
    few = open_trace(short_trace.files[0].path)
    few.header = few.header.model_copy(update={"sequences": few.header.sequences[: MIN_TEXTS - 1]})
    few._places = few._places[: MIN_TEXTS - 1]
    diagnosis = run(build(DENSE, ONE_PLUS_N_DECLARED), few)
    assert (diagnosis.verdict, diagnosis.best) == ("undecided", "as-declared")
    assert "texts" in diagnosis.reason


def test_a_bad_draft_that_no_reading_explains_is_not_called_healthy(
    short_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = [hypothesis for hypothesis in HYPOTHESES if hypothesis.id == "as-declared"]
    monkeypatch.setattr("dspark_convert.verification.diagnose.HYPOTHESES", declared)
    monkeypatch.setattr("dspark_convert.verification.diagnose.USELESS_BELOW", 3.0)
    diagnosis = run(TINY / DENSE, short_trace)
    assert (diagnosis.verdict, diagnosis.best) == ("undecided", "as-declared")
    assert "no reading tried explains it" in diagnosis.reason


def test_without_neighbours_or_a_target_the_reason_is_given(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join((TINY / "prompts.jsonl").read_text().splitlines(True)[:2]))
    options = RecordOptions(
        target=TARGET,
        draft=TINY / DENSE,
        output=tmp_path / "trace.safetensors",
        prompts=prompts,
        max_new_tokens=4,
        top_log_probs=0,
    )
    record(options)
    results = by_id(run(TINY / DENSE, open_trace(options.output), target=None))
    assert "--neighbours" in results["layer-ids-plus-1"].reason
    assert "give its folder" in results["target-head"].reason
    assert results["layout-other"].overlap is None
    assert results["layout-other"].accepted_tokens is not None


def test_texts_that_the_target_did_not_write_are_refused(short_trace: Trace) -> None:
    given = open_trace(short_trace.files[0].path)
    given.header = given.header.model_copy(update={"text_origin": "given"})
    with pytest.raises(UsageError) as refusal:
        run(TINY / DENSE, given)
    assert refusal.value.code == "diagnose-text-given"


def test_a_trace_of_another_target_is_refused(tmp_path: Path, short_trace: Trace) -> None:
    with pytest.raises(TraceError) as refusal:
        run(TINY / DENSE, short_trace, target=GOLDEN / "verifier_bf16")
    assert refusal.value.code == "trace-other-target"


def test_intervals_are_those_of_whole_texts() -> None:
    """For equal anchors it is the interval of a mean, whose ends normal theory gives roughly."""
    values = np.random.default_rng(0).normal(1.0, 2.0, 400)
    low, high = Resampler(400, 0).interval(values, np.ones(400), 0.95)  # type: ignore[misc]
    error = values.std() / 20
    assert abs(low - (values.mean() - 1.96 * error)) < 0.1 * error
    assert abs(high - (values.mean() + 1.96 * error)) < 0.1 * error
    assert Resampler(1, 0).interval(values[:1], np.ones(1), 0.95) is None
    assert Resampler(2, 0).interval(np.array([1.0, np.nan]), np.ones(2), 0.95) is None


# The command -------------------------------------------------------------------------------------


def test_the_command_says_verdict_evidence_and_fix(
    build: Callable[..., Path], short_trace: Trace
) -> None:
    folder = build(DENSE, ONE_PLUS_N_DECLARED)
    arguments = ["diagnose", str(folder), "--trace", str(short_trace.files[0].path)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert shown.exit_code == 1, shown.output
    assert "cause-found layout-other" in shown.stdout
    assert "--layout anchor-first" in shown.stdout


def test_the_command_runs_a_target(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join((TINY / "prompts.jsonl").read_text().splitlines(True)[:2]))
    arguments = ["diagnose", str(TINY / ANCHOR), "--target", str(TARGET), "--json"]
    options = ["--prompts", str(prompts), "--max-new-tokens", "4", "--temperature", "1"]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code == 4, result.output
    diagnosis = Diagnosis.model_validate(json.loads(result.stdout))
    assert (diagnosis.verdict, diagnosis.texts, diagnosis.temperature) == ("undecided", 2, 1.0)
    assert by_id(diagnosis)["layer-ids-plus-1"].accepted_length is not None


@pytest.mark.parametrize("options", [[], ["--trace", "t", "--target", str(TARGET)]])
def test_texts_come_from_one_place(options: list[str]) -> None:
    assert CliRunner().invoke(app, ["diagnose", str(TINY / DENSE), *options]).exit_code == 2


def test_nothing_of_a_reading_is_left_in_the_draft(short_trace: Trace) -> None:
    suspect = suspect_of_trace(TINY / DENSE, short_trace, target=TARGET, dtype=torch.float32)
    assert suspect.subject is not None
    draft = suspect.subject.draft
    config, before = draft.config, {name: x.clone() for name, x in draft.state_dict().items()}
    for hypothesis in HYPOTHESES:
        with suppress(NotApplicableError):
            hypothesis.read(draft, suspect.subject.around)
    assert draft.config == config
    for name, tensor in draft.state_dict().items():
        assert torch.equal(tensor, before[name])
