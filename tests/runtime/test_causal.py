"""The adapter for transformers' models: taps, caches, loading."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark_convert.errors import CheckpointError, DialectError
from dspark_convert.runtime.causal import CausalTarget, move_right
from dspark_convert.runtime.load_target import adopt_rope_parameters, load_target

from .helpers import GOLDEN, golden_target

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen3, sliding": (
        "Qwen3Config",
        {**SIZES, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    ),
    "gemma2": ("Gemma2Config", {**SIZES, "sliding_window": 4}),
    "gemma3": ("Gemma3TextConfig", {**SIZES, "sliding_window": 4}),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": 50,
            "n_embd": 16,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}


FINAL_NORMS = ("model.norm", "transformer.ln_f")


def make_target(family: str) -> CausalTarget:
    name, values = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**values)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape) * 0.3)
    return CausalTarget(model)


def read_whole(target: CausalTarget, ids: list[int]) -> Any:
    """transformers' own forward pass without a cache."""
    return target.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_taps_are_the_raw_residual_streams(family: str) -> None:
    target = make_target(family)
    ids = [5, 9, 1, 30, 7, 7, 12]
    with torch.no_grad():
        features = target.start((-1, 0, 1, 2)).prefill(torch.tensor([ids]), [7]).features[0]
        states = read_whole(target, ids).hidden_states
        *taps, last = features.split(target.hidden_size, dim=-1)
        for tap, state in zip(taps, states[:3], strict=True):
            assert torch.allclose(tap, state[0], atol=1e-5)
        # The tuple's last entry is normed; the tap is not.
        norm = next(module for name, module in target.model.named_modules() if name in FINAL_NORMS)
        assert torch.allclose(norm(last), states[3][0], atol=1e-4)
        assert not torch.allclose(last, states[3][0], atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_sessions_agree_with_whole_passes(family: str) -> None:
    """Rows of different lengths that keep and lose different tokens, and a row that leaves."""
    target = make_target(family)
    generator = torch.Generator().manual_seed(0)
    rows = [[5], [9, 1, 30, 7, 8, 2, 11], [4, 4, 31]]
    session = target.start((0, 2))
    width = max(map(len, rows))
    padded = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    output = session.prefill(padded, [len(row) for row in rows])
    assert output.logits.shape == (3, 1, 50)
    check(target, rows, output.logits, output.features, from_start=True)
    for counts in ([1, 1, 1], [3, 1, 2], [1, 4, 1], [2, 2], [4, 1]):
        if len(counts) < len(rows):
            session.select_rows([0, 2])
            rows = [rows[0], rows[2]]
        block = torch.randint(0, 50, (len(rows), 4), generator=generator)
        output = session.extend(block)
        for row, ids in zip(rows, block.tolist(), strict=True):
            row.extend(ids)
        check(target, rows, output.logits, output.features)
        session.keep(counts)
        for row, count in zip(rows, counts, strict=True):
            del row[len(row) - 4 + count :]
        assert session.columns == max(map(len, rows))


def check(
    target: CausalTarget,
    rows: list[list[int]],
    logits: Tensor,
    features: Tensor,
    *,
    from_start: bool = False,
) -> None:
    """The tail of each row, or with ``from_start`` its features from the first position on."""
    for row, ids in enumerate(rows):
        whole = read_whole(target, ids)
        count = logits.shape[1]
        assert torch.allclose(logits[row], whole.logits[0, -count:], atol=1e-4)
        with target.tap((0, 2)) as recorded:
            target.model(torch.tensor([ids]), use_cache=False)
        wanted = torch.cat([recorded[0], recorded[2]], -1)[0]
        got = features[row, : len(ids)] if from_start else features[row]
        assert torch.allclose(got, wanted if from_start else wanted[-count:], atol=1e-4)


def test_taps_leave_no_hooks_behind() -> None:
    target = make_target("llama")
    with pytest.raises(IndexError), target.tap((0, -1)):
        raise IndexError
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in target.layers)


def test_move_right_moves_each_row_by_its_own_number() -> None:
    x = torch.arange(12).view(2, 6)
    moved = move_right(x, torch.tensor([2, 0]), dim=1)
    assert moved[0, 2:].tolist() == [0, 1, 2, 3]
    assert torch.equal(moved[1], x[1])
    back = move_right(moved, torch.tensor([-2, 0]), dim=1)
    assert torch.equal(back[0, :4], x[0, :4])
    wide = move_right(x.view(2, 1, 6, 1), torch.tensor([0, 3]), dim=2)
    assert wide[1, 0, 3:, 0].tolist() == [6, 7, 8]


def test_properties_come_from_the_text_model() -> None:
    target = make_target("llama")
    assert (target.vocab_size, target.hidden_size, target.num_hidden_layers) == (50, 16, 3)
    assert target.stop_token_ids == {2, 3}
    assert golden_target().stop_token_ids == {1}
    assert target.device == torch.device("cpu")


def test_multimodal_models_are_read_by_their_text_model(tmp_path: Path) -> None:
    text = {**SIZES, "sliding_window": 4}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=49
    )
    torch.manual_seed(0)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    target = load_target(tmp_path)
    assert (target.hidden_size, target.num_hidden_layers) == (16, 3)
    ids = [5, 9, 1, 30]
    with torch.no_grad():
        output = target.start((0,)).prefill(torch.tensor([ids]), [4])
        whole = target.model(input_ids=torch.tensor([ids]), use_cache=False)
    assert torch.allclose(output.logits[0, 0], whole.logits[0, -1], atol=1e-4)
    assert output.features.shape == (1, 4, 16)


def test_recurrent_targets_are_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4, expand=2
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(DialectError) as caught:
        CausalTarget(model)
    assert caught.value.code in {"target-not-rewindable", "target-unsupported"}


def test_unreadable_targets_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(CheckpointError) as caught:
            load_target(folder)
        assert caught.value.code == "target-unreadable"


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(GOLDEN / "verifier_fp32", folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_target(folder)
    assert [f.tensor for f in caught.value.findings] == ["model.layers.1.mlp.up_proj.weight"]
    assert caught.value.code == "target-tensor-missing"


def test_dtype_is_the_stored_one_unless_given() -> None:
    folder = GOLDEN / "verifier_bf16"
    assert load_target(folder).model.dtype == torch.bfloat16
    assert load_target(folder, dtype=torch.float32).model.dtype == torch.float32


class Version4Config:
    """What transformers 4 makes of a config that version 5 saved."""

    def __init__(self, rope_parameters: dict[str, Any] | None) -> None:
        self.rope_theta, self.rope_scaling = 10000.0, None
        if rope_parameters is not None:
            self.rope_parameters = rope_parameters


@pytest.mark.parametrize(
    ("parameters", "theta", "scaling"),
    [
        (None, 10000.0, None),
        ({"rope_type": "default", "rope_theta": 1e6}, 1e6, None),
        (
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            1e6,
            {"rope_type": "linear", "factor": 2.0},
        ),
    ],
)
def test_rope_parameters_are_said_in_the_words_of_transformers_4(
    parameters: dict[str, Any] | None, theta: float, scaling: dict[str, Any] | None
) -> None:
    config = Version4Config(parameters)
    adopt_rope_parameters(config, "target")
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_rope_parameters_for_each_type_of_layer_need_transformers_5() -> None:
    parameters = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(CheckpointError) as caught:
        adopt_rope_parameters(Version4Config(parameters), "target")
    assert caught.value.code == "target-needs-transformers-5"
