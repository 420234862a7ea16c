"""Golden cases, and pairs of models small enough to know everything about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import load_draft
from dspark_convert.runtime.load_target import load_target
from dspark_convert.runtime.records import DecodeResult
from dspark_convert.runtime.target import TargetOutput
from dspark_convert.schemas.draft import DraftConfig

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
VARIANTS: list[str] = json.loads((GOLDEN / "manifest.json").read_text())["variants"]


def expected(variant: str) -> dict[str, Any]:
    """``expected.json`` of a golden variant."""
    document: dict[str, Any] = json.loads((GOLDEN / variant / "expected.json").read_text())
    return document


def golden_cases(variant: str) -> list[dict[str, Tensor]]:
    """Inputs and expected tensors of each case, names without ``caseN.``."""
    recorded = load_file(GOLDEN / variant / "expected.safetensors")
    return [
        {
            name.removeprefix(f"case{number}."): tensor
            for name, tensor in recorded.items()
            if name.startswith(f"case{number}.")
        }
        for number in range(len(expected(variant)["cases"]))
    ]


@cache
def golden_draft(
    variant: str, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> DraftModel:
    """A golden draft with its own verifier's embedding and head; shared, so not to be changed."""
    verifier = GOLDEN / expected(variant)["verifier"]
    return load_draft(GOLDEN / variant / "checkpoint", dtype=dtype, device=device, target=verifier)


@cache
def golden_target(dtype: torch.dtype = torch.float32, device: str = "cpu") -> CausalTarget:
    """The fp32 verifier; shared, so not to be changed."""
    return load_target(GOLDEN / "verifier_fp32", dtype=dtype, device=device)


def make_config(**changes: Any) -> DraftConfig:
    """A draft config, anchor-first and full, of which tests change what they are about."""
    values: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "attention_bias": False,
        "layer_types": ("full_attention", "full_attention"),
        "sliding_window": None,
        "sliding_window_non_causal": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "vocab_size": 12,
        "draft_vocab_size": 12,
        "mask_token_id": 11,
        "layout": "anchor_first",
        "block_size": 4,
        "target_layer_ids": (0,),
        "target_hidden_size": None,
        "num_target_layers": None,
        "markov_rank": 6,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "dtype": "float32",
    }
    return DraftConfig.model_validate({**values, **changes})


def make_draft(
    config: DraftConfig, table: Sequence[int] | None = None, seed: int = 0
) -> DraftModel:
    """A draft with random weights. ``table`` are offsets."""
    offsets = None if table is None else torch.tensor(table)
    draft = DraftModel(config, offsets).requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        spread = 1.0 if parameter.dim() == 1 else parameter.shape[1] ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return draft


@dataclass
class ChainTarget:
    """A target whose next token depends on the last one only: ``logits[token]`` [V, V].

    Its one layer puts out the one-hot token, so the hidden size is V. ``seen`` holds what each row
    of the last session has kept, for tests of the bookkeeping.
    """

    logits: Tensor
    num_hidden_layers: int = 1

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.logits.shape[0]

    def start(self, layer_ids: Sequence[int]) -> ChainSession:
        self.session = ChainSession(self)
        return self.session


class ChainSession:
    """Remembers tokens instead of keys and values."""

    def __init__(self, target: ChainTarget) -> None:
        self.target = target
        self.seen: list[list[int]] = []
        self.appended = 0

    def prefill(self, token_ids_RT: Tensor, lengths: Sequence[int]) -> TargetOutput:
        rows = token_ids_RT.tolist()
        self.seen = [row[:length] for row, length in zip(rows, lengths, strict=True)]
        last = torch.tensor([row[-1:] for row in self.seen])
        return TargetOutput(self.target.logits[last], self._features(token_ids_RT))

    def extend(self, token_ids_RQ: Tensor) -> TargetOutput:
        self.appended = token_ids_RQ.shape[1]
        for row, ids in zip(self.seen, token_ids_RQ.tolist(), strict=True):
            row.extend(ids)
        return TargetOutput(self.target.logits[token_ids_RQ], self._features(token_ids_RQ))

    def keep(self, counts: Sequence[int]) -> None:
        for row, count in zip(self.seen, counts, strict=True):
            del row[len(row) - self.appended + count :]

    def select_rows(self, rows: Sequence[int]) -> None:
        self.seen = [self.seen[row] for row in rows]

    def _features(self, token_ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(token_ids, self.target.vocab_size).float()


def chain_pair(
    vocab: int,
    *,
    layout: str = "anchor_first",
    noise: float = 0.5,
    seed: int = 0,
    block_size: int = 4,
) -> tuple[ChainTarget, DraftModel]:
    """A chain, and a draft whose Markov head knows it but for noise: q depends on prev only."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab, vocab, generator=generator) * 2
    config = make_config(
        vocab_size=vocab,
        draft_vocab_size=vocab,
        mask_token_id=vocab - 1,
        target_hidden_size=vocab,
        markov_rank=vocab,
        layout=layout,
        block_size=block_size,
    )
    draft = make_draft(config, seed=seed)
    assert draft.markov_head is not None
    draft.lm_head.weight.zero_()
    draft.markov_head.markov_w1.weight.copy_(torch.eye(vocab))
    wrong = torch.randn(vocab, vocab, generator=generator) * noise
    draft.markov_head.markov_w2.weight.copy_((logits + wrong).T)
    return ChainTarget(logits), draft


def bigram_pair(
    *, layout: str = "anchor_first", sliding_window: int | None = None, attention: float = 0.1
) -> tuple[CausalTarget, DraftModel]:
    """A real Qwen3 in which the last token counts most, and a draft that knows only that part.

    So some drafted tokens are accepted and some are not, while a wrong cache changes the output.
    """
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        use_sliding_window=sliding_window is not None,
        sliding_window=sliding_window,
        max_window_layers=1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.model.embed_tokens.weight.mul_(5)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(attention * 5)
        layer.mlp.down_proj.weight.mul_(attention)
    draft = make_draft(
        make_config(
            vocab_size=64,
            draft_vocab_size=64,
            mask_token_id=63,
            target_hidden_size=32,
            target_layer_ids=(-1, 0, 2),
            markov_rank=32,
            layout=layout,
            block_size=5,
        )
    )
    assert draft.markov_head is not None
    # A little noise that depends on the context, so that a wrong context shows in the proposals.
    draft.lm_head.weight.mul_(0.3)
    draft.markov_head.markov_w1.weight.copy_(
        torch.nn.functional.rms_norm(model.model.embed_tokens.weight, (32,))
    )
    draft.markov_head.markov_w2.weight.copy_(model.lm_head.weight)
    return CausalTarget(model), draft


def random_prompts(vocab: int, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """One prompt of each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in lengths]


def accepted_counts(results: Sequence[DecodeResult]) -> list[list[int]]:
    return [[round_.accepted for round_ in result.rounds] for result in results]


def kernel_pair() -> tuple[CausalTarget, DraftModel]:
    """Random bf16 models whose sizes fill the tiles of the kernels, on the GPU."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 640,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    config = Qwen3Config(**sizes, num_hidden_layers=3, eos_token_id=None, bos_token_id=None)
    model = Qwen3ForCausalLM(config)
    draft = make_draft(
        make_config(
            **sizes,
            draft_vocab_size=640,
            mask_token_id=639,
            target_layer_ids=(0, 2),
            layer_types=("full_attention", "sliding_attention"),
            sliding_window=9,
        )
    )
    for parameter in (*model.parameters(), *draft.parameters()):
        parameter.data = parameter.data.to(torch.bfloat16)  # rotary frequencies stay fp32
    return CausalTarget(model.to("cuda")), draft.to("cuda")
