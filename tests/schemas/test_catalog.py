"""The published schemas: in step with the models, and right by an independent validator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from dspark_convert.schemas.base import OwnDocument, SourceDocument
from dspark_convert.schemas.catalog import PUBLISHED, drifted, schema_file, schema_text
from fixtures.broken import CASES, build

VARIANTS = (
    "spec_vanilla_full_anchor_fp32",
    "spec_vanilla_reduced_anchor_bf16",
    "spec_gated_reduced_1plusN_bf16",
    "spec_rnn_full_anchor_sharded_bf16",
    "spec_vanilla_reduced_legacykey_bf16",
    "spec_swa_default_reduced_bf16",
    "spec_nomarkov_noconf_full_bf16",
    "dense_vanilla_bf16",
    "dense_gated_fp32",
    "dense_rnn_bf16",
)
OF_OTHERS = {"dense-config", "speculators-config"}
OWN = sorted(set(PUBLISHED) - OF_OTHERS)


def validate(root: Path, name: str, document: Any) -> None:
    schema = json.loads((root / "schemas" / f"{name}.schema.json").read_text())
    Draft202012Validator(schema).validate(document)


def source_schema(variant: str) -> str:
    return "speculators-config" if variant.startswith("spec_") else "dense-config"


def read_config(golden: Path, variant: str) -> dict[str, Any]:
    return json.loads((golden / variant / "checkpoint/config.json").read_text())


@pytest.mark.current
def test_published_files_are_those_of_the_models(root: Path) -> None:
    assert drifted(root / "schemas") == []


def test_drift_is_seen_in_a_changed_a_missing_and_a_stray_file(tmp_path: Path) -> None:
    for name in PUBLISHED:
        schema_file(tmp_path, name).write_text(schema_text(name))
    assert drifted(tmp_path) == []
    schema_file(tmp_path, "refusal").write_text("{}")
    schema_file(tmp_path, "inspection").unlink()
    schema_file(tmp_path, "stray").write_text("{}")
    names = ["inspection.schema.json", "refusal.schema.json", "stray.schema.json"]
    assert drifted(tmp_path) == names


@pytest.mark.parametrize("name", PUBLISHED)
def test_schema_is_valid_versioned_and_sorted(root: Path, name: str) -> None:
    text = (root / "schemas" / f"{name}.schema.json").read_text()
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:dspark-convert:schema:{name}:{PUBLISHED[name][1]}"
    assert text == json.dumps(schema, indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize("variant", VARIANTS)
def test_documents_about_a_golden_draft_validate(
    variant: str, root: Path, golden: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    source, output = golden / variant / "checkpoint", tmp_path / "dense"
    validate(root, source_schema(variant), read_config(golden, variant))
    inspection = cli("inspect", source, "--json").json
    validate(root, "inspection", inspection)
    validate(root, "draft-config", inspection["draft"])
    validate(root, "check-report", cli("check", source, "--json").json)
    validate(root, "conversion-plan", cli("to-dense", source, output, "--dry-run", "--json").json)
    validate(root, "conversion-manifest", cli("to-dense", source, output, "--json").json)
    manifest = json.loads((output / "dspark_conversion.json").read_text())
    validate(root, "conversion-manifest", manifest)
    validate(root, "dense-config", json.loads((output / "config.json").read_text()))


@pytest.mark.parametrize("case_id", [name for name, case in CASES.items() if case.refused])
def test_refusal_validates(
    case_id: str, root: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    outcome = cli("to-dense", build(case_id, tmp_path), tmp_path / "dense", "--json")
    validate(root, "refusal", outcome.json)
    assert (outcome.code, outcome.json["exit_code"]) == (3, 3)
    assert not (tmp_path / "dense").exists()


def objects(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document itself and every object defined inside, by name."""
    for name, part in {"": schema, **schema.get("$defs", {})}.items():
        if part.get("type") == "object":
            yield name, part


@pytest.mark.parametrize("name", OWN)
def test_own_documents_forbid_unknown_keys_at_every_depth(root: Path, name: str) -> None:
    schema = json.loads((root / "schemas" / f"{name}.schema.json").read_text())
    parts = dict(objects(schema))
    assert "" in parts
    assert {
        part for part, body in parts.items() if body.get("additionalProperties") is not False
    } == set()
    with pytest.raises(ValidationError, match="unknown_key"):
        Draft202012Validator({**schema, "required": []}).validate({"unknown_key": 1})


@pytest.mark.parametrize("name", PUBLISHED)
def test_base_of_a_document_says_whose_it_is(name: str) -> None:
    base = SourceDocument if name in OF_OTHERS else OwnDocument
    assert issubclass(PUBLISHED[name][0], base)


@pytest.mark.parametrize("variant", ["dense_vanilla_bf16", "spec_vanilla_full_anchor_fp32"])
def test_source_documents_keep_unknown_keys_and_refuse_wrong_types(
    root: Path, golden: Path, variant: str
) -> None:
    name, document = source_schema(variant), read_config(golden, variant)
    validate(root, name, {**document, "unknown_key": {"deep": 1}, "dflash_config": {"x": 1}})
    model = PUBLISHED[name][0]
    assert model.model_validate({**document, "unknown_key": 1}).model_dump()["unknown_key"] == 1
    for wrong in ({"block_size": "7"}, {"dflash_config": {"mask_token_id": "319"}}):
        with pytest.raises(ValidationError):
            validate(root, name, {**document, **wrong})
