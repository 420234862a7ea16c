"""What each serving engine does with a checkpoint: claims as data, one table.

Every claim was read in the source of the version named (``evidence`` is the file); section 7 of
FORMATS has the whole matrix. ``silent`` means that the draft loads and then drafts worse than it
should, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.draft import DraftConfig, Layout
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
class Published:
    """A checkpoint as an engine sees it."""

    dialect: str
    config: DraftConfig
    tensors: Collection[str]
    """Stored names."""
    layout_declared: bool = True
    """Whether ``sample_from_anchor`` is written."""

    @property
    def speculators(self) -> bool:
        """Whether the config is nested."""
        return self.dialect == "speculators"

    @property
    def bonus_anchor(self) -> bool:
        """Whether the layout is 1+N."""
        return self.config.layout is Layout.BONUS_ANCHOR

    @property
    def last_layer_ids(self) -> bool:
        """Whether the draft listens to the target's last layer."""
        depth = self.config.num_target_layers
        return depth is not None and depth - 1 in self.config.target_layer_ids


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
        lambda d: d.config.reduced_vocabulary and "d2t" not in d.tensors,
        "a reduced vocabulary must be stored under the name d2t",
        "model_executor/models/qwen3_dspark.py:353-357",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.config.markov_rank > 0 and d.config.markov_head_type == "gated",
        "it has no gated Markov head",
        "model_executor/models/utils.py:443",
    ),
    Claim(
        "vLLM",
        "refuses",
        lambda d: d.config.markov_rank > 0 and d.config.markov_head_type == "rnn",
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
        lambda d: d.config.sliding_window_non_causal,
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
        "SGLang",
        "refuses",
        lambda d: d.speculators,
        "it does not know the speculators format: there is no model_type",
        "srt (no reader of transformer_layer_config)",
    ),
    Claim(
        "SGLang",
        "refuses",
        lambda d: d.config.reduced_vocabulary,
        "markov_w2 must have target-vocabulary rows; reduced vocabularies are not supported",
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
        lambda d: (
            d.bonus_anchor and d.config.markov_rank > 0 and d.config.markov_head_type == "rnn"
        ),
        "the rnn state starts after the anchor slot, in training it starts on it",
        "srt/speculative/dspark_components/dspark_draft.py:88-106",
    ),
    Claim(
        "SGLang",
        "silent",
        lambda d: d.config.sliding_window_non_causal,
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
        "llama.cpp",
        "refuses",
        lambda d: d.config.reduced_vocabulary and "d2t" not in d.tensors,
        "its converter knows the vocabulary table only under the name d2t",
        "convert_hf_to_gguf, DSparkModel",
    ),
    Claim(
        "llama.cpp",
        "refuses",
        lambda d: d.config.markov_rank > 0 and d.config.markov_head_type != "vanilla",
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
        lambda d: not d.layout_declared and d.speculators and not d.bonus_anchor,
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
        "DeepSpec",
        "refuses",
        lambda d: d.speculators,
        "its config asserts fail on the nested form",
        "deepspec/modeling/dspark/qwen3/modeling.py:207-224",
    ),
    Claim(
        "DeepSpec",
        "refuses",
        lambda d: d.config.draft_vocab_size != d.config.vocab_size,
        "it knows full vocabularies only: lm_head and markov_w2 have the wrong size",
        "deepspec/modeling/dspark/qwen3/modeling.py",
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
