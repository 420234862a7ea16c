"""SpecForge's own exports become ordinary dense drafts."""

from __future__ import annotations

from pathlib import Path

from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from fixtures.broken import CASES
from fixtures.broken.edits import put

from .reference import CONFIGS

DENSE = "dense_vanilla_bf16"


def test_export_becomes_the_dense_draft_that_it_describes(tmp_path: Path) -> None:
    plan = plan_to_dense(CASES["specforge"].build(tmp_path)).plan
    assert plan.dialect == "specforge"
    assert plan.config == CONFIGS[DENSE] | {"num_anchors": 512}
    moved = {step.source: step.names for step in plan.keys if step.action == "moved"}
    assert moved["dflash_config.markov_rank"] == ("markov_rank",)
    assert moved["dflash_config.target_layer_ids"][0] == "target_layer_ids"
    (label,) = [step for step in plan.keys if step.source == "dflash_config.projector_type"]
    assert label.action == "dropped"
    assert plan.source_config["dflash_config"]["projector_type"] == "dspark"


def test_export_becomes_a_speculators_draft(tmp_path: Path, golden: Path) -> None:
    source = CASES["specforge"].build(tmp_path)
    plan = plan_to_speculators(source, verifier=str(golden / "verifier_bf16")).plan
    dense = plan_to_speculators(golden / DENSE / "checkpoint", verifier="org/name", **KEPT).plan
    different = {"num_anchors", "speculators_config"}
    assert {key: plan.config[key] for key in plan.config.keys() - different} == {
        key: dense.config[key] for key in dense.config.keys() - different
    }


def test_unknown_keys_of_the_block_are_carried(tmp_path: Path) -> None:
    case = CASES["specforge"]
    edited = type(case)(
        case.about, case.base, (*case.edits, put(dflash_config__extra=1, extra=2)), (), ()
    )
    plan = plan_to_dense(edited.build(tmp_path)).plan
    assert plan.config["dflash_config"] == {"extra": 1}
    assert plan.config["extra"] == 2


KEPT = {"keep_verifier_weights": True}
