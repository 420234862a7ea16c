"""What the acceptance cases share: golden drafts by their kind, plans and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.errors import DSparkError, Finding
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.schemas.plan import ConversionPlan

DENSE, GATED = "dense_vanilla_bf16", "spec_gated_reduced_1plusN_bf16"
FULL, REDUCED = "spec_vanilla_full_anchor_fp32", "spec_vanilla_reduced_anchor_bf16"
DENSE_GATED, DENSE_RNN = "dense_gated_fp32", "dense_rnn_bf16"
RNN = "spec_rnn_full_anchor_sharded_bf16"

Build = Callable[..., Path]


def plan(folder: Path, **overrides: Any) -> ConversionPlan:
    return plan_to_dense(folder, overrides=Overrides(**overrides)).plan


def refused(folder: Path, overrides: Overrides = NO_OVERRIDES) -> list[Finding]:
    with pytest.raises(DSparkError) as caught:
        plan_to_dense(folder, overrides=overrides)
    return list(caught.value.findings)


def codes(findings: Any) -> list[str]:
    return [finding.code for finding in findings]


def verdicts(plan: ConversionPlan) -> dict[tuple[str, str], str]:
    return {(note.engine, note.verdict): note.reason for note in plan.engines}
