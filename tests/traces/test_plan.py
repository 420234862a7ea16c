"""What is known of a pair before anything runs: who the target is, and what it lends."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dspark_convert.errors import DraftError, TraceError
from dspark_convert.formats.target import find_target_weights
from dspark_convert.formats.tensors import EMBEDDING
from dspark_convert.traces.plan import (
    _find_borrowed,
    identify_target,
    read_pair,
    require_size,
    stored_dtype,
)
from tests.runtime.helpers import GOLDEN

from .helpers import FULL, REDUCED, VERIFIER


def test_a_target_is_known_by_its_files(tmp_path: Path) -> None:
    target = identify_target(find_target_weights(VERIFIER), "float32")
    sha256 = hashlib.sha256((VERIFIER / "config.json").read_bytes()).hexdigest()
    assert (target.name, target.config_sha256) == ("verifier_fp32", sha256)
    assert (target.hidden_size, target.vocab_size, target.num_hidden_layers) == (64, 320, 4)
    assert target.revision is target.tokenizer_sha256 is None
    cached = tmp_path / "models--owner--name" / "snapshots" / ("0a" * 20)
    shutil.copytree(VERIFIER, cached)
    (cached / "tokenizer.json").write_bytes(b"{}")
    target = identify_target(find_target_weights(cached), "float32")
    assert (target.name, target.revision) == (f"owner/name@{'0a' * 20}", "0a" * 20)
    assert target.tokenizer_sha256 == hashlib.sha256(b"{}").hexdigest()


def test_the_dtype_is_that_of_the_config_else_of_the_tensors() -> None:
    for folder, dtype in (("verifier_fp32", "float32"), ("verifier_bf16", "bfloat16")):
        weights = find_target_weights(GOLDEN / folder)
        assert stored_dtype(weights) == dtype
        assert stored_dtype(replace(weights, config={})) == dtype
        assert stored_dtype(replace(weights, config={"torch_dtype": "float16"})) == "float16"


def test_borrowed_tensors_must_be_usable() -> None:
    pair = read_pair(FULL, VERIFIER)
    assert read_pair(REDUCED, VERIFIER).borrowed.keys() == {EMBEDDING}
    embedding = pair.target.embed_tokens
    for changes, error_type, code in (
        ({"dtype": "F8_E4M3"}, TraceError, "target-tensor-unsupported"),
        ({"shape": (400, 64)}, DraftError, "target-tensor-shape"),
    ):
        weights = replace(pair.target, embed_tokens=replace(embedding, **changes))
        with pytest.raises(error_type, match=code) as error:
            _find_borrowed(pair.draft, weights)
        assert error.value.findings[0].tensor == "model.embed_tokens.weight"


def test_a_pair_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    shallow = tmp_path / "target"
    shutil.copytree(VERIFIER, shallow)
    config = shallow / "config.json"
    config.write_text(
        config.read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 2')
    )
    with pytest.raises(DraftError, match="layer-ids-invalid"):
        read_pair(FULL, shallow)


def test_a_limit_is_respected_to_the_byte() -> None:
    require_size(100, None)
    require_size(100, 100)
    with pytest.raises(TraceError, match="trace-too-large"):
        require_size(101, 100)
