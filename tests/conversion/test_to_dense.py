"""Golden drafts to dense, against a list of names, shapes, dtypes and keys written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fixtures.broken.edits import copy_file, hub_snapshot, put, sharded, store_target_weights, write

from .helpers import config_of, convert, digest, files_of, tensors_of
from .reference import CONFIGS, SHAPES, dtype_of

SPECULATORS = [variant for variant in CONFIGS if variant.startswith("spec_")]
FULL, REDUCED = "spec_vanilla_full_anchor_fp32", "spec_vanilla_reduced_anchor_bf16"
NOT_CARRIED = {"t2d"}


@pytest.fixture(scope="module")
def converted(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The result of converting a golden draft, made once."""
    folder = tmp_path_factory.mktemp("dense")

    def get(variant: str) -> Path:
        if not (folder / variant).exists():
            convert(golden / variant / "checkpoint", folder / variant)
        return folder / variant

    return get


def test_every_golden_variant_is_in_the_reference(golden: Path) -> None:
    manifest = json.loads((golden / "manifest.json").read_text())
    assert set(CONFIGS) == set(SHAPES) == set(manifest["variants"])


@pytest.mark.parametrize("variant", CONFIGS)
def test_config_is_the_one_written_by_hand(variant: str, converted: Callable[[str], Path]) -> None:
    config = config_of(converted(variant))
    assert config == CONFIGS[variant]
    same_types = {key: type(value) for key, value in config.items()}
    assert same_types == {key: type(value) for key, value in CONFIGS[variant].items()}


@pytest.mark.parametrize("variant", CONFIGS)
def test_names_shapes_and_dtypes_are_those_written_by_hand(
    variant: str, converted: Callable[[str], Path]
) -> None:
    found = {
        name: (dtype, shape) for name, (dtype, shape, _) in tensors_of(converted(variant)).items()
    }
    expected = {name: (dtype_of(variant, name), shape) for name, shape in SHAPES[variant].items()}
    assert found == expected


@pytest.mark.parametrize("variant", CONFIGS)
def test_every_tensor_has_the_bytes_of_the_source(
    variant: str, golden: Path, converted: Callable[[str], Path]
) -> None:
    source = tensors_of(golden / variant / "checkpoint")
    result = tensors_of(converted(variant))
    renamed = {"d2t": "draft_id_to_target_id"}
    kept = {renamed.get(name, name): it for name, it in source.items() if name not in NOT_CARRIED}
    assert result == kept


@pytest.mark.parametrize("variant", CONFIGS)
def test_files_open_with_the_library_and_say_their_format(
    variant: str, converted: Callable[[str], Path]
) -> None:
    for path in converted(variant).glob("*.safetensors"):
        with safe_open(path, "np") as file:
            assert file.metadata()["format"] == "pt"


@pytest.mark.parametrize("variant", CONFIGS)
def test_converting_twice_gives_the_same_bytes_and_leaves_the_source(
    variant: str, golden: Path, tmp_path: Path, converted: Callable[[str], Path]
) -> None:
    source = golden / variant / "checkpoint"
    before = digest(source)
    convert(source, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(converted(variant))
    assert digest(source) == before


@pytest.mark.parametrize("variant", SPECULATORS)
def test_dense_to_dense_changes_nothing(
    variant: str, tmp_path: Path, converted: Callable[[str], Path]
) -> None:
    convert(converted(variant), tmp_path / "again")
    again, first = files_of(tmp_path / "again"), files_of(converted(variant))
    again.pop("dspark_conversion.json")
    first.pop("dspark_conversion.json")
    assert again == first


def test_shards_stay_shards_with_an_index_of_them(converted: Callable[[str], Path]) -> None:
    folder = converted("spec_rnn_full_anchor_sharded_bf16")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            found |= dict.fromkeys(file.keys(), path.name)
    assert index["weight_map"] == found
    data = sum(len(data) for _, _, data in tensors_of(folder).values())
    assert index["metadata"]["total_size"] == data
    names = [f"model-{number:05}-of-00006.safetensors" for number in range(1, 7)]
    assert sorted(set(found.values())) == names


@pytest.mark.parametrize("shards", [[], [sharded]])
def test_target_fills_what_is_absent(
    draft: Callable[..., Path], golden: Path, tmp_path: Path, shards: list[Any]
) -> None:
    target = golden / "verifier_fp32"
    manifest = convert(draft(*shards, base=FULL), tmp_path / "out", target=target)
    result, verifier = tensors_of(tmp_path / "out"), tensors_of(target)
    assert result["embed_tokens.weight"] == verifier["model.embed_tokens.weight"]
    assert result["lm_head.weight"] == verifier["lm_head.weight"]
    assert {name: shape for name, (_, shape, _) in result.items()} == SHAPES[FULL] | {
        "embed_tokens.weight": [320, 64],
        "lm_head.weight": [320, 64],
    }
    filled = {step.name: step.source for step in manifest.tensors if step.action == "filled"}
    assert filled["embed_tokens.weight"] == "model.embed_tokens.weight"
    assert manifest.target is not None
    assert manifest.target.name == "verifier_fp32"
    assert config_of(tmp_path / "out")["num_target_layers"] == 4


def test_target_fills_only_the_embedding_of_a_reduced_draft(golden: Path, tmp_path: Path) -> None:
    source = golden / REDUCED / "checkpoint"
    convert(source, tmp_path / "out", target=golden / "verifier_bf16")
    result = tensors_of(tmp_path / "out")
    assert result["embed_tokens.weight"][1] == [320, 64]
    assert result["lm_head.weight"] == tensors_of(source)["lm_head.weight"]


def test_own_embedding_and_head_win_over_the_target(
    draft: Callable[..., Path], golden: Path, tmp_path: Path
) -> None:
    source = draft(store_target_weights, base="dense_gated_fp32")
    manifest = convert(source, tmp_path / "out", target=golden / "verifier_fp32")
    assert not [step for step in manifest.tensors if step.action == "filled"]
    assert tensors_of(tmp_path / "out") == tensors_of(source)


SIDE_FILES = {
    "README.md": b"# A draft",
    "LICENSE": b"Apache",
    "tokenizer.json": b"{}",
    "generation_config.json": b"{}",
    "chat_template.jinja": b"{{ x }}",
}
LEFT = {"modeling.py": b"raise SystemExit", "training_args.bin": b"x", "notes.txt": b"x"}


def test_documents_are_carried_and_code_is_not(draft: Callable[..., Path], tmp_path: Path) -> None:
    files = SIDE_FILES | LEFT
    source = draft(*(write(name, content) for name, content in files.items()))
    manifest = convert(source, tmp_path / "out")
    result = files_of(tmp_path / "out")
    carried = {name: result[name] for name in files if name in result}
    assert carried == SIDE_FILES
    said = {step.name: step.action for step in manifest.side_files}
    assert said == dict.fromkeys(SIDE_FILES, "copied") | dict.fromkeys(LEFT, "left")


def test_hub_snapshot_is_named_by_repository_and_revision(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    folder = draft(copy_file("config.json", "README.md"), hub_snapshot)
    repository = folder.parents[1]
    renamed = repository.rename(repository.with_name("models--acme--draft-8b"))
    source = renamed / "snapshots" / folder.name
    manifest = convert(source, tmp_path / "out")
    assert (manifest.source.name, manifest.source.revision) == ("acme/draft-8b", folder.name)
    assert manifest.source.files[0].sha256 is not None


@pytest.mark.parametrize(
    "path",
    [
        "/home/alice/models/Qwen3-8B",
        "/home/alice/models/Qwen3-8B/",
        "~/models/Qwen3-8B",
        "C:\\Users\\alice\\Qwen3-8B",
        "/home/alice\n/Qwen3-8B",
        "file:///home/alice/Qwen3-8B",
        "\\\\server\\alice\\Qwen3-8B",
    ],
)
def test_manifest_names_nobodys_folders(
    draft: Callable[..., Path], tmp_path: Path, path: str
) -> None:
    source = draft(
        put(speculators_config__verifier__name_or_path=path),
        put(_name_or_path=path, transformer_layer_config___name_or_path=path),
        put(shadowed=path, transformer_layer_config__shadowed="other"),
    )
    manifest = convert(source, tmp_path / "out")
    text = (tmp_path / "out/dspark_conversion.json").read_text()
    assert "alice" not in text
    assert str(tmp_path) not in text
    verifier = manifest.source_config["speculators_config"]["verifier"]
    assert verifier["name_or_path"] == "Qwen3-8B"
    assert "_name_or_path" not in config_of(tmp_path / "out")


def test_names_that_are_no_utf8_are_written_as_escapes(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft().rename(tmp_path / "draft-\udcff")
    (source / "README-\udcfe").write_text("x")
    manifest = convert(source, tmp_path / "out")
    assert manifest.source.name == "draft-\\xff"
    assert [step.name for step in manifest.side_files] == ["README-\\xfe"]
    convert(source, tmp_path / "out", overwrite=True)
