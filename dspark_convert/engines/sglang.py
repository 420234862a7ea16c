"""SGLang 0.5.23. Evidence: files of the package ``sglang``."""

from __future__ import annotations

from dspark_convert.engines.base import TARGET, Claim, Engine, KeySpelling, Spelling
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD

_FOR_SGLANG = "convert it with to-dense --for sglang"
_ARCHITECTURES = frozenset({"Qwen3DSparkModel", "DSparkDraftModel"})

CLAIMS: tuple[Claim, ...] = (
    Claim(
        verdict="refuses",
        when=lambda d: d.nested,
        reason="it does not know the speculators format: there is no model_type",
        evidence="srt (no reader of transformer_layer_config)",
        code="dialect-unread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.silent_about("model_type"),
        reason="without model_type it recognises no model",
        evidence="srt/utils/hf_transformers/config.py:228-233",
        code="key-unread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: not d.nested and not d.named(_ARCHITECTURES),
        reason="it has no model class for this architecture",
        evidence="srt/models/dspark.py:995",
        code="architecture-unread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.resized,
        reason="markov_w2 must have target-vocabulary rows; other draft vocabularies are not "
        "supported",
        evidence="srt/models/dspark.py:199",
        code="vocabulary-unsupported",
        way_out="{elsewhere}; --expand-vocab does not help, since it widens the draft's own head, "
        "which is never used here",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.config.markov_rank == 0,
        reason="it requires markov_rank > 0",
        evidence="srt/models/dspark.py:385-405",
        code="markov-head-missing",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: bool(d.markov) and d.silent_about("markov_rank"),
        reason="its model looks up markov_rank only at the top level of the config",
        evidence="srt/models/dspark.py:385-405",
        code="key-unread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: -1 in d.config.target_layer_ids,
        reason="target layer id -1 (the embedding output) is out of its range",
        evidence="srt/speculative/dflash_utils.py:579-584",
        code="layer-id-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.last_layer_ids,
        reason="it captures before layer k + 1, so the last layer's feature is missing",
        evidence="srt/models/qwen2.py:456-464",
        code="layer-id-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.bonus_anchor,
        reason="it drafts {block} tokens unless told --speculative-dspark-block-size {n}",
        evidence="srt/arg_groups/speculative_hook.py:796-850",
        code="extra-slot",
        way_out="use the launch line",
        avoided_by_launch=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.bonus_anchor and d.markov == "rnn",
        reason="the rnn state starts after the anchor slot; in training it starts on it",
        evidence="srt/speculative/dspark_components/dspark_draft.py:88-106",
        code="rnn-state-misread",
        way_out="no engine runs this head in this layout as speculators trains it; train it "
        "anchor-first",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.causal_anyway and not d.forced_to_slide,
        reason="sliding_window_non_causal is ignored: sliding layers are causal in the block",
        evidence="srt/models/dflash.py:157-191",
        code="causality-misread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="loads",
        when=lambda d: bool({EMBEDDING, LM_HEAD} & set(d.tensors)),
        reason="stored embed_tokens and lm_head are skipped: right only if they equal the target's",
        evidence="srt/models/dspark.py:627-700",
        code="own-head-ignored",
        way_out="to-dense --for sglang --target DIR compares them",
    ),
    Claim(
        verdict="loads",
        when=lambda d: not d.config.enable_confidence_head,
        reason="without a confidence head it needs SGLANG_RAGGED_VERIFY_MODE=static, the default",
        evidence="srt/models/dspark.py:690-696",
        code="confidence-head-missing",
    ),
    Claim(
        verdict="refuses",
        when=lambda d: bool(d.markov) and d.silent_about("markov_head_type"),
        reason="it requires markov_head_type",
        evidence="srt/speculative/dspark_components/dspark_config.py:265-268",
        code="key-unread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.forced_to_slide,
        reason="use_swa is ignored: layers slide only where layer_types says so",
        evidence="srt/models/dflash.py:169-171",
        code="window-ignored",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: (
            d.config.slides and d.silent_about("use_sliding_window") and not d.forced_to_slide
        ),
        reason="sliding layers lose their window unless use_sliding_window is true",
        evidence="srt/speculative/dflash_utils.py:411-414",
        code="window-unread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        reason="a missing sample_from_anchor is read as anchor-first",
        evidence="srt/speculative/dspark_components/dspark_config.py:29-31",
        code="layout-misread",
        way_out=_FOR_SGLANG,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.config.hidden_act != "silu",
        reason="its decoder supports only silu (and swigluoai, which Qwen3 drafts do not use)",
        evidence="srt/models/dflash.py:493-510",
        code="activation-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
)

_DFLASH = "SGLang looks here before the top level"
_DSPARK = "SGLang prefers this to dflash_config and the top level"


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
    name="SGLang",
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
