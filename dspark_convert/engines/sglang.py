"""SGLang 0.5.23. Evidence: files of the package ``sglang``."""

from __future__ import annotations

from dspark_convert.engines.base import TARGET, Claim, Engine, KeySpelling, Spelling
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD

NAME = "SGLang"
_FOR_SGLANG = "convert it with to-dense --for sglang"
_ARCHITECTURES = frozenset({"Qwen3DSparkModel", "DSparkDraftModel"})

CLAIMS: tuple[Claim, ...] = (
    Claim(
        NAME,
        "refuses",
        lambda d: d.speculators,
        "it does not know the speculators format: there is no model_type",
        "srt (no reader of transformer_layer_config)",
        "dialect-unread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.silent_about("model_type"),
        "a config without model_type is of no known model",
        "srt/utils/hf_transformers/config.py:228-233",
        "key-unread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: not d.speculators and not d.named(_ARCHITECTURES),
        "it has no model class of this architecture",
        "srt/models/dspark.py:995",
        "architecture-unread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.resized,
        "markov_w2 must have target-vocabulary rows; other draft vocabularies are not supported",
        "srt/models/dspark.py:199",
        "vocabulary-unsupported",
        "{elsewhere}; its own head, which --expand-vocab widens, is never used here",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.markov_rank == 0,
        "it wants markov_rank > 0",
        "srt/models/dspark.py:385-405",
        "markov-head-missing",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: bool(d.markov) and d.silent_about("markov_rank"),
        "its model looks markov_rank up at the top level of the config only",
        "srt/models/dspark.py:385-405",
        "key-unread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: -1 in d.config.target_layer_ids,
        "target layer id -1 (the embedding output) is out of its range",
        "srt/speculative/dflash_utils.py:579-584",
        "layer-id-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.last_layer_ids,
        "it captures before layer k + 1, so the last layer's feature is missing",
        "srt/models/qwen2.py:456-464",
        "layer-id-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.bonus_anchor,
        "it drafts {block} tokens unless told --speculative-dspark-block-size {n}",
        "srt/arg_groups/speculative_hook.py:796-850",
        "extra-slot",
        "use the launch line",
        avoided_by_launch=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.bonus_anchor and d.markov == "rnn",
        "the rnn state starts after the anchor slot, in training it starts on it",
        "srt/speculative/dspark_components/dspark_draft.py:88-106",
        "rnn-state-misread",
        "no engine runs this head in this layout as speculators trains it; train it anchor-first",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.causal_anyway,
        "sliding_window_non_causal is ignored: sliding layers are causal in the block",
        "srt/models/dflash.py:157-191",
        "causality-misread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "loads",
        lambda d: bool({EMBEDDING, LM_HEAD} & set(d.tensors)),
        "stored embed_tokens and lm_head are skipped: right only if they equal the target's",
        "srt/models/dspark.py:627-700",
        "own-head-ignored",
        "to-dense --for sglang --target DIR compares them",
    ),
    Claim(
        NAME,
        "loads",
        lambda d: not d.config.enable_confidence_head,
        "without a confidence head it wants SGLANG_RAGGED_VERIFY_MODE=static, the default",
        "srt/models/dspark.py:690-696",
        "confidence-head-missing",
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: bool(d.markov) and d.silent_about("markov_head_type"),
        "it wants markov_head_type",
        "srt/speculative/dspark_components/dspark_config.py:265-268",
        "key-unread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.slides and d.silent_about("use_sliding_window"),
        "sliding layers lose their window unless use_sliding_window is true",
        "srt/speculative/dflash_utils.py:411-414",
        "window-unread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first",
        "srt/speculative/dspark_components/dspark_config.py:29-31",
        "layout-misread",
        _FOR_SGLANG,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.hidden_act != "silu",
        "its decoder runs silu only (or swigluoai, which Qwen3 drafts do not use)",
        "srt/models/dflash.py:493-510",
        "activation-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
)

_DFLASH = "SGLang looks here before the top level"
_DSPARK = "SGLang takes this over dflash_config and the top level"


def _commands(path: str, num_speculative_tokens: int) -> tuple[tuple[str, ...], ...]:
    return (
        (
            *("python", "-m", "sglang.launch_server", "--model-path", TARGET),
            *("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", path),
            *("--speculative-dspark-block-size", str(num_speculative_tokens)),
        ),
    )


SGLANG = Engine(
    key="sglang",
    name=NAME,
    version="0.5.23",
    claims=CLAIMS,
    commands=_commands,
    spelling=Spelling(
        keys=(
            KeySpelling(("dflash_config", "block_size"), lambda c: c.block_size, _DFLASH),
            KeySpelling(("dflash_config", "mask_token_id"), lambda c: c.mask_token_id, _DFLASH),
            KeySpelling(
                ("dflash_config", "target_layer_ids"), lambda c: list(c.target_layer_ids), _DFLASH
            ),
            KeySpelling(
                ("dflash_config", "num_target_layers"), lambda c: c.num_target_layers, _DFLASH
            ),
            KeySpelling(("dspark_config", "mask_token_id"), lambda c: c.mask_token_id, _DSPARK),
            KeySpelling(("dspark_config", "markov_rank"), lambda c: c.markov_rank, _DSPARK),
            KeySpelling(
                ("dspark_config", "markov_head_type"), lambda c: c.markov_head_type, _DSPARK
            ),
            KeySpelling(
                ("is_causal",),
                lambda c: False if c.sliding_window_non_causal else None,
                "the spelling of sliding_window_non_causal that SGLang reads",
            ),
        ),
        ignores=lambda config: (EMBEDDING, LM_HEAD),
    ),
)
