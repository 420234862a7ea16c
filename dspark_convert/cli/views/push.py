"""What a push did, as a table."""

from __future__ import annotations

from rich.console import RenderableType

from dspark_convert.cli.views.tables import facts_grid
from dspark_convert.schemas.push import PushReport

_ACTIONS = {
    "created": "a new repository",
    "updated": "one commit to an existing repository",
    "proposed": "a pull request",
    "unchanged": "nothing: the Hub holds the same files",
}


def push_view(result: PushReport) -> RenderableType:
    """Where it is, what was done, and to which files."""
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
    return facts_grid(facts)
