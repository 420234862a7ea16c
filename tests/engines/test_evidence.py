"""Claims cite lines that say what is claimed, in the versions that they name."""

from __future__ import annotations

import re

import pytest

from dspark_convert.engines import ENGINES, Claim

from .lift import engine_root

PACKAGES = {"vLLM": "vllm", "SGLang": "sglang"}
CLAIMS = [
    (engine.name, claim)
    for engine in ENGINES.values()
    if engine.name in PACKAGES
    for claim in engine.claims
]
EVIDENCE = re.compile(r"(\S+\.py):(?:(\d+)-)?(\d+)")
SAID = {
    ("vLLM", "activation-unsupported"): "Only silu is supported",
    ("vLLM", "architecture-unread"): "DeepSeek-V4(.1) DSpark reuses the full target config",
    ("vLLM", "causality-misread"): "return layer_types[layer_idx] == _SLIDING_ATTENTION",
    ("vLLM", "confidence-bias-uninitialised"): "bias=True",
    ("vLLM", "confidence-head-dropped"): 'getattr(config, "enable_confidence_head", False)',
    ("vLLM", "confidence-input-misread"): 'getattr(config, "confidence_head_with_markov", False)',
    ("vLLM", "d2t-full-vocabulary"): "There is no module or parameter named",
    ("vLLM", "d2t-name-unread"): "checkpoints must include a",
    ("vLLM", "extra-slot"): "self.num_speculative_tokens = block_size",
    ("vLLM", "key-unread", "markov_rank"): "config.markov_rank",
    ("vLLM", "key-unread", "model_type"): 'config_dict.get("model_type")',
    ("vLLM", "layout-misread", "speculators"): 'config_dict.get("sample_from_anchor", False)',
    ("vLLM", "layout-misread", "dense"): '"sample_from_anchor", True',
    ("vLLM", "lm-head-uninitialised"): "draft_output_vocab_size == target_vocab_size",
    ("vLLM", "markov-head-unsupported"): "There is no module or parameter named",
    ("vLLM", "prefix-unread"): 'name = "model." + name',
    ("vLLM", "rotation-misread"): "int(head_size * partial_rotary_factor)",
    ("vLLM", "window-unread"): "requires a window size",
    ("SGLang", "activation-unsupported"): "Supported activations are silu and swigluoai",
    ("SGLang", "architecture-unread"): "EntryClass = [Qwen3DSparkModel",
    ("SGLang", "causality-misread"): "default=AttentionType.DECODER",
    ("SGLang", "confidence-head-missing"): "DSpark confidence head is enabled but",
    ("SGLang", "extra-slot"): "draft_config.resolve_gamma",
    ("SGLang", "key-unread", "markov_head_type"): "DSpark requires markov_head_type",
    ("SGLang", "key-unread", "markov_rank"): 'getattr(config, "markov_rank", 0)',
    ("SGLang", "key-unread", "model_type"): "AutoConfig.from_pretrained(",
    ("SGLang", "layer-id-unsupported", "-1"): "val < 0 or val >= target_num_layers",
    ("SGLang", "layer-id-unsupported", "last layer"): "if i in self.layers_to_capture",
    ("SGLang", "layout-misread"): '"sample_from_anchor", True',
    ("SGLang", "markov-head-missing"): "DSpark requires markov_rank > 0",
    ("SGLang", "own-head-ignored"): 'normalized_name.startswith("embed_tokens.")',
    ("SGLang", "rnn-state-misread"): "hidden_by_query[:, 1:]",
    ("SGLang", "vocabulary-unsupported"): "nn.Linear(self.markov_rank, self.vocab_size",
    ("SGLang", "window-ignored"): "if layer_types is None",
    ("SGLang", "window-unread"): "layers require config.sliding_window",
}
"""What the lines of a claim hold; a third word tells claims of one code apart by their reason."""
NO_LINES = {("SGLang", "dialect-unread"): "that something is absent cannot be cited"}


def test_every_claim_about_these_engines_cites_lines() -> None:
    for engine, claim in CLAIMS:
        cites = EVIDENCE.fullmatch(claim.evidence) is not None
        assert cites == ((engine, claim.code) not in NO_LINES), claim


def about(key: tuple[str, ...]) -> list[Claim]:
    engine, code, *word = key
    claims = [claim for name, claim in CLAIMS if (name, claim.code) == (engine, code)]
    return [claim for claim in claims if all(part in claim.reason for part in word)]


def test_every_claim_with_lines_has_its_text() -> None:
    told = [claim for key in SAID for claim in about(key)]
    cited = [claim for _, claim in CLAIMS if EVIDENCE.fullmatch(claim.evidence)]
    assert sorted(map(id, told)) == sorted(map(id, cited))


@pytest.mark.parametrize("key", SAID, ids=" ".join)
def test_cited_lines_say_what_is_claimed(key: tuple[str, ...]) -> None:
    root, cited = engine_root(PACKAGES[key[0]]), about(key)
    assert cited, "no claim gives this reason"
    for claim in cited:
        match = EVIDENCE.fullmatch(claim.evidence)
        assert match is not None
        first, last = int(match[2] or match[3]), int(match[3])
        lines = (root / match[1]).read_text(encoding="utf-8").splitlines()[first - 1 : last]
        assert len(lines) == last - first + 1
        assert SAID[key] in "\n".join(lines)
