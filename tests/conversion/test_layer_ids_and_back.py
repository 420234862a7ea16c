"""Layer 0 and the embedding (dense ids 0 and -1, aux ids 1 and 0) survive both ways exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.broken.edits import put

from .helpers import config_of, convert, files_of, tensors_of
from .speculators import REDUCED, back

KEYS = ("target_layer_ids", "aux_hidden_state_layer_ids")
IDS = [([0, 1, 2], [1, 2, 3]), ([-1, 0, 2], [0, 1, 3]), ([-1, 1, 2], [0, 2, 3])]


@pytest.mark.parametrize(("plain", "aux"), IDS)
def test_dense_to_speculators_and_back(
    plain: list[int], aux: list[int], draft: Callable[..., Path], tmp_path: Path, golden: Path
) -> None:
    source = draft(put(target_layer_ids=plain), base="dense_vanilla_bf16")
    target = golden / "verifier_bf16"
    convert(source, tmp_path / "dense")
    back(tmp_path / "dense", tmp_path / "speculators", verifier=str(target))
    convert(tmp_path / "speculators", tmp_path / "dense-again", target=target)
    there = config_of(tmp_path / "speculators")
    assert [there.get(key) for key in KEYS] == [None, aux]
    before, after = files_of(tmp_path / "dense"), files_of(tmp_path / "dense-again")
    assert config_of(tmp_path / "dense-again")["target_layer_ids"] == plain
    assert after["model.safetensors"] == before["model.safetensors"]
    assert after["config.json"] == before["config.json"]


@pytest.mark.parametrize(("plain", "aux"), IDS)
def test_speculators_to_dense_and_back(
    plain: list[int], aux: list[int], draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(put(aux_hidden_state_layer_ids=aux), base=REDUCED)
    convert(source, tmp_path / "dense")
    assert config_of(tmp_path / "dense")["target_layer_ids"] == plain
    back(tmp_path / "dense", tmp_path / "speculators")
    assert config_of(tmp_path / "speculators")["aux_hidden_state_layer_ids"] == aux
    assert tensors_of(tmp_path / "speculators") == tensors_of(source)
    convert(tmp_path / "speculators", tmp_path / "dense-again")
    assert (
        files_of(tmp_path / "dense-again")["config.json"]
        == (files_of(tmp_path / "dense")["config.json"])
    )
