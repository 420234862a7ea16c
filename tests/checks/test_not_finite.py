"""Drafts whose weights are finite and whose outputs are not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - the modules below need PyTorch
from dspark_convert.checks.observer import RunObserver
from dspark_convert.errors import DraftError
from dspark_convert.replay.replay import ReplayOptions, replay_sequence
from dspark_convert.runtime import DecodeOptions, DraftModel, decode
from dspark_convert.runtime.fast import decode_fast
from tests.diagnosis.test_shared_replay import texts
from tests.runtime.helpers import golden_draft, golden_target

NAME = "dense_vanilla_bf16"


def overflowing() -> DraftModel:
    draft = golden_draft(NAME)
    broken: DraftModel = type(draft)(draft.config).requires_grad_(False).eval()
    broken.load_state_dict(draft.state_dict())
    broken.norm.weight.fill_(3e38)
    broken.lm_head.weight.fill_(3e38)
    return broken


@pytest.mark.parametrize("run", [decode, decode_fast])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_says_that_the_outputs_overflow(run: Any, temperature: float) -> None:
    target, draft = golden_target(), overflowing()
    options = DecodeOptions(max_new_tokens=4, temperature=temperature)
    observer = RunObserver(draft, target.vocab_size, seed=0)
    with pytest.raises(DraftError, match="not finite in float32") as refused:
        run(
            target,
            draft,
            [[7, 3]],
            options,
            generator=torch.Generator().manual_seed(0),
            observer=observer,
        )
    assert refused.value.code == "outputs-not-finite"
    assert "--dtype" in str(refused.value.findings[0].hint)


def test_replay_says_so_too() -> None:
    options = ReplayOptions(
        decode=DecodeOptions(max_new_tokens=11, temperature=1.0),
        target_vocab_size=320,
        top_temperature=1.0,
    )
    with pytest.raises(DraftError, match="not finite") as refused:
        replay_sequence(overflowing(), texts()[0], options)
    assert refused.value.code == "outputs-not-finite"
