"""The target: where its embedding and head lie, and whether a draft fits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.errors import DraftError, Findings
from dspark_convert.formats.target import find_target_weights, validate_pairing
from fixtures.broken.drafts import Tensor, pack

from .helpers import DENSE, config_of, errors, parsed

EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"
CONFIG = {"hidden_size": 4, "num_hidden_layers": 2, "vocab_size": 6, "tie_word_embeddings": False}


def write(
    folder: Path, config: dict[str, Any], *names: str, shape: tuple[int, ...] = (6, 4)
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: Tensor.zeros("BF16", *shape) for name in names}
    (folder / "model.safetensors").write_bytes(pack(tensors))
    return folder


@pytest.mark.parametrize(
    ("embed", "head"),
    [
        (f"model.{EMBED}", HEAD),
        (f"model.language_model.{EMBED}", HEAD),
        (f"language_model.model.{EMBED}", f"language_model.{HEAD}"),
        (f"model.language_model.{EMBED}", f"model.{HEAD}"),
        (EMBED, HEAD),
        ("backbone.embeddings.weight", HEAD),
        ("model.word_embeddings.weight", HEAD),
    ],
)
def test_weights_are_found_under_every_prefix(tmp_path: Path, embed: str, head: str) -> None:
    found = find_target_weights(write(tmp_path / "t", CONFIG, embed, head))
    assert (found.supply(EMBED).name, found.supply(HEAD).name) == (embed, head)
    assert found.vocab_size == 6


@pytest.mark.parametrize(
    "config",
    [
        {**CONFIG, "tie_word_embeddings": True},
        {"text_config": {**CONFIG, "tie_word_embeddings": True}},
        {"tie_word_embeddings": True, "text_config": {"hidden_size": 4, "num_hidden_layers": 2}},
    ],
)
def test_tied_head_is_the_embedding(tmp_path: Path, config: dict[str, Any]) -> None:
    found = find_target_weights(write(tmp_path / "t", config, f"model.{EMBED}"))
    assert found.supply(HEAD) is found.supply(EMBED)
    assert found.config["hidden_size"] == 4


@pytest.mark.parametrize(
    ("config", "names", "code"),
    [
        (CONFIG, [f"model.{EMBED}"], "target-tensor-missing"),
        (CONFIG, [HEAD], "target-tensor-missing"),
        ({}, [f"model.{EMBED}", HEAD], "target-config-invalid"),
        ({"text_config": {"hidden_size": "4"}}, [EMBED, HEAD], "target-config-invalid"),
    ],
)
def test_target_that_cannot_be_used(
    tmp_path: Path, config: dict[str, Any], names: list[str], code: str
) -> None:
    with pytest.raises(DraftError) as caught:
        find_target_weights(write(tmp_path / "t", config, *names))
    assert caught.value.code == code


def test_tensor_that_is_no_matrix_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(DraftError) as caught:
        find_target_weights(write(tmp_path / "t", CONFIG, EMBED, HEAD, shape=(24,)))
    assert caught.value.code == "target-tensor-missing"


@pytest.mark.parametrize(
    ("draft", "target", "rows", "codes"),
    [
        ({}, {}, 320, []),
        ({}, {"vocab_size": 300}, 300, []),
        ({}, {"vocab_size": 320}, 384, []),
        ({}, {"vocab_size": 384}, 384, ["target-vocabulary-mismatch"]),
        ({}, {"hidden_size": 96}, 320, ["target-hidden-size-mismatch"]),
        ({"target_hidden_size": 96}, {"hidden_size": 96}, 320, []),
        ({"target_hidden_size": 96}, {}, 320, ["target-hidden-size-mismatch"]),
        ({}, {"num_hidden_layers": 5}, 320, ["target-depth-mismatch"]),
        ({"num_target_layers": None}, {"num_hidden_layers": 5}, 320, []),
        ({"num_target_layers": None}, {"num_hidden_layers": 2}, 320, ["layer-ids-invalid"]),
        ({"num_target_layers": None}, {"num_hidden_layers": None}, 320, ["target-depth-mismatch"]),
    ],
)
def test_pairing(
    draft: dict[str, Any], target: dict[str, Any], rows: int, codes: list[str]
) -> None:
    findings = Findings()
    fitting = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 320}
    config = parsed(config_of(DENSE)).model_copy(update=draft)
    validate_pairing(config, {**fitting, **target}, rows, findings)
    assert errors(findings) == codes


PACKED = "model.embed_tokens.weight_packed"


@pytest.mark.parametrize(
    ("tensors", "tensor"),
    [
        ({f"model.{EMBED}": "BF16", "lm_head.weight_packed": "U8"}, "lm_head.weight_packed"),
        ({f"model.{EMBED}": "BF16", "lm_head.qweight": "I32"}, "lm_head.qweight"),
        ({f"model.{EMBED}": "BF16", HEAD: "F8_E4M3"}, HEAD),
        ({PACKED: "U8", HEAD: "BF16"}, PACKED),
    ],
)
def test_a_quantised_target_is_called_so(
    tmp_path: Path, tensors: dict[str, str], tensor: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    stored = {name: Tensor.zeros(dtype, 6, 4) for name, dtype in tensors.items()}
    (tmp_path / "model.safetensors").write_bytes(pack(stored))
    with pytest.raises(DraftError) as caught:
        find_target_weights(tmp_path)
    (finding,) = caught.value.findings
    assert (finding.code, finding.tensor) == ("target-tensor-quantised", tensor)
    assert "unquantised" in str(finding.hint)


@pytest.mark.parametrize(("depth", "said"), [(3, True), (4, False)])
def test_a_depth_that_may_count_the_taps_is_said(depth: int, said: bool) -> None:
    config = parsed(config_of(DENSE)).model_copy(update={"num_target_layers": depth})
    findings = Findings()
    target = {"hidden_size": config.hidden_size, "num_hidden_layers": 6}
    validate_pairing(config, target, config.vocab_size, findings)
    (finding,) = findings.of("error")
    assert finding.code == "target-depth-mismatch"
    assert ("--set num_target_layers=6" in str(finding.hint)) is said
