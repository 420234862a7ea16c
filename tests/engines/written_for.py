"""What ``to-dense --for ENGINE`` refuses of the golden drafts, by what their names say."""

from __future__ import annotations

import json

from fixtures.broken.drafts import GOLDEN

VARIANTS: list[str] = json.loads((GOLDEN / "manifest.json").read_text())["variants"]
BIASED = "spec_rnn_full_anchor_sharded_bf16"
BONUS = ("1plusN", "legacykey")
"""The layout 1+N."""


def refused(key: str, variant: str, *, with_target: bool, expand: bool = False) -> set[str]:
    """The codes of the refusal; none for a draft that the engine runs as it is meant."""
    dense, reduced = "dense" in variant, "reduced" in variant
    if expand and not reduced:
        return {"vocabulary-not-reduced"}
    unseen = dense and not with_target  # a stored head that may not be the target's
    codes = {
        "vllm": {"markov-head-unsupported": "gated" in variant or "rnn" in variant},
        "sglang": {
            "vocabulary-unsupported": reduced and not expand,
            "own-head-ignored": reduced or unseen,
            "markov-head-missing": "nomarkov" in variant,
        },
        "llama.cpp": {
            "markov-head-unsupported": "gated" in variant or "rnn" in variant,
            "attention-bias-unsupported": variant == BIASED,
            "own-head-ignored": expand or unseen,
        },
        "deepspec": {
            "embedding-missing": not dense and not with_target,
            "lm-head-missing": not dense and not with_target and not reduced,
            "vocabulary-unsupported": reduced and not expand,
            "layout-unsupported": any(word in variant for word in BONUS),
            "window-unsupported": "swa" in variant,
        },
    }[key]
    return {code for code, holds in codes.items() if holds}
