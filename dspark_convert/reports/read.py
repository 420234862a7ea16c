"""Read a report back, for comparisons, gates, and pages made later."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.checks import CHECKS
from dspark_convert.errors import Finding, ReportError
from dspark_convert.reports.consistency import require_consistent
from dspark_convert.schemas.diagnosis import READING_IDS, Diagnosis
from dspark_convert.schemas.report import VerifyReport

Document = TypeVar("Document", bound=BaseModel)

MAX_REPORT_BYTES = 100_000_000


def read_report(path: Path) -> VerifyReport:
    """The report in a JSON file.

    Raises:
        ReportError: ``report-invalid``, with the first key that does not fit;
            ``report-inconsistent`` when its numbers or verdicts contradict each other.
        CheckpointError: the file cannot be read, or is not JSON.
    """
    report = _read(path, VerifyReport, "report-invalid", "dspark-verify check --report")
    require_consistent(report, path.name)
    return report


def read_diagnosis(path: Path) -> Diagnosis:
    """The diagnosis in a JSON file.

    Raises:
        ReportError: ``diagnosis-invalid``, with the first key that does not fit.
        CheckpointError: the file cannot be read, or is not JSON.
    """
    return _read(path, Diagnosis, "diagnosis-invalid", "dspark-verify diagnose --json")


def _read(path: Path, model: type[Document], code: str, written_by: str) -> Document:
    document = read_json(path, limit=MAX_REPORT_BYTES)
    ids = {"checks": CHECKS, "readings": READING_IDS}
    try:
        return model.model_validate(document, context=ids)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ReportError(
            Finding(
                code=code,
                message=f"not what {written_by} writes: {first['msg']}",
                file=path.name,
                key=".".join(map(str, first["loc"])) or None,
                hint=f"write it with {written_by}, of this version",
            )
        ) from None
