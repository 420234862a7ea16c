"""What is checked about a draft: one module and one row per check; nothing else lists them."""

from __future__ import annotations

from collections.abc import Mapping

from dspark_convert.checks.acceptance import ACCEPTANCE
from dspark_convert.checks.base import Check
from dspark_convert.checks.confidence import CONFIDENCE
from dspark_convert.checks.lossless import LOSSLESS_GREEDY, LOSSLESS_SAMPLING
from dspark_convert.checks.pairing import PAIRING
from dspark_convert.checks.parity import PARITY
from dspark_convert.checks.structure import STRUCTURE
from dspark_convert.errors import Finding, UsageError
from dspark_convert.schemas.report import CheckId

CHECKS: Mapping[CheckId, Check] = {
    check.id: check
    for check in (
        STRUCTURE,
        PAIRING,
        PARITY,
        LOSSLESS_GREEDY,
        LOSSLESS_SAMPLING,
        ACCEPTANCE,
        CONFIDENCE,
    )
}
"""Every check by its id, in the order in which they run and are reported."""

__all__ = ["CHECKS", "Check", "find_check"]


def find_check(check_id: CheckId) -> Check:
    """The check with an id.

    Raises:
        UsageError: ``check-unknown``.
    """
    if check_id not in CHECKS:
        raise UsageError(
            Finding(
                code="check-unknown",
                message="no check has this id",
                found=check_id,
                expected=", ".join(CHECKS),
            )
        )
    return CHECKS[check_id]
