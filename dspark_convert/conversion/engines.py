"""What each serving engine does with a checkpoint: claims as data, one table.

Every claim was read in the source of the version named (``evidence`` is the file); section 7 of
FORMATS has the whole matrix. ``silent`` means that the draft loads and then drafts worse than it
should, without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dspark_convert.conversion.published import Published
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.plan import EngineNote

Verdict = Literal["refuses", "silent", "loads"]
_ORDER: tuple[Verdict, ...] = ("refuses", "silent", "loads")

VERSIONS = {
    "vLLM": "0.33.0",
    "SGLang": "0.5.23",
    "llama.cpp": "converter of 2026",
    "DeepSpec": "afdfa7c9382a",
}


@dataclass(frozen=True)
class Claim:
    """One thing that an engine does when a condition holds."""

    engine: str
    verdict: Verdict
    when: Callable[[Published], bool]
    reason: str
    """May use ``{n}``, the number of speculative tokens, and ``{block}``, the block size."""
    evidence: str


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.reduced and "d2t" not in d.tensors,
        "a reduced vocabulary must be stored under the name d2t",
        "model_executor/models/qwen3_dspark.py:353-357",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.markov == "gated",
        "it has no gated Markov head",
        "model_executor/models/utils.py:443",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.markov == "rnn",
        "it has no rnn Markov head",
        "model_executor/models/utils.py:443",
    ),
    Claim(
        "vLLM",
        "silent",
        lambda d: d.speculators and not d.layout_declared and not d.bonus_anchor,
        "an absent sample_from_anchor is read as 1+N in a speculators config",
        "transformers_utils/configs/speculators/algos.py:188",
    ),
    Claim(
        "vLLM",
        "silent",
        lambda d: d.bonus_anchor,
        "it drafts {block} tokens unless told num_speculative_tokens={n}",
        "config/speculative.py:1592-1599",
    ),
    Claim(
        "vLLM",
        "silent",
        lambda d: d.causal_anyway and lookup(d.document, ("dflash_config", "causal")) is not False,
        "sliding_window_non_causal is ignored: sliding layers are causal in the block",
        "model_executor/models/qwen3_dflash.py:62-73",
    ),
    Claim(
        "vLLM",
        "silent",
        lambda d: d.config.draft_vocab_size > d.config.vocab_size and LM_HEAD not in d.tensors,
        "a padded vocabulary without its own lm_head is served with uninitialised memory",
        "v1/worker/gpu/spec_decode/dspark/utils.py:138-149",
    ),
    Claim(
        "vLLM",
        "silent",
        lambda d: (
            "confidence_head.proj.weight" in d.tensors
            and "confidence_head.proj.bias" not in d.tensors
        ),
        "the absent bias of the confidence head stays uninitialised",
        "model_executor/models/qwen3_dspark.py:225-230",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: not d.reduced and "d2t" in d.tensors,
        "a full vocabulary must not have a table",
        "model_executor/models/utils.py:438",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.prefixed,
        "it puts model. before every name, also where it already is",
        "model_executor/models/qwen3_dflash.py:390-410",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.config.slides and d.silent_about("use_sliding_window"),
        "sliding layers lose their window unless use_sliding_window is true",
        "model_executor/models/qwen3_dflash.py:145-154",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: (
            d.document.get("enable_confidence_head") is True
            and d.config.confidence_head_with_markov
            and d.silent_about("confidence_head_with_markov")
        ),
        "an absent confidence_head_with_markov is read as false",
        "model_executor/models/qwen3_dspark.py:221",
    ),
    Claim(
        "vLLM",
        "silent",
        lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first in a dense config",
        "v1/worker/gpu/spec_decode/dspark/speculator.py:49-55",
    ),
    Claim(
        "vLLM",
        "loads",
        lambda d: d.config.enable_confidence_head and "enable_confidence_head" not in d.document,
        "the confidence head is dropped: an absent enable_confidence_head is read as false",
        "model_executor/models/qwen3_dspark.py:220",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: d.speculators,
        "it does not know the speculators format: there is no model_type",
        "srt (no reader of transformer_layer_config)",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: d.resized,
        "markov_w2 must have target-vocabulary rows; other draft vocabularies are not supported",
        "srt/models/dspark.py:199",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: d.config.markov_rank == 0,
        "it wants markov_rank > 0",
        "srt/models/dspark.py:385-405",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: -1 in d.config.target_layer_ids,
        "target layer id -1 (the embedding output) is out of its range",
        "srt/speculative/dflash_utils.py:579-584",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: d.last_layer_ids,
        "it captures before layer k + 1, so the last layer's feature is missing",
        "srt/models/qwen2.py:456-464",
    ),
    Claim(
        "SGLang",
        "silent",
        lambda d: d.bonus_anchor,
        "it drafts {block} tokens unless told --speculative-dspark-block-size {n}",
        "srt/arg_groups/speculative_hook.py:796-850",
    ),
    Claim(
        "SGLang",
        "silent",
        lambda d: d.bonus_anchor and d.markov == "rnn",
        "the rnn state starts after the anchor slot, in training it starts on it",
        "srt/speculative/dspark_components/dspark_draft.py:88-106",
    ),
    Claim(
        "SGLang",
        "silent",
        lambda d: d.causal_anyway,
        "sliding_window_non_causal is ignored: sliding layers are causal in the block",
        "srt/models/dflash.py:157-191",
    ),
    Claim(
        "SGLang",
        "loads",
        lambda d: bool({EMBEDDING, LM_HEAD} & set(d.tensors)),
        "stored embed_tokens and lm_head are skipped: right only if they equal the target's",
        "srt/models/dspark.py:627-700",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: bool(d.markov) and d.silent_about("markov_head_type"),
        "it wants markov_head_type",
        "srt/speculative/dspark_components/dspark_config.py:250-255",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: d.config.slides and d.silent_about("use_sliding_window"),
        "sliding layers lose their window unless use_sliding_window is true",
        "srt/speculative/dflash_utils.py:411-414",
    ),
    Claim(
        "SGLang",
        "silent",
        lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first",
        "srt/speculative/dspark_components/dspark_config.py:29-31",
    ),
    Claim(
        "llama.cpp",
        "refuses",
        lambda d: d.reduced and "d2t" not in d.tensors,
        "its converter knows the vocabulary table only under the name d2t",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "llama.cpp",
        "refuses",
        lambda d: d.markov not in ("", "vanilla"),
        "its converter takes vanilla Markov heads only",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "llama.cpp",
        "refuses",
        lambda d: d.config.attention_bias,
        "its loader has no attention biases",
        "llama.cpp model loader (inferred)",
    ),
    Claim(
        "llama.cpp",
        "refuses",
        lambda d: d.config.target_hidden_size not in (None, d.config.hidden_size),
        "a target of another hidden size cannot be represented",
        "hparams.n_embd_inp_enc_impl",
    ),
    Claim(
        "llama.cpp",
        "silent",
        lambda d: d.speculators and not d.layout_declared and not d.bonus_anchor,
        "an absent sample_from_anchor is read as 1+N in a speculators config",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "llama.cpp",
        "silent",
        lambda d: d.config.slides and not d.config.sliding_window_non_causal,
        "sliding layers run bidirectional in the block",
        "common/speculative.cpp",
    ),
    Claim(
        "llama.cpp",
        "refuses",
        lambda d: d.config.draft_vocab_size > d.config.vocab_size,
        "its converter wants a draft vocabulary no larger than the target's",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "llama.cpp",
        "silent",
        lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first in a dense config",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "llama.cpp",
        "loads",
        lambda d: not d.reduced and LM_HEAD in d.tensors,
        "a stored lm_head is dropped: right only if it equals the target's",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "DeepSpec",
        "refuses",
        lambda d: d.speculators,
        "its config asserts fail on the nested form",
        "deepspec/modeling/dspark/qwen3/modeling.py:207-224",
    ),
    Claim(
        "DeepSpec",
        "refuses",
        lambda d: d.resized,
        "it knows full vocabularies only: lm_head and markov_w2 have the wrong size",
        "deepspec/modeling/dspark/qwen3/modeling.py",
    ),
    Claim(
        "DeepSpec",
        "refuses",
        lambda d: d.silent_about(*d.keys_of_deepspec),
        "its config asserts fail: it wants every key of the block and of the heads",
        "deepspec/modeling/dspark/qwen3/modeling.py:207-224",
    ),
    Claim(
        "DeepSpec",
        "silent",
        lambda d: d.prefixed,
        "prefixed names are not found and become random (a warning only)",
        "transformers from_pretrained (inferred)",
    ),
    Claim(
        "DeepSpec",
        "silent",
        lambda d: d.bonus_anchor,
        "sample_from_anchor is ignored: the block is run anchor-first",
        "deepspec/modeling/dspark/qwen3/modeling.py:207-224",
    ),
    Claim(
        "DeepSpec",
        "silent",
        lambda d: d.config.slides,
        "sliding windows are not implemented: every layer runs full and bidirectional",
        "deepspec/modeling/dspark/qwen3/modeling.py",
    ),
    Claim(
        "DeepSpec",
        "silent",
        lambda d: EMBEDDING not in d.tensors,
        "an absent embed_tokens becomes random (a warning only); give --target",
        "transformers from_pretrained",
    ),
    Claim(
        "DeepSpec",
        "silent",
        lambda d: LM_HEAD not in d.tensors,
        "an absent lm_head becomes random (a warning only); give --target",
        "transformers from_pretrained",
    ),
)


def engine_notes(draft: Published) -> tuple[EngineNote, ...]:
    """What every engine does with ``draft``, refusals first; "loads" where no claim speaks."""
    notes: list[EngineNote] = []
    for engine, version in VERSIONS.items():
        claims = [claim for claim in CLAIMS if claim.engine == engine and claim.when(draft)]
        claims.sort(key=lambda claim: _ORDER.index(claim.verdict))
        notes += [_note(claim, version, draft) for claim in claims]
        if not claims:
            notes.append(_loads(engine, version, draft))
    return tuple(notes)


def _note(claim: Claim, version: str, draft: Published) -> EngineNote:
    block, tokens = draft.config.block_size, draft.config.num_speculative_tokens
    return EngineNote(
        engine=claim.engine,
        version=version,
        verdict=claim.verdict,
        reason=claim.reason.format(n=tokens, block=block),
        evidence=claim.evidence,
    )


def _loads(engine: str, version: str, draft: Published) -> EngineNote:
    return EngineNote(
        engine=engine,
        version=version,
        verdict="loads",
        reason=f"drafts {draft.config.num_speculative_tokens} tokens a round",
        evidence="no claim against it",
    )
