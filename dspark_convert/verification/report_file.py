"""Reading a report back: for comparisons, gates, and pages made later."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.errors import DSparkError, Finding
from dspark_convert.schemas.report import VerifyReport

MAX_REPORT_BYTES = 100_000_000


class ReportError(DSparkError):
    """A file is not a report of ``dspark-verify check``."""


def read_report(path: Path) -> VerifyReport:
    """The report in a JSON file.

    Raises:
        ReportError: ``report-invalid``, with the first key that does not fit.
        CheckpointError: the file cannot be read, or is not JSON.
    """
    document = read_json(path, limit=MAX_REPORT_BYTES)
    try:
        return VerifyReport.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ReportError(
            Finding(
                code="report-invalid",
                message=f"not a report of dspark-verify check: {first['msg']}",
                file=path.name,
                key=".".join(map(str, first["loc"])) or None,
                hint="write it with dspark-verify check --report, of this version",
            )
        ) from None
