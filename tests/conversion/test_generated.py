"""Any dialect, through ``DraftConfig``, into any dialect that can say it: the meaning stays.

What a dialect cannot say is refused, never dropped.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.conversion.speculators import validate_expressible
from dspark_convert.errors import DraftError, Findings
from dspark_convert.formats.detect import detect
from dspark_convert.formats.dialects import DENSE, DIALECTS, SPECFORGE, SPECULATORS, Dialect
from dspark_convert.formats.overrides import Overrides
from dspark_convert.formats.parse import parse_config, render
from dspark_convert.formats.read import read_draft
from dspark_convert.formats.validate_config import validate_config
from dspark_convert.schemas.draft import DraftConfig

from .generated import configs, store, tensors_of_config
from .helpers import tensors_of

OFFSETS = Overrides(d2t="offsets")  # a table of a few entries can be read both ways
READABLE = (DENSE, SPECFORGE, SPECULATORS)
dialects = st.sampled_from(READABLE)
few, many = (
    settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    for examples in (30, 120)
)


def parsed(document: dict[str, object], dialect: Dialect) -> DraftConfig:
    findings = Findings()
    result = parse_config(document, dialect, {}, findings)
    assert result is not None, list(findings)
    validate_config(result.config, document, dialect, findings)
    assert not findings.of("error"), list(findings)
    return result.config


def supplied(config: DraftConfig, dialect: Dialect) -> DraftConfig:
    """A config with what a writer of the dialect adds where it is not known."""
    unknown = {k: v for k, v in dialect.supplied.items() if getattr(config, k) is None}
    return config.model_copy(update=unknown)


def expressible(config: DraftConfig) -> bool:
    findings = Findings()
    validate_expressible(config, findings)
    return not findings.of("error")


def test_every_dialect_is_generated() -> None:
    assert {dialect.name for dialect in READABLE} == DIALECTS.keys()


@settings(max_examples=300)
@given(config=configs(), first=dialects, second=dialects)
def test_config_keeps_its_meaning_through_two_dialects(
    config: DraftConfig, first: Dialect, second: Dialect
) -> None:
    document = render(config, first)
    assert detect(document, ()).dialect is first
    through = parsed(document, first)
    assert through == supplied(config, first)
    again = render(through, second)
    assert detect(again, ()).dialect is second
    assert parsed(again, second) == supplied(through, second)


drafts = given(
    config=configs(), dialect=dialects, shards=st.integers(1, 3), seed=st.integers(0, 2**16)
)


@few
@drafts
def test_draft_keeps_its_meaning_and_its_bytes(
    config: DraftConfig, dialect: Dialect, shards: int, seed: int
) -> None:
    check_draft(config, dialect, shards, seed)


@pytest.mark.slow
@many
@drafts
def test_many_drafts_keep_their_meaning_and_their_bytes(
    config: DraftConfig, dialect: Dialect, shards: int, seed: int
) -> None:
    check_draft(config, dialect, shards, seed)


def check_draft(config: DraftConfig, dialect: Dialect, shards: int, seed: int) -> None:
    tensors = tensors_of_config(config, seed)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        store(config, dialect, tensors, shards, work / "source")
        run_conversion(plan_to_dense(work / "source", overrides=OFFSETS), work / "dense")
        dense = read_draft(work / "dense", overrides=OFFSETS)
        known = {"num_anchors": config.num_anchors or 512}
        assert dense.config == config.model_copy(update=known)
        canonical = {key: (it.dtype, list(it.shape), it.data) for key, it in tensors.items()}
        assert tensors_of(work / "dense") == canonical
        for source in ("source", "dense"):
            check_speculators(config, work / source, work / f"{source}-speculators")


def check_speculators(config: DraftConfig, source: Path, output: Path) -> None:
    def plan() -> object:
        return plan_to_speculators(
            source, verifier="org/name", keep_verifier_weights=True, overrides=OFFSETS
        )

    if not expressible(config):
        with pytest.raises(DraftError) as caught:
            plan()
        assert {finding.code for finding in caught.value.findings} == {"not-expressible"}
        return
    manifest = run_conversion(plan(), output)
    draft = read_draft(output)  # t2d decides how the table is read
    aside = {"num_anchors": None}
    assert draft.config.model_copy(update=aside) == config.model_copy(update=aside)
    assert draft.config.num_anchors == config.num_anchors or source.name == "dense"
    before, after = tensors_of(source), tensors_of(output)
    table = after.pop("d2t", None)
    mask = after.pop("t2d", None)
    added = {step.name for step in manifest.tensors if step.action == "added"} - {"t2d"}
    assert not added
    assert (table is None) == (mask is None) == (not config.reduced_vocabulary)
    if table is not None:
        stored = before.pop("draft_id_to_target_id", None) or before.pop("d2t")
        assert table == stored
        ids = np.arange(config.draft_vocab_size) + np.frombuffer(table[2], "<i8")
        assert np.flatnonzero(np.frombuffer(mask[2], "?")).tolist() == ids.tolist()
    assert after == before
