"""A new body is one file and one row of ``DECODERS``: everything else follows from the row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import ENGINES
from dspark_convert.errors import DialectError, DraftError, Findings, UsageError
from dspark_convert.formats.decoders import DECODERS, DEFAULT_DECODER
from dspark_convert.formats.decoders.base import Decoder, TensorSpec
from dspark_convert.formats.detect import detect
from dspark_convert.formats.overrides import Overrides, parse_settings
from dspark_convert.formats.read import read_draft as read_source
from dspark_convert.formats.rules import FieldRule, KeyPath, Place
from dspark_convert.formats.tensors import expected_tensors
from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.draft import DraftConfig
from fixtures.broken.drafts import Draft, Tensor, read_draft, read_tensors, write_draft

from .helpers import config_of

BASE = "dense_vanilla_bf16"


class ToyParameters(OwnDocument):
    toy_cap: float = Field(gt=0)


def toy_rules(container: KeyPath) -> tuple[FieldRule, ...]:
    cap = FieldRule("toy_cap", (Place((*container, "toy_logit_cap")),))
    return (*DEFAULT_DECODER.rules(container), cap)


def toy_tensors(config: DraftConfig) -> dict[str, TensorSpec]:
    hidden = config.hidden_size
    mix = {
        f"layers.{i}.mix.weight": TensorSpec((hidden, hidden))
        for i in range(config.num_hidden_layers)
    }
    return {"toy_in.weight": TensorSpec((hidden, config.feature_size)), **mix}


def toy_limits(config: DraftConfig, findings: Findings) -> None:
    if config.hidden_size % 64:
        findings.error("heads-invalid", "Toy layers are 64 wide", hint="train another one")


TOY = Decoder(
    name="toy",
    title="Toy",
    architectures=("ToyDSparkModel",),
    model_types=("toy_text",),
    marks=lambda config, names: "toy_in.weight" in names,
    rules=toy_rules,
    tensors=toy_tensors,
    validate=toy_limits,
    parameters=ToyParameters,
    fc="toy_in.weight",
    bidirectional=False,
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECODERS, TOY.name, TOY)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return store(tmp_path / "toy")


def store(folder: Path, *without: str, **keys: Any) -> Path:
    """A Toy draft: heads, embedding and config of a golden one, another body."""
    base = read_draft(BASE)
    named = {"architectures": ["ToyDSparkModel"], "model_type": "toy_text", "toy_logit_cap": 30.0}
    tensors = {
        name: tensor
        for name, tensor in base.tensors.items()
        if not name.startswith(("layers.", "fc.", "norm.", "hidden_norm."))
    }
    specs = {"toy_in.weight": (64, 192), "layers.0.mix.weight": (64, 64)}
    specs |= {"layers.1.mix.weight": (64, 64)}
    tensors |= {name: Tensor.zeros("BF16", *shape) for name, shape in specs.items()}
    kept = {name: tensor for name, tensor in tensors.items() if name not in without}
    write_draft(Draft({**base.config, **named, **keys}, kept), folder)
    return folder


def codes(folder: Path, overrides: Overrides | None = None) -> list[str]:
    report = check_draft(folder, overrides=overrides or Overrides())
    return [finding.code for finding in report.findings if finding.severity == "error"]


def test_it_is_recognised_and_shown(source: Path) -> None:
    inspection = inspect_draft(source)
    assert inspection.draft is not None
    assert inspection.draft.decoder == "toy"
    assert inspection.draft.decoder_parameters == {"toy_cap": 30.0}
    assert inspection.dialect == "dense"
    assert "the decoder is of Toy" in " ".join(inspection.evidence)
    assert codes(source) == []


def test_engines_refuse_it_unless_they_say_that_they_run_it(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in report_engines(source).engines:
        (note,) = engine.notes
        assert (note.code, note.reason) == ("decoder-unread", "it has no Toy decoder")
        assert note.way_out == "none of these engines runs this draft as intended"
    monkeypatch.setitem(
        ENGINES, "vllm", replace(ENGINES["vllm"], decoders={"toy": "models/toy.py"})
    )
    vllm, sglang, *_ = report_engines(source).engines
    assert (vllm.verdict, sglang.verdict) == ("loads", "refuses")
    assert sglang.notes[0].way_out == "serve it with vLLM"
    assert plan_to_dense(source, written_for="vllm").plan.draft.decoder == "toy"
    with pytest.raises(DraftError) as caught:
        plan_to_dense(source, written_for="deepspec")
    assert [finding.code for finding in caught.value.findings] == ["decoder-unread"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({**config_of(BASE), "architectures": ["ToyDSparkModel"]}, ()),
        (config_of(BASE), ("toy_in.weight",)),
        ({**config_of(), "architectures": ["ToyDSparkModel"]}, ()),
    ],
)
def test_its_class_or_its_marks_tell_it(config: dict[str, Any], names: tuple[str, ...]) -> None:
    assert detect(config, names).dialect.body is TOY


def test_other_drafts_keep_the_default_body(golden: Path) -> None:
    draft = inspect_draft(golden / BASE / "checkpoint").draft
    assert draft is not None
    assert (draft.decoder, draft.decoder_parameters) == ("qwen3", {})


def test_its_tensors_and_limits_are_judged(tmp_path: Path) -> None:
    assert codes(store(tmp_path / "lacking", "toy_in.weight")) == ["tensor-missing"]
    assert codes(store(tmp_path / "capped", toy_logit_cap=-1.0)) == ["config-invalid"]
    assert codes(store(tmp_path / "uncapped", toy_logit_cap=None)) == ["key-missing"]
    assert "heads-invalid" in codes(store(tmp_path / "wide", hidden_size=96))
    other_ids = store(tmp_path / "ids", target_layer_ids=[0, 1])
    assert "fc-width-mismatch" in codes(other_ids)
    assert codes(store(tmp_path / "causal", is_causal=True)) == []


def test_its_parameters_can_be_set(source: Path, golden: Path) -> None:
    overrides = Overrides(fields=parse_settings(["toy_cap=20.5"]))
    inspection = inspect_draft(source, overrides=overrides)
    assert inspection.draft is not None
    assert inspection.draft.decoder_parameters == {"toy_cap": 20.5}
    with pytest.raises(UsageError, match="toy_cap"):
        parse_settings(["toy_cap=-1"])
    with pytest.raises(UsageError) as caught:
        plan_to_dense(golden / BASE / "checkpoint", overrides=overrides)
    assert [finding.code for finding in caught.value.findings] == ["bad-setting"]


def test_it_is_converted_and_back(source: Path, tmp_path: Path) -> None:
    nested, flat = tmp_path / "speculators", tmp_path / "dense"
    plan = plan_to_speculators(source, verifier="org/name", keep_verifier_weights=True)
    run_conversion(plan, nested)
    config = json.loads((nested / "config.json").read_text())
    assert config["transformer_layer_config"]["model_type"] == "toy_text"
    assert config["transformer_layer_config"]["toy_logit_cap"] == 30.0
    run_conversion(plan_to_dense(nested), flat)
    before, after = (json.loads((x / "config.json").read_text()) for x in (source, flat))
    assert {key: after[key] for key in ("architectures", "model_type", "toy_logit_cap")} == {
        key: before[key] for key in ("architectures", "model_type", "toy_logit_cap")
    }
    assert inspect_draft(flat).draft == inspect_draft(source).draft
    tensors = [read_tensors(folder / "model.safetensors") for folder in (source, flat)]
    assert tensors[0] == tensors[1]


def test_refusals_list_it() -> None:
    with pytest.raises(DialectError) as caught:
        detect({**config_of(BASE), "architectures": ["Gemma4DSparkModel"]}, ())
    assert "with a Qwen3 or Toy-style decoder" in str(caught.value.findings[0].expected)


def test_a_supported_body_is_no_longer_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    gemma = {**config_of(BASE), "architectures": ["Gemma4DSparkModel"]}
    monkeypatch.setitem(DECODERS, "toy", replace(TOY, architectures=("Gemma4DSparkModel",)))
    assert detect(gemma, ()).dialect.body.name == "toy"


def test_it_is_documented(render_page: Callable[[str], str]) -> None:
    assert "| toy | ToyDSparkModel | toy_text |" in render_page("dialects.md")


def test_its_tensors_are_those_of_its_row(source: Path) -> None:
    draft = inspect_draft(source).draft
    assert draft is not None
    assert "toy_in.weight" in expected_tensors(draft)
    assert "fc.weight" not in expected_tensors(draft)


def test_it_is_not_run_as_another_body(source: Path) -> None:
    """Its tensors have the names of the body that can be run, and mean something else."""
    load = pytest.importorskip("dspark_convert.runtime.load")
    with pytest.raises(DraftError, match="decoder-not-runnable"):
        load.load_source(read_source(source))
