"""Which code each fault of a draft has, and of which engines it is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_convert.engines import ENGINES, EngineView, engine_notes

from .test_engines import ROWS, dense

HEALTHY = ROWS["4 dense, anchor-first, full"][0]
SHOWN: list[tuple[str, str | EngineView, str]] = [
    ("activation-unsupported", "another activation", "SGLang llama.cpp vLLM"),
    ("architecture-unread", "an architecture of its own", "DeepSpec SGLang llama.cpp vLLM"),
    ("attention-bias-unsupported", "biases", "llama.cpp"),
    ("causality-misread", "sliding, non-causal", "SGLang vLLM"),
    ("causality-misread", "sliding, causal", "llama.cpp"),
    ("confidence-bias-uninitialised", dense("confidence_head.proj.bias"), "vLLM"),
    ("confidence-head-dropped", "9b enable_confidence_head missing", "vLLM"),
    ("confidence-head-missing", "9 no confidence head", "SGLang"),
    ("confidence-input-misread", "21 input of the confidence head missing", "vLLM"),
    ("d2t-name-unread", "5b dense, reduced, the other name", "llama.cpp vLLM"),
    ("dialect-unread", "3 speculators, full", "DeepSpec SGLang"),
    ("dialect-unread", "4 dense, anchor-first, full", "speculators"),
    ("embedding-missing", "10 no embedding", "DeepSpec"),
    ("extra-slot", "6 dense, 1+N", "SGLang vLLM"),
    ("key-hidden", "a dflash_config that lacks keys", "llama.cpp"),
    ("key-unread", "15 heads described in dflash_config only", "DeepSpec SGLang vLLM"),
    ("key-unread", "20 type of the Markov head missing", "DeepSpec SGLang"),
    ("key-unread", "no model_type", "SGLang vLLM"),
    ("key-unread", "no block_size", "llama.cpp"),
    ("layer-id-unsupported", "17 the embedding as a feature", "SGLang"),
    ("layer-id-unsupported", "17 the last layer as a feature", "SGLang"),
    ("layout-misread", "2 the same, key missing", "llama.cpp vLLM"),
    ("layout-misread", "6 dense, 1+N, key missing", "SGLang llama.cpp vLLM"),
    ("layout-misread", "1 the same, key missing", "speculators"),
    ("layout-unsupported", "6 dense, 1+N", "DeepSpec"),
    ("lm-head-missing", "11 no head, full", "DeepSpec"),
    ("lm-head-uninitialised", "11 no head, padded", "vLLM"),
    ("markov-head-missing", "no Markov head", "SGLang"),
    ("markov-head-unsupported", "7 gated", "llama.cpp vLLM"),
    ("markov-head-unsupported", "8 rnn", "llama.cpp vLLM"),
    ("own-head-ignored", "4 dense, anchor-first, full", "SGLang llama.cpp"),
    ("own-weights-overwritten", "3 the same, own weights", "speculators"),
    ("prefix-unread", "14 prefixed", "DeepSpec vLLM"),
    ("rnn-state-misread", "8 rnn, 1+N", "SGLang"),
    ("rotation-misread", "partial rotation of the target", "vLLM"),
    ("target-width-unsupported", "another target width", "llama.cpp"),
    ("verifier-missing", "3 the same, verifier not named", "speculators"),
    ("vocabulary-unsupported", "5 dense, reduced, d2t", "DeepSpec SGLang"),
    ("vocabulary-unsupported", "11 no head, padded", "DeepSpec SGLang llama.cpp"),
    ("window-ignored", "sliding by use_swa alone", "SGLang"),
    ("window-unread", "18 sliding, not switched on", "SGLang llama.cpp vLLM"),
    ("window-unsupported", "sliding, causal", "DeepSpec"),
]
WITH_TABLE = replace(HEALTHY, tensors=[*HEALTHY.tensors, "d2t"])
SHOWN.append(("d2t-full-vocabulary", WITH_TABLE, "vLLM"))


@pytest.mark.parametrize(
    ("code", "row", "engines"), SHOWN, ids=[f"{code}: {engines}" for code, _, engines in SHOWN]
)
def test_fault_has_its_code_at_the_engines_that_have_it(
    code: str, row: str | EngineView, engines: str
) -> None:
    draft = ROWS[row][0] if isinstance(row, str) else row
    told = {note.engine for note in engine_notes(draft) if note.code == code}
    assert told == set(engines.split())


def test_every_code_of_every_engine_is_shown() -> None:
    shown = {(engine, code) for code, _, engines in SHOWN for engine in engines.split()}
    assert shown == {(e.name, claim.code) for e in ENGINES.values() for claim in e.claims}


def test_healthy_draft_has_none_of_these_faults() -> None:
    told = {(note.engine, note.code) for note in engine_notes(HEALTHY) if note.code != "loads"}
    assert told == {
        ("SGLang", "own-head-ignored"),
        ("llama.cpp", "own-head-ignored"),
        ("speculators", "dialect-unread"),
    }
