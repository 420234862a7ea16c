"""llama.cpp: the converter and runtime of 2026, read in copies that follow upstream."""

from __future__ import annotations

from dspark_convert.engines.base import TARGET, Claim, Engine, KeySpelling, Spelling
from dspark_convert.engines.view import EngineView
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import LM_HEAD, STORED_TABLE, VOCABULARY_TABLE
from dspark_convert.schemas.draft import DraftConfig

NAME = "llama.cpp"
_CONVERTER = "convert_hf_to_gguf, DSparkModel"
_FOR_LLAMA_CPP = "convert it with to-dense --for llama.cpp"
_ARCHITECTURES = frozenset({"Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator"})
_HIDDEN = ("target_layer_ids", "mask_token_id")


def _all_slide(config: DraftConfig) -> bool:
    return set(config.layer_types) == {"sliding_attention"}


def _untold_causality(draft: EngineView) -> bool:
    """Whether sliding layers are causal in the block and the config does not say so."""
    told = draft.document.get("is_causal") or lookup(draft.document, ("dflash_config", "causal"))
    return draft.config.slides and not draft.config.sliding_window_non_causal and not told


CLAIMS: tuple[Claim, ...] = (
    Claim(
        NAME,
        "refuses",
        lambda d: d.reduced and STORED_TABLE not in d.tensors,
        "its converter knows the vocabulary table only under the name d2t",
        _CONVERTER,
        "d2t-name-unread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.markov not in ("", "vanilla"),
        "its converter takes vanilla Markov heads only",
        _CONVERTER,
        "markov-head-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: not d.named(_ARCHITECTURES),
        "its converter has no class of this architecture",
        _CONVERTER,
        "architecture-unread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.attention_bias,
        "its loader has no attention biases",
        "llama.cpp model loader (inferred)",
        "attention-bias-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.target_hidden_size not in (None, d.config.hidden_size),
        "a target of another hidden size cannot be represented",
        "hparams.n_embd_inp_enc_impl",
        "target-width-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.speculators and not d.layout_declared and not d.bonus_anchor,
        "an absent sample_from_anchor is read as 1+N in a speculators config",
        _CONVERTER,
        "layout-misread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: _untold_causality(d) and _all_slide(d.config),
        "sliding layers run bidirectional in the block unless is_causal is true",
        "common/speculative.cpp",
        "causality-misread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: _untold_causality(d) and not _all_slide(d.config),
        "sliding layers run bidirectional in the block, and cannot be told apart from full ones",
        "common/speculative.cpp",
        "causality-misread",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.config.slides and d.decoder_key("use_sliding_window") is not True,
        "sliding layers run full unless use_sliding_window is true",
        _CONVERTER,
        "window-unread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: any(d.document.get(key) is not None and d.hides(key) for key in _HIDDEN),
        "a dflash_config hides the target_layer_ids and mask_token_id of the top level",
        _CONVERTER,
        "key-hidden",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: (
            d.document.get("block_size") is None
            and lookup(d.document, ("dflash_config", "block_size")) is None
        ),
        "an absent block_size is read as 16",
        _CONVERTER,
        "key-unread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.draft_vocab_size > d.config.vocab_size,
        "its converter wants a draft vocabulary no larger than the target's",
        _CONVERTER,
        "vocabulary-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first in a dense config",
        _CONVERTER,
        "layout-misread",
        _FOR_LLAMA_CPP,
    ),
    Claim(
        NAME,
        "loads",
        lambda d: not d.reduced and LM_HEAD in d.tensors,
        "a stored lm_head is dropped: right only if it equals the target's",
        _CONVERTER,
        "own-head-ignored",
        "to-dense --for llama.cpp --target DIR compares them",
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.config.hidden_act != "silu",
        "its graph computes silu, whatever the config says",
        "llama.cpp model graph (inferred)",
        "activation-unsupported",
        "{elsewhere}",
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
    name=NAME,
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
