"""What ``--json`` prints when an input was refused."""

from __future__ import annotations

from typing import Literal

from dspark_convert.errors import Finding
from dspark_convert.schemas.base import OwnDocument


class Refusal(OwnDocument):
    """Nothing was done; ``findings`` holds every reason."""

    schema_version: Literal[1] = 1
    verdict: Literal["refused"] = "refused"
    exit_code: int
    findings: tuple[Finding, ...]
