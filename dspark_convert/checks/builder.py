"""A report under construction: checks are run, timed, or skipped with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dspark_convert.schemas.report import (
    CheckId,
    CheckResult,
    ExampleText,
    MarkedText,
    VerifiedTarget,
)


@dataclass
class ReportBuilder:
    """What the checks have come to so far."""

    results: list[CheckResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    target: VerifiedTarget | None = None
    stop_token_ids: tuple[int, ...] | None = None
    num_prompts: int = 0
    engine: Literal["plain", "fast"] | None = None
    engine_reason: str | None = None
    example: ExampleText | None = None
    worst: tuple[MarkedText, ...] = ()

    def add(self, check: Callable[[], CheckResult]) -> CheckResult:
        """Run one check and keep its result and its wall time."""
        start = time.perf_counter()
        result = check()
        self.results.append(result)
        self.seconds[result.id] = round(time.perf_counter() - start, 3)
        return result

    def skip(self, ids: Sequence[CheckId], reason: str) -> None:
        """Record checks that cannot run, with the reason."""
        self.results += [
            CheckResult(id=check_id, verdict="skipped", reason=reason, numbers=None)
            for check_id in ids
        ]
