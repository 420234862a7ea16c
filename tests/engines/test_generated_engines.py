"""Any draft, written for any engine: it keeps its meaning there, or it is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import ENGINES, written_for
from dspark_convert.errors import DraftError
from dspark_convert.formats.dialects import DENSE, SPECFORGE, SPECULATORS, Dialect
from dspark_convert.formats.overrides import Overrides
from dspark_convert.formats.read import read_draft
from dspark_convert.schemas.draft import DraftConfig, Layout
from tests.conversion.generated import configs, store, tensors_of_config
from tests.conversion.helpers import tensors_of

OFFSETS = Overrides(d2t="offsets")
BORROWED = ("embed_tokens.weight", "lm_head.weight")


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    config=configs(),
    dialect=st.sampled_from([DENSE, SPECFORGE, SPECULATORS]),
    key=st.sampled_from(sorted(written_for()[1:])),
    without_borrowed=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_draft_is_written_for_an_engine_as_meant_or_refused(
    config: DraftConfig, dialect: Dialect, key: str, without_borrowed: bool, seed: int
) -> None:
    tensors = tensors_of_config(config, seed)
    if without_borrowed and config.draft_vocab_size == config.vocab_size:
        tensors = {name: it for name, it in tensors.items() if name not in BORROWED}
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "source", Path(name) / "output"
        store(config, dialect, tensors, 1, source)
        try:
            conversion = plan_to_dense(source, overrides=OFFSETS, written_for=key)
        except DraftError as error:
            codes = {finding.code for finding in error.findings}
            hints = [finding.hint for finding in error.findings]
        else:
            codes, hints = set(), []
            run_conversion(conversion, output)
            check_result(config, source, output, key)
        assert codes == unfit(config, key, stored_head="lm_head.weight" in tensors)
        assert all(hints)


def unfit(config: DraftConfig, key: str, *, stored_head: bool) -> set[str]:
    """What an engine cannot run of a draft, however it is spelled: all that may be refused."""
    full = config.draft_vocab_size == config.vocab_size
    wider = config.draft_vocab_size > config.vocab_size
    slides, bonus = bool(config.sliding_window), config.layout is Layout.BONUS_ANCHOR
    bidirectional = config.sliding_window_non_causal
    markov = config.markov_head_type if config.markov_rank else ""
    last = config.num_target_layers is not None and (
        config.num_target_layers - 1 in config.target_layer_ids
    )
    faults = {
        "vllm": {
            "markov-head-unsupported": markov in ("gated", "rnn"),
            "activation-unsupported": config.hidden_act != "silu",
        },
        "sglang": {
            "vocabulary-unsupported": not full,
            "own-head-ignored": stored_head,
            "markov-head-missing": not markov,
            "layer-id-unsupported": -1 in config.target_layer_ids or last,
            "rnn-state-misread": bonus and markov == "rnn",
            "activation-unsupported": config.hidden_act != "silu",
        },
        "llama.cpp": {
            "markov-head-unsupported": markov in ("gated", "rnn"),
            "activation-unsupported": config.hidden_act != "silu",
            "attention-bias-unsupported": config.attention_bias,
            "target-width-unsupported": config.target_hidden_size not in (None, config.hidden_size),
            "vocabulary-unsupported": wider,
            "own-head-ignored": stored_head and (full or wider),
            "causality-misread": slides
            and not bidirectional
            and "full_attention" in config.layer_types,
        },
        "deepspec": {
            "vocabulary-unsupported": not full,
            "layout-unsupported": bonus,
            "window-unsupported": slides,
            "embedding-missing": not stored_head,
            "lm-head-missing": not stored_head,
        },
    }[key]
    return {code for code, holds in faults.items() if holds}


def check_result(config: DraftConfig, source: Path, output: Path, key: str) -> None:
    draft = read_draft(output, overrides=OFFSETS)
    assert draft.config == config.model_copy(update={"num_anchors": config.num_anchors or 512})
    name = ENGINES[key].name
    reports = report_engines(output, overrides=OFFSETS).engines
    (report,) = [report for report in reports if report.engine == name]
    assert report.verdict == "loads"
    table = ENGINES[key].spelling.names.get("draft_id_to_target_id", "draft_id_to_target_id")
    renamed = {"d2t": table, "draft_id_to_target_id": table}
    before = {renamed.get(k, k): it for k, it in tensors_of(source).items() if k != "t2d"}
    assert tensors_of(output) == before
