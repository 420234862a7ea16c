"""What ``dspark-convert push`` does: read the report, publish, show."""

from __future__ import annotations

from pathlib import Path

from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import refusals
from dspark_convert.cli.render import facts_grid
from dspark_convert.hub.location import repository_name
from dspark_convert.hub.push import push_conversion
from dspark_convert.reports.read import read_report
from dspark_convert.schemas.push import PushReport

_ACTIONS = {
    "created": "a new repository",
    "updated": "one commit to an existing repository",
    "proposed": "a pull request",
    "unchanged": "nothing: the Hub holds the same files",
}


def push(
    folder: Path,
    repository: str,
    *,
    public: bool,
    create_pr: bool,
    yes: bool,
    report: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Publish a conversion."""
    sink = Sink(as_json=as_json, quiet=quiet)
    with refusals(sink):
        result = push_conversion(
            folder,
            repository_name(repository),
            public=public,
            create_pr=create_pr,
            yes=yes,
            report=None if report is None else read_report(report),
            progress=sink.shows_progress,
            on_finding=sink.findings,
        )
        sink.data(result.model_dump(mode="json"), facts_grid(_facts(result)))


def _facts(result: PushReport) -> list[tuple[str, str]]:
    facts = [
        ("published", result.url),
        ("done", _ACTIONS[result.action]),
        ("commit", result.commit),
        ("uploaded", ", ".join(result.uploaded) or "nothing"),
        ("unchanged", ", ".join(result.unchanged) or "nothing"),
    ]
    if result.deleted:
        facts.append(("deleted", ", ".join(result.deleted)))
    if result.private is not None:
        facts.append(("visible to", "its owner" if result.private else "everybody"))
    return facts
