"""Plans and refusals of the way to speculators, and the golden drafts by their kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.plan import plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import DSparkError
from dspark_convert.schemas.plan import ConversionManifest, ConversionPlan

from .reference import CONFIGS

SPECULATORS = [variant for variant in CONFIGS if variant.startswith("spec_")]
DENSE = [variant for variant in CONFIGS if variant.startswith("dense_")]
REDUCED, LEGACY = "spec_vanilla_reduced_anchor_bf16", "spec_vanilla_reduced_legacykey_bf16"
FULL, SLIDING = "spec_vanilla_full_anchor_fp32", "spec_swa_default_reduced_bf16"


def back(source: Path, output: Path, **options: Any) -> ConversionManifest:
    return run_conversion(plan_to_speculators(source, **options), output)


def planned(source: Path, **options: Any) -> ConversionPlan:
    return plan_to_speculators(source, **options).plan


def codes(plan: ConversionPlan | ConversionManifest, severity: str = "note") -> set[str]:
    return {finding.code for finding in plan.findings if finding.severity == severity}


def refusal(source: Path, **options: Any) -> list[str]:
    with pytest.raises(DSparkError) as caught:
        plan_to_speculators(source, **options)
    assert all(finding.hint for finding in caught.value.findings)
    return [finding.code for finding in caught.value.findings]


def verifier_of(variant: str, golden: Path) -> str:
    return str(golden / ("verifier_fp32" if variant.endswith("fp32") else "verifier_bf16"))
