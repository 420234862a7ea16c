"""What commands that run models need first: the folders of the models, and a quiet transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import loading
from dspark_convert.hub.sources import whole_model


@dataclass(frozen=True)
class ModelFolders:
    """The models' folders, fetched from the Hub if need be; raises what ``whole_model`` raises."""

    sink: Sink
    trust_remote_code: bool

    def find(self, text: str) -> Path:
        """The folder at a path, or of a repository."""
        return whole_model(
            text,
            code=self.trust_remote_code,
            on_finding=self.sink.findings,
            progress=self.sink.shows_progress,
        )

    def find_optional(self, text: str | None) -> Path | None:
        """The folder, or None if none was named."""
        return None if text is None else self.find(text)


def quieten_transformers() -> None:
    """Keep its advice and its progress bars off the terminal.

    Raises ``DependencyError`` if PyTorch or transformers is missing: call it before anything that
    imports them.
    """
    with loading():
        import dspark_convert.runtime  # noqa: F401

        # isort: split
        from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
