"""DeepSpec at commit afdfa7c9382a, the original of the dense form."""

from __future__ import annotations

from dspark_convert.engines.base import TARGET, Claim, Engine
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD

NAME = "DeepSpec"
_FOR_DEEPSPEC = "convert it with to-dense --for deepspec"
_MODEL = "deepspec/modeling/dspark/qwen3/modeling.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        NAME,
        "refuses",
        lambda d: d.speculators,
        "its config asserts fail on the nested form",
        f"{_MODEL}:207-224",
        "dialect-unread",
        _FOR_DEEPSPEC,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.reduced,
        "it knows full vocabularies only: lm_head and markov_w2 have the wrong size",
        _MODEL,
        "vocabulary-unsupported",
        "expand it with to-dense --for deepspec --expand-vocab",
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.resized and not d.reduced,
        "it has no rows for tokens beyond the target's: lm_head and markov_w2 have the wrong size",
        _MODEL,
        "vocabulary-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.silent_about(*d.keys_of_deepspec),
        "its config asserts fail: it wants every key of the block and of the heads",
        f"{_MODEL}:207-224",
        "key-unread",
        _FOR_DEEPSPEC,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: not d.speculators and not d.named(frozenset({"Qwen3DSparkModel"})),
        "it chooses its evaluator by the architecture",
        "eval.py, get_evaluator_cls",
        "architecture-unread",
        _FOR_DEEPSPEC,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.prefixed,
        "prefixed names are not found and become random (a warning only)",
        "transformers from_pretrained (inferred)",
        "prefix-unread",
        _FOR_DEEPSPEC,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.bonus_anchor,
        "sample_from_anchor is ignored: the block is run anchor-first",
        f"{_MODEL}:207-224",
        "layout-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.config.slides,
        "sliding windows are not implemented: every layer runs full and bidirectional",
        _MODEL,
        "window-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: EMBEDDING not in d.tensors,
        "an absent embed_tokens becomes random (a warning only); give --target",
        "transformers from_pretrained",
        "embedding-missing",
        "fill it with to-dense --for deepspec --target DIR",
    ),
    Claim(
        NAME,
        "silent",
        lambda d: LM_HEAD not in d.tensors,
        "an absent lm_head becomes random (a warning only); give --target",
        "transformers from_pretrained",
        "lm-head-missing",
        "fill it with to-dense --for deepspec --target DIR",
    ),
)


def _commands(path: str, num_speculative_tokens: int) -> tuple[tuple[str, ...], ...]:
    """DeepSpec takes the number of tokens from the config."""
    del num_speculative_tokens
    return (("python", "eval.py", "--target_name_or_path", TARGET, "--draft_name_or_path", path),)


DEEPSPEC = Engine(
    key="deepspec",
    name=NAME,
    version="afdfa7c9382a",
    claims=CLAIMS,
    commands=_commands,
)
