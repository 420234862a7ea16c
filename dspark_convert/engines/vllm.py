"""vLLM 0.33.0. Evidence: files of the package ``vllm``."""

from __future__ import annotations

import json

from dspark_convert.engines.base import TARGET, Claim, Engine, KeySpelling, Spelling
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import (
    CONFIDENCE_BIAS,
    CONFIDENCE_WEIGHT,
    LM_HEAD,
    STORED_TABLE,
    VOCABULARY_TABLE,
)

_FOR_VLLM = "convert it with to-dense --for vllm"
_ARCHITECTURES = frozenset({"Qwen3DSparkModel", "DSparkDraftModel"})

CLAIMS: tuple[Claim, ...] = (
    Claim(
        verdict="refuses",
        when=lambda d: d.reduced and STORED_TABLE not in d.tensors,
        reason="a reduced vocabulary must be stored under the name d2t",
        evidence="model_executor/models/qwen3_dspark.py:353-357",
        code="d2t-name-unread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.markov == "gated",
        reason="it has no gated Markov head",
        evidence="model_executor/models/utils.py:442-448",
        code="markov-head-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.markov == "rnn",
        reason="it has no rnn Markov head",
        evidence="model_executor/models/utils.py:442-448",
        code="markov-head-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.silent_about("markov_rank"),
        reason="it looks up markov_rank only at the top level of the config",
        evidence="model_executor/models/qwen3_dspark.py:212",
        code="key-unread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.silent_about("model_type"),
        reason="without model_type it recognises no model in a dense config",
        evidence="transformers_utils/config.py:359-367",
        code="key-unread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: not d.nested and not d.named(_ARCHITECTURES),
        reason="it takes an unknown architecture for a bundled DeepSeek-V4 draft",
        evidence="config/speculative.py:1543-1567",
        code="architecture-unread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.nested and not d.layout_declared and not d.bonus_anchor,
        reason="a missing sample_from_anchor is read as 1+N in a speculators config",
        evidence="transformers_utils/configs/speculators/algos.py:188",
        code="layout-misread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.bonus_anchor,
        reason="it drafts {block} tokens unless told num_speculative_tokens={n}",
        evidence="config/speculative.py:1592-1599",
        code="extra-slot",
        way_out="use the launch line",
        avoided_by_launch=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: (
            d.causal_anyway
            and lookup(d.document, ("dflash_config", "causal")) is not False
            and not d.forced_to_slide
        ),
        reason="sliding_window_non_causal is ignored: sliding layers are causal in the block",
        evidence="model_executor/models/qwen3_dflash.py:62-73",
        code="causality-misread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.rotates_partly,
        reason="it obeys partial_rotary_factor, which is the target's: the draft was trained to "
        "rotate whole heads",
        evidence="model_executor/layers/rotary_embedding/__init__.py:69-72",
        code="rotation-misread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.config.draft_vocab_size > d.config.vocab_size and LM_HEAD not in d.tensors,
        reason="a padded vocabulary without its own lm_head is served with uninitialised memory",
        evidence="v1/worker/gpu/spec_decode/dspark/utils.py:138-149",
        code="lm-head-uninitialised",
        way_out="publish the draft with its lm_head",
        inherent=True,
    ),
    Claim(
        verdict="silent",
        when=lambda d: CONFIDENCE_WEIGHT in d.tensors and CONFIDENCE_BIAS not in d.tensors,
        reason="a missing bias of the confidence head stays uninitialised",
        evidence="model_executor/models/qwen3_dspark.py:225-230",
        code="confidence-bias-uninitialised",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: not d.reduced and STORED_TABLE in d.tensors,
        reason="a full vocabulary must not have a table",
        evidence="model_executor/models/utils.py:442-448",
        code="d2t-full-vocabulary",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.prefixed,
        reason="it prepends model. to every name, even if it is already there",
        evidence="model_executor/models/qwen3_dspark.py:325-326",
        code="prefix-unread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: (
            d.config.slides
            and d.silent_about("use_sliding_window")
            and lookup(d.document, ("dflash_config", "swa_window_size")) is None
        ),
        reason="sliding layers lose their window unless use_sliding_window is true",
        evidence="model_executor/models/qwen3_dflash.py:145-154",
        code="window-unread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: (
            d.document.get("enable_confidence_head") is True
            and d.config.confidence_head_with_markov
            and d.silent_about("confidence_head_with_markov")
        ),
        reason="a missing confidence_head_with_markov is read as false",
        evidence="model_executor/models/qwen3_dspark.py:221",
        code="confidence-input-misread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="silent",
        when=lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        reason="a missing sample_from_anchor is read as anchor-first in a dense config",
        evidence="v1/worker/gpu/spec_decode/dspark/speculator.py:49-55",
        code="layout-misread",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="loads",
        when=lambda d: (
            d.config.enable_confidence_head and "enable_confidence_head" not in d.document
        ),
        reason="the confidence head is dropped: a missing enable_confidence_head is read as false",
        evidence="model_executor/models/qwen3_dspark.py:220",
        code="confidence-head-dropped",
        way_out=_FOR_VLLM,
    ),
    Claim(
        verdict="refuses",
        when=lambda d: d.config.hidden_act != "silu",
        reason="its decoder supports only silu",
        evidence="model_executor/models/qwen2.py:105-108",
        code="activation-unsupported",
        way_out="{elsewhere}",
        inherent=True,
    ),
)


def _commands(path: str, num_speculative_tokens: int) -> tuple[tuple[str, ...], ...]:
    settings = {
        "method": "dspark",
        "model": path,
        "num_speculative_tokens": num_speculative_tokens,
    }
    return (("vllm", "serve", TARGET, "--speculative-config", json.dumps(settings)),)


VLLM = Engine(
    key="vllm",
    name="vLLM",
    version="0.33.0",
    claims=CLAIMS,
    commands=_commands,
    spelling=Spelling(
        names={VOCABULARY_TABLE: STORED_TABLE},
        keys=(
            KeySpelling(
                ("is_causal",),
                lambda config: False if config.sliding_window_non_causal else None,
                "the spelling of sliding_window_non_causal that vLLM reads",
            ),
        ),
        zeros=(CONFIDENCE_BIAS,),
    ),
)
