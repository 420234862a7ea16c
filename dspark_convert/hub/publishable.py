"""Whether a folder is a conversion fit to be published: as its manifest says, and sound."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.files import read_limited
from dspark_convert.checkpoint.folder import open_checkpoint
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.checkpoint.side_files import MAX_SIDE_FILE_BYTES
from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.manifest import MANIFEST_FILE, read_manifest, validate_file
from dspark_convert.errors import CheckpointError, DraftError, Finding, Findings
from dspark_convert.formats.identity import identify_weights
from dspark_convert.schemas.engines import EnginesReport
from dspark_convert.schemas.plan import ConversionManifest
from dspark_convert.schemas.report import VerifyReport

CARD_FILE = "README.md"


@dataclass(frozen=True)
class Publishable:
    """A conversion that matches its manifest.

    ``files`` are those that the manifest names, and the manifest itself, without the model card;
    ``card`` is the text of the folder's own model card, "" without one.
    """

    folder: Path
    manifest: ConversionManifest
    files: tuple[str, ...]
    card: str
    engines: EnginesReport
    vocabulary: str
    report: VerifyReport | None


def examine_publishable(
    folder: Path, *, published_as: str, report: VerifyReport | None = None
) -> Publishable:
    """Check a folder against its manifest, run the static checks, and match the report to it.

    The model card may have been edited: it is the one file that people write.

    Raises:
        CheckpointError: ``manifest-missing``, ``manifest-file-missing``,
            ``manifest-file-differs``, ``manifest-name-unsafe``, ``card-unreadable``.
        DraftError: the errors of the static checks; ``report-of-other-draft``,
            ``report-empty``, ``report-failed``.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise CheckpointError(
            Finding(
                code="manifest-missing",
                message="the folder is not the result of a conversion, or comes from another "
                "version",
                file=MANIFEST_FILE,
                hint="publish what dspark-convert wrote; it leaves a manifest there",
            )
        )
    findings = Findings()
    for file in manifest.files:
        if file.name != CARD_FILE:
            validate_file(folder, file, findings, whole=True)
    findings.raise_errors(CheckpointError)
    Findings(check_draft(folder).findings).raise_errors(DraftError)
    if report is not None:
        _validate_report(report, manifest, folder)
    names = {file.name for file in manifest.files if file.name != CARD_FILE} | {MANIFEST_FILE}
    return Publishable(
        folder=folder,
        manifest=manifest,
        files=tuple(sorted(names)),
        card=_read_card(folder),
        engines=report_engines(folder, published_as=published_as),
        vocabulary=_vocabulary(folder),
        report=report,
    )


def _validate_report(report: VerifyReport, manifest: ConversionManifest, folder: Path) -> None:
    config = next((file.sha256 for file in manifest.files if file.name == CONFIG_FILE), None)
    if report.draft.config_sha256 != config:
        raise DraftError(
            Finding(
                code="report-of-other-draft",
                message="the report is about a draft with another config",
                expected=f"a draft whose {CONFIG_FILE} has SHA-256 {config}",
                found=f"{report.draft.name}, SHA-256 {report.draft.config_sha256}",
                hint="run dspark-verify on this folder",
            )
        )
    if report.draft.weights is not None:  # reports of versions before 0.2 do not name them
        weights = identify_weights(open_checkpoint(folder))
        if report.draft.weights != weights:
            raise DraftError(
                Finding(
                    code="report-of-other-draft",
                    message="the report is about a draft with the same config and other weights",
                    expected=f"weights of {weights.nbytes} bytes, SHA-256 {weights.sha256}",
                    found=f"{report.draft.name}, weights of {report.draft.weights.nbytes} bytes, "
                    f"SHA-256 {report.draft.weights.sha256}",
                    hint="run dspark-verify on this folder",
                )
            )
    if all(check.verdict == "skipped" for check in report.checks):
        raise DraftError(
            Finding(
                code="report-empty",
                message="the report holds no check that was carried out",
                found=f"{len(report.checks)} checks, all skipped" if report.checks else "no checks",
                hint="run dspark-verify with a target or a trace, or publish without a report",
            )
        )
    failed = [check.id for check in report.checks if check.verdict == "fail"]
    if failed or report.verdict == "fail":
        raise DraftError(
            Finding(
                code="report-failed",
                message=f"verification failed: {', '.join(failed) or 'the verdict is fail'}",
                hint="`dspark-verify explain ID` says what to do about a check",
            )
        )


def _read_card(folder: Path) -> str:
    path = folder / CARD_FILE
    if not os.path.lexists(path):
        return ""
    return decode_card(read_limited(path, limit=MAX_SIDE_FILE_BYTES))


def decode_card(data: bytes) -> str:
    """The text of a model card.

    Raises:
        CheckpointError: ``card-unreadable``.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        finding = Finding(
            code="card-unreadable",
            message="the model card is not UTF-8",
            file=CARD_FILE,
            hint="save it as UTF-8",
        )
        raise CheckpointError(finding) from error


def _vocabulary(folder: Path) -> str:
    draft = inspect_draft(folder).draft
    assert draft is not None, "the static checks passed"
    if draft.reduced_vocabulary:
        return f"reduced: {draft.draft_vocab_size} of {draft.vocab_size} tokens"
    return f"full: {draft.vocab_size} tokens"
