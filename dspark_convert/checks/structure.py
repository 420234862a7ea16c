"""Whether the files make a complete, consistent draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_convert.checks.base import Check
from dspark_convert.schemas.numbers import StructureNumbers
from dspark_convert.schemas.report import CheckResult

if TYPE_CHECKING:
    from dspark_convert.checks.context import CheckContext


def check_structure(context: CheckContext) -> CheckResult:
    """The ``structure`` check: what was found while the draft was read."""
    findings = context.examination.findings
    errors = findings.of("error")
    reason = str(errors[0]) if errors else "complete and consistent"
    if len(errors) > 1:
        reason += f" (and {len(errors) - 1} more)"
    return CheckResult(
        id="structure",
        verdict="fail" if errors else "pass",
        reason=reason,
        numbers=StructureNumbers(
            errors=len(errors),
            warnings=len(findings.of("warning")),
            notes=len(findings.of("note")),
            findings=tuple(findings),
        ),
    )


STRUCTURE = Check(
    id="structure",
    title="Do the files make a complete, consistent draft?",
    looks_at="Config, safetensors headers and vocabulary tables, as `dspark-convert check` "
    "reads them: every tensor that the config implies, with its shape; layer ids, mask token, "
    "layout, heads. No model runs.",
    fails_when="Anything is missing, contradictory or out of range. Serving engines rarely "
    "notice: they serve uninitialised memory.",
    what_to_do="Each finding names the file, key or tensor, and the option that overrides it.",
    needs=(),
    run=check_structure,
)
