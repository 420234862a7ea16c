"""A new quantisation scheme is a row of ``SCHEMES``: it is carried, or refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import ENGINES
from dspark_convert.errors import DialectError
from dspark_convert.formats.decoders.base import TensorSpec
from dspark_convert.formats.quantisation import SCHEMES, Scheme
from dspark_convert.formats.read import read_draft as read
from fixtures.broken.drafts import Draft, Tensor, read_draft, read_tensors, write_draft

BASE = "dense_vanilla_bf16"
GATE = "layers.0.mlp.gate_proj"
DECLARED = {"quant_method": "toy-int8"}


def toy_companions(name: str, spec: TensorSpec) -> Mapping[str, TensorSpec]:
    """One scale for each row of a matrix of the MLP."""
    if ".mlp." not in name:
        return {name: spec}
    scale = name.removesuffix("weight") + "weight_scale"
    return {
        name: replace(spec, dtypes=frozenset({"I8"})),
        scale: TensorSpec((spec.shape[0], 1), frozenset({"F32"})),
    }


TOY = Scheme(
    name="toy-int8",
    what="stores one scale per row",
    recognise=lambda config, names: config.get("quantization_config") == DECLARED,
    served_by="ToyServe",
    companions=toy_companions,
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, TOY.name, TOY)


def store(folder: Path, scale: Tensor | None, weight: str = "I8") -> Path:
    """A golden draft with one quantised matrix, [96, 64]."""
    base = read_draft(BASE)
    raw = Tensor(weight, (96, 64), bytes(range(96)) * 64)
    tensors = {**base.tensors, f"{GATE}.weight": raw}
    if scale is not None:
        tensors[f"{GATE}.weight_scale"] = scale
    write_draft(Draft({**base.config, "quantization_config": DECLARED}, tensors), folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return store(tmp_path / "source", Tensor.zeros("F32", 96, 1))


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in check_draft(folder).findings if finding.severity == "error"]


def test_it_is_recognised_and_its_tensors_are_right(source: Path) -> None:
    assert codes(source) == []
    assert read(source).detection.scheme is TOY
    assert inspect_draft(source).dtypes["I8"] == 96 * 64


def test_engines_refuse_it_unless_they_say_that_they_read_it(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {engine.notes[0].code for engine in report_engines(source).engines}
    assert refused == {"quantisation-unread"}
    monkeypatch.setitem(ENGINES, "vllm", replace(ENGINES["vllm"], schemes={"toy-int8": "toy.py"}))
    vllm, sglang, *_ = report_engines(source).engines
    assert (vllm.verdict, sglang.verdict) == ("loads", "refuses")


def test_it_is_carried(source: Path, tmp_path: Path) -> None:
    run_conversion(plan_to_dense(source), tmp_path / "out")
    before, after = (read_tensors(x / "model.safetensors") for x in (source, tmp_path / "out"))
    assert after == before
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"] == DECLARED
    assert codes(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("scale", "weight", "code"),
    [
        (Tensor.zeros("F32", 96, 2), "I8", "tensor-shape"),
        (Tensor.zeros("BF16", 96, 1), "I8", "tensor-dtype"),
        (Tensor.zeros("F32", 96, 1), "U8", "tensor-dtype"),
        (None, "I8", "tensor-dtype"),
    ],
)
def test_companions_that_do_not_fit_are_refused(
    scale: Tensor | None, weight: str, code: str, tmp_path: Path
) -> None:
    assert codes(store(tmp_path / "wrong", scale, weight)) == [code]


def test_what_is_not_carried_is_refused_by_its_name(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCHEMES, TOY.name, replace(TOY, companions=None))
    with pytest.raises(DialectError) as caught:
        plan_to_dense(source)
    (finding,) = caught.value.findings
    assert (finding.code, finding.found) == ("unsupported-dialect", "toy-int8")
    assert finding.hint == "served by: ToyServe"


def test_what_is_of_no_scheme_is_refused_as_before(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(SCHEMES, TOY.name)
    assert codes(source) == ["quantised-draft"]


def test_it_is_documented(render_page: Callable[[str], str]) -> None:
    page = render_page("dialects.md")
    assert "| toy-int8 | stores one scale per row | copied as it is |" in page
