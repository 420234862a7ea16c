"""All knobs of ``dspark-verify diagnose``."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_convert.checks.options import RunOptions
from dspark_convert.errors import Finding, UsageError


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(RunOptions):
    """All knobs of ``dspark-verify diagnose``."""

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises ``UsageError``: ``target-missing``, and what ``RunOptions.check`` raises.
        """
        require_texts(self.target, self.trace)
        super().check()


def require_texts(target: object, trace: object) -> None:
    """Raises ``UsageError`` (``target-missing``) if there is neither a target nor a trace."""
    if target is None and trace is None:
        raise UsageError(
            Finding(
                code="target-missing",
                message="a diagnosis needs texts of the target",
                expected="--target DIR or --trace FILE",
                hint="with a trace recorded with --neighbours, layer ids can be diagnosed too",
            )
        )
