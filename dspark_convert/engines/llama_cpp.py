"""llama.cpp: the converter and runtime of 2026, read in forks that follow upstream."""

from __future__ import annotations

from dspark_convert.engines.base import TARGET, Claim, Engine, KeySpelling, Spelling
from dspark_convert.engines.view import EngineView
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import LM_HEAD, STORED_TABLE, VOCABULARY_TABLE
from dspark_convert.schemas.draft import DraftConfig

_CONVERTER = "convert_hf_to_gguf, DSparkModel"
_FOR_LLAMA_CPP = "convert it with to-dense --for llama.cpp"
_ARCHITECTURES = frozenset({"Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator"})
_HIDDEN = ("target_layer_ids", "mask_token_id")


def _all_slide(config: DraftConfig) -> bool:
    return set(config.layer_types) == {"sliding_attention"}


def _untold_causality(draft: EngineView) -> bool:
    """Whether sliding layers are causal in the block but the config does not say so."""
    told = draft.document.get("is_causal") or lookup(draft.document, ("dflash_config", "causal"))
    return draft.config.slides and not draft.config.sliding_window_non_causal and not told


CLAIMS: tuple[Claim, ...] = (
    Claim(
        verdict="refuses",
        when=lambda d: d.reduced and STORED_TABLE not in d.tensors,
        reason="its converter knows the vocabulary table only under the name d2t",
        evidence=_CONVERTER,
        code="d2t-name-unread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.markov not in ("", "vanilla"),
        reason="its converter supports only vanilla Markov heads",
        evidence=_CONVERTER,
        code="markov-head-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: not d.named(_ARCHITECTURES),
        reason="its converter has no class for this architecture",
        evidence=_CONVERTER,
        code="architecture-unread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.config.attention_bias,
        reason="its loader does not support attention biases",
        evidence="llama.cpp model loader (inferred)",
        code="attention-bias-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.config.target_hidden_size not in (None, d.config.hidden_size),
        reason="a target with a different hidden size cannot be represented",
        evidence="hparams.n_embd_inp_enc_impl",
        code="target-width-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.nested and not d.layout_declared and not d.bonus_anchor,
        reason="a missing sample_from_anchor is read as 1+N in a speculators config",
        evidence=_CONVERTER,
        code="layout-misread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="silent",
        when=lambda d: _untold_causality(d) and _all_slide(d.config),
        reason="sliding layers are bidirectional in the block unless is_causal is true",
        evidence="common/speculative.cpp",
        code="causality-misread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="silent",
        when=lambda d: _untold_causality(d) and not _all_slide(d.config),
        reason="sliding layers are bidirectional in the block, and cannot be told apart "
        "from full ones",
        evidence="common/speculative.cpp",
        code="causality-misread",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.config.slides and d.decoder_key("use_sliding_window") is not True,
        reason="sliding layers use full attention unless use_sliding_window is true",
        evidence=_CONVERTER,
        code="window-unread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="silent",
        when=lambda d: any(d.document.get(key) is not None and d.hides(key) for key in _HIDDEN),
        reason="a dflash_config hides the target_layer_ids and mask_token_id of the top level",
        evidence=_CONVERTER,
        code="key-hidden",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="silent",
        when=lambda d: (
            d.document.get("block_size") is None
            and lookup(d.document, ("dflash_config", "block_size")) is None
        ),
        reason="a missing block_size is read as 16",
        evidence=_CONVERTER,
        code="key-unread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.config.draft_vocab_size > d.config.vocab_size,
        reason="its converter requires a draft vocabulary no larger than the target's",
        evidence=_CONVERTER,
        code="vocabulary-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        reason="a missing sample_from_anchor is read as anchor-first in a dense config",
        evidence=_CONVERTER,
        code="layout-misread",
        way_out=_FOR_LLAMA_CPP,
    ),
    Claim(
        verdict="loads",
        when=lambda d: not d.reduced and LM_HEAD in d.tensors,
        reason="a stored lm_head is dropped: right only if it equals the target's",
        evidence=_CONVERTER,
        code="own-head-ignored",
        way_out="to-dense --for llama.cpp --target DIR compares them",
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.config.hidden_act != "silu",
        reason="its graph computes silu, whatever the config says",
        evidence="llama.cpp model graph (inferred)",
        code="activation-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
)

_BLOCK = "the block that llama.cpp's converter looks into first"


def _commands(path: str, num_speculative_tokens: int) -> tuple[tuple[str, ...], ...]:
    convert = ("python", "convert_hf_to_gguf.py", path, "--target-model-dir", TARGET)
    return (
        (*convert, "--outfile", "draft.gguf"),
        (
            *("llama-server", "-m", f"{TARGET}.gguf", "-md", "draft.gguf"),
            *("--spec-type", "draft-dspark", "--spec-draft-n-max", str(num_speculative_tokens)),
        ),
    )


LLAMA_CPP = Engine(
    key="llama.cpp",
    name="llama.cpp",
    version="converter of 2026",
    claims=CLAIMS,
    commands=_commands,
    spelling=Spelling(
        names={VOCABULARY_TABLE: STORED_TABLE},
        keys=(
            KeySpelling(("dflash_config", "block_size"), lambda c: c.block_size, _BLOCK),
            KeySpelling(("dflash_config", "mask_token_id"), lambda c: c.mask_token_id, _BLOCK),
            KeySpelling(
                ("dflash_config", "target_layer_ids"), lambda c: list(c.target_layer_ids), _BLOCK
            ),
            KeySpelling(
                ("is_causal",),
                lambda c: True if _all_slide(c) and not c.sliding_window_non_causal else None,
                "newer converters read it; without it every layer is bidirectional",
            ),
        ),
        ignores=lambda config: () if config.reduced_vocabulary else (LM_HEAD,),
    ),
)
