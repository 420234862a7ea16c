"""DeepSpec at commit afdfa7c9382a, the original of the dense form."""

from __future__ import annotations

from dspark_convert.engines.base import TARGET, Claim, Engine
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD

_FOR_DEEPSPEC = "convert it with to-dense --for deepspec"
_MODEL = "deepspec/modeling/dspark/qwen3/modeling.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        verdict="refuses",
        when=lambda d: d.nested,
        reason="its config asserts fail on the nested form",
        evidence=f"{_MODEL}:207-224",
        code="dialect-unread",
        way_out=_FOR_DEEPSPEC,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.reduced,
        reason="it supports only full vocabularies: lm_head and markov_w2 have the wrong size",
        evidence=_MODEL,
        code="vocabulary-unsupported",
        way_out="expand it with to-dense --for deepspec --expand-vocab",
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.resized and not d.reduced,
        reason="it has no rows for tokens beyond the target's: lm_head and markov_w2 have the "
        "wrong size",
        evidence=_MODEL,
        code="vocabulary-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.silent_about(*d.keys_of_deepspec),
        reason="its config asserts fail: it requires every key of the block and the heads",
        evidence=f"{_MODEL}:207-224",
        code="key-unread",
        way_out=_FOR_DEEPSPEC,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: not d.nested and not d.named(frozenset({"Qwen3DSparkModel"})),
        reason="it chooses its evaluator by architecture, and has none for this one",
        evidence="eval.py, get_evaluator_cls",
        code="architecture-unread",
        way_out=_FOR_DEEPSPEC,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.prefixed,
        reason="tensors with prefixed names are not found and start random, with only a warning",
        evidence="transformers from_pretrained (inferred)",
        code="prefix-unread",
        way_out=_FOR_DEEPSPEC,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.bonus_anchor,
        reason="sample_from_anchor is ignored: the block runs anchor-first",
        evidence=f"{_MODEL}:207-224",
        code="layout-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.config.slides,
        reason="sliding windows are not implemented: all layers use full, bidirectional attention",
        evidence=_MODEL,
        code="window-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: EMBEDDING not in d.tensors,
        reason="a missing embed_tokens starts random, with only a warning; give --target",
        evidence="transformers from_pretrained",
        code="embedding-missing",
        way_out="fill it with to-dense --for deepspec --target DIR",
    ),
    Claim(
        verdict="silent",
        when=lambda d: LM_HEAD not in d.tensors,
        reason="a missing lm_head starts random, with only a warning; give --target",
        evidence="transformers from_pretrained",
        code="lm-head-missing",
        way_out="fill it with to-dense --for deepspec --target DIR",
    ),
)


def _commands(path: str, num_speculative_tokens: int) -> tuple[tuple[str, ...], ...]:
    """DeepSpec takes the number of tokens from the config."""
    del num_speculative_tokens
    return (("python", "eval.py", "--target_name_or_path", TARGET, "--draft_name_or_path", path),)


DEEPSPEC = Engine(
    key="deepspec",
    name="DeepSpec",
    version="afdfa7c9382a",
    claims=CLAIMS,
    commands=_commands,
)
