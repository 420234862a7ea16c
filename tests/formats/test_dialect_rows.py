"""A new dialect is one file and one row of ``DIALECTS``: everything else follows from the row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import DialectError
from dspark_convert.formats.decoders import Decoder
from dspark_convert.formats.detect import detect
from dspark_convert.formats.dialects import DIALECTS, Dialect
from dspark_convert.formats.dialects.shared import LAYER_IDS, aux, draft_rules
from dspark_convert.formats.parse import render
from dspark_convert.formats.rules import KeyPath
from dspark_convert.schemas.source import DraftKeys
from fixtures.broken.drafts import Draft, read_draft, write_draft

from .helpers import parsed

BASE = "dense_vanilla_bf16"


class ToyForgeConfig(DraftKeys):
    toyforge: int


def toy_evidence(config: Mapping[str, Any]) -> tuple[str, ...]:
    return ("toyforge gives its version",) if config.get("toyforge") else ()


def toy_constants(body: Decoder) -> Mapping[KeyPath, Any]:
    return {("toyforge",): 3, ("toy_body", "model_type"): body.model_types[0]}


TOYFORGE = Dialect(
    name="toyforge",
    title="ToyForge",
    mark="toyforge",
    recognise=toy_evidence,
    document=ToyForgeConfig,
    draft_rules=draft_rules(
        (aux("toy_layers", written=True),), ("toy_body",), both_spellings=False
    ),
    constants_of=toy_constants,
    decoder=("toy_body",),
    containers=(("toy_body",),),
    own_keys={("toyforge",): "only ToyForge reads its version"},
    undeclared_layout="ToyForge trains no other",
    added={"toyforge": "ToyForge wants its version"},
    verifiers=lambda config: ("lm_head.weight",),
)


@pytest.fixture(autouse=True)
def toyforge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, TOYFORGE.name, TOYFORGE)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return store(tmp_path / "toyforge")


def store(folder: Path, **keys: Any) -> Path:
    """A golden draft as ToyForge spells it."""
    base = read_draft(BASE)
    document = render(parsed(base.config), TOYFORGE)
    write_draft(Draft({**document, **keys}, base.tensors), folder)
    return folder


def test_its_keys_are_where_its_row_says(source: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    assert config["toyforge"] == 3
    assert config["toy_body"]["hidden_size"] == 64
    assert "hidden_size" not in config
    assert config["toy_layers"] == [1, 2, 3]
    assert LAYER_IDS not in config


def test_it_is_recognised_and_shown(source: Path) -> None:
    inspection = inspect_draft(source)
    assert inspection.dialect == "toyforge"
    assert inspection.evidence == ("toyforge gives its version",)
    assert inspection.draft == parsed(read_draft(BASE).config)
    assert report_engines(source).dialect == "toyforge"


def test_its_types_and_its_own_tensors_are_judged(source: Path, tmp_path: Path) -> None:
    wrong = check_draft(store(tmp_path / "wrong", toyforge="three"))
    assert [(f.code, f.key) for f in wrong.findings] == [("config-invalid", "toyforge")]
    warned = [f for f in check_draft(source).findings if f.code == "own-weights-overwritten"]
    assert [finding.tensor for finding in warned] == ["lm_head.weight"]


def test_faults_are_told_as_it_spells_them(tmp_path: Path) -> None:
    (finding,) = check_draft(store(tmp_path / "late", toy_layers=[3, 2, 1])).findings[:1]
    assert (finding.code, finding.key) == ("layer-ids-invalid", "toy_layers")
    assert "[3, 2, 1]" in str(finding.found)


def test_it_is_converted(source: Path, tmp_path: Path) -> None:
    manifest = run_conversion(plan_to_dense(source), tmp_path / "dense")
    assert manifest.dialect == "toyforge"
    reasons = {step.source: step.reason for step in manifest.keys if step.action == "dropped"}
    assert reasons["toyforge"] == "only ToyForge reads its version"
    assert inspect_draft(tmp_path / "dense").draft == inspect_draft(source).draft
    nested = plan_to_speculators(source, verifier="org/name", keep_verifier_weights=True)
    run_conversion(nested, tmp_path / "speculators")
    again = inspect_draft(tmp_path / "speculators")
    assert again.dialect == "speculators"
    assert again.draft == inspect_draft(source).draft


def test_the_reader_of_an_unknown_config_is_told_of_it() -> None:
    with pytest.raises(DialectError) as caught:
        detect({}, ())
    assert "or toyforge (ToyForge)" in str(caught.value.findings[0].expected)
    with pytest.raises(DialectError) as caught:
        detect({"architectures": ["Gemma4DSparkModel"]}, ())
    assert "ToyForge, with a Qwen3-style decoder" in str(caught.value.findings[0].expected)


def test_it_is_documented(render_page: Callable[[str], str]) -> None:
    page = render_page("dialects.md")
    assert "### ToyForge" in page
    assert "| target_layer_ids | **`toy_layers`** |" in page
