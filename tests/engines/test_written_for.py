"""Golden drafts written for an engine: exactly the unfit ones are refused, by the right codes."""

from __future__ import annotations

import json

import pytest

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.engines import written_for
from dspark_convert.errors import DraftError, Finding
from fixtures.broken.drafts import GOLDEN

from .written_for import VARIANTS, refused


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("key", written_for()[1:])
def test_unfit_drafts_are_refused_and_no_others(
    key: str, variant: str, with_target: bool, expand: bool
) -> None:
    target = GOLDEN / json.loads((GOLDEN / variant / "expected.json").read_text())["verifier"]
    findings: tuple[Finding, ...] = ()
    try:
        plan_to_dense(
            GOLDEN / variant / "checkpoint",
            written_for=key,
            target=target if with_target else None,
            expand_vocabulary=expand,
        )
    except DraftError as error:
        findings = error.findings
    assert all(finding.hint for finding in findings)
    codes = {finding.code for finding in findings}
    assert codes == refused(key, variant, with_target=with_target, expand=expand)
