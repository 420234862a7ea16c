"""vLLM 0.33.0. Evidence: files of the package ``vllm``."""

from __future__ import annotations

import json

from dspark_convert.engines.base import TARGET, Claim, Engine, KeySpelling, Spelling
from dspark_convert.formats.rules import lookup
from dspark_convert.formats.tensors import LM_HEAD, STORED_TABLE, VOCABULARY_TABLE

NAME = "vLLM"
CONFIDENCE_WEIGHT = "confidence_head.proj.weight"
CONFIDENCE_BIAS = "confidence_head.proj.bias"
_FOR_VLLM = "convert it with to-dense --for vllm"
_ARCHITECTURES = frozenset({"Qwen3DSparkModel", "DSparkDraftModel"})

CLAIMS: tuple[Claim, ...] = (
    Claim(
        NAME,
        "refuses",
        lambda d: d.reduced and STORED_TABLE not in d.tensors,
        "a reduced vocabulary must be stored under the name d2t",
        "model_executor/models/qwen3_dspark.py:353-357",
        "d2t-name-unread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.markov == "gated",
        "it has no gated Markov head",
        "model_executor/models/utils.py:442-448",
        "markov-head-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.markov == "rnn",
        "it has no rnn Markov head",
        "model_executor/models/utils.py:442-448",
        "markov-head-unsupported",
        "{elsewhere}",
        inherent=True,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.silent_about("markov_rank"),
        "it looks markov_rank up at the top level of the config only",
        "model_executor/models/qwen3_dspark.py:212",
        "key-unread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.silent_about("model_type"),
        "a dense config without model_type is of no known model",
        "transformers_utils/config.py:359-367",
        "key-unread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: not d.speculators and not d.named(_ARCHITECTURES),
        "an architecture that it does not know is taken for a bundled DeepSeek-V4 draft",
        "config/speculative.py:1543-1567",
        "architecture-unread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.speculators and not d.layout_declared and not d.bonus_anchor,
        "an absent sample_from_anchor is read as 1+N in a speculators config",
        "transformers_utils/configs/speculators/algos.py:188",
        "layout-misread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.bonus_anchor,
        "it drafts {block} tokens unless told num_speculative_tokens={n}",
        "config/speculative.py:1592-1599",
        "extra-slot",
        "use the launch line",
        avoided_by_launch=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.causal_anyway and lookup(d.document, ("dflash_config", "causal")) is not False,
        "sliding_window_non_causal is ignored: sliding layers are causal in the block",
        "model_executor/models/qwen3_dflash.py:62-73",
        "causality-misread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.config.draft_vocab_size > d.config.vocab_size and LM_HEAD not in d.tensors,
        "a padded vocabulary without its own lm_head is served with uninitialised memory",
        "v1/worker/gpu/spec_decode/dspark/utils.py:138-149",
        "lm-head-uninitialised",
        "publish the draft with its lm_head",
        inherent=True,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: CONFIDENCE_WEIGHT in d.tensors and CONFIDENCE_BIAS not in d.tensors,
        "the absent bias of the confidence head stays uninitialised",
        "model_executor/models/qwen3_dspark.py:225-230",
        "confidence-bias-uninitialised",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: not d.reduced and STORED_TABLE in d.tensors,
        "a full vocabulary must not have a table",
        "model_executor/models/utils.py:442-448",
        "d2t-full-vocabulary",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.prefixed,
        "it puts model. before every name, also where it already is",
        "model_executor/models/qwen3_dspark.py:325-326",
        "prefix-unread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.slides and d.silent_about("use_sliding_window"),
        "sliding layers lose their window unless use_sliding_window is true",
        "model_executor/models/qwen3_dflash.py:145-154",
        "window-unread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: (
            d.document.get("enable_confidence_head") is True
            and d.config.confidence_head_with_markov
            and d.silent_about("confidence_head_with_markov")
        ),
        "an absent confidence_head_with_markov is read as false",
        "model_executor/models/qwen3_dspark.py:221",
        "confidence-input-misread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "silent",
        lambda d: d.silent_about("sample_from_anchor") and d.bonus_anchor,
        "an absent sample_from_anchor is read as anchor-first in a dense config",
        "v1/worker/gpu/spec_decode/dspark/speculator.py:49-55",
        "layout-misread",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "loads",
        lambda d: d.config.enable_confidence_head and "enable_confidence_head" not in d.document,
        "the confidence head is dropped: an absent enable_confidence_head is read as false",
        "model_executor/models/qwen3_dspark.py:220",
        "confidence-head-dropped",
        _FOR_VLLM,
    ),
    Claim(
        NAME,
        "refuses",
        lambda d: d.config.hidden_act != "silu",
        "its decoder runs silu only",
        "model_executor/models/qwen2.py:105-108",
        "activation-unsupported",
        "{elsewhere}",
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
    name=NAME,
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
