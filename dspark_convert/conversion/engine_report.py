"""What every engine will do with a checkpoint as it lies on disk, and how to start each."""

from __future__ import annotations

from pathlib import Path

from dspark_convert.checkpoint.names import CONFIG_FILE, display_name, repository_of, shown_name
from dspark_convert.conversion.inspection import engine_view
from dspark_convert.engines import ENGINES, Engine, EngineView, gravest, notes_of
from dspark_convert.errors import Findings
from dspark_convert.formats.overrides import NO_OVERRIDES, Overrides
from dspark_convert.formats.read import read_draft_with_notes
from dspark_convert.schemas.engines import EngineReport, EnginesReport


def report_engines(
    folder: Path, *, overrides: Overrides = NO_OVERRIDES, published_as: str | None = None
) -> EnginesReport:
    """The compatibility table of one draft, with launch lines.

    The lines name the draft by ``published_as``, else by its repository, else by its folder.

    Raises:
        CheckpointError, DialectError, DraftError: the draft is refused, with every error found.
    """
    source, findings = read_draft_with_notes(folder, overrides=overrides)
    draft = engine_view(source)
    _note_rnn(draft, findings)
    repository, revision = repository_of(folder)
    path = published_as or shown_name(str(folder) if revision is None else repository)
    return EnginesReport(
        name=display_name(folder),
        dialect=source.dialect.name,
        layout=draft.config.layout,
        layout_evidence=source.parsed.layout_evidence,
        block_size=draft.config.block_size,
        num_speculative_tokens=draft.config.num_speculative_tokens,
        engines=tuple(_report(engine, draft, path) for engine in ENGINES.values()),
        findings=tuple(findings),
    )


def _report(engine: Engine, draft: EngineView, path: str) -> EngineReport:
    notes = notes_of(engine, draft)
    verdict = gravest(notes)
    tokens = draft.config.num_speculative_tokens
    return EngineReport(
        engine=engine.name,
        version=engine.version,
        verdict=verdict,
        launch=() if verdict == "refuses" else engine.launch(path, tokens),
        notes=notes,
    )


def _note_rnn(draft: EngineView, findings: Findings) -> None:
    if draft.bonus_anchor and draft.markov == "rnn":
        findings.note(
            "rnn-state-readings",
            "an rnn head in the 1+N layout is read in two ways: its state takes a step on the "
            "unsampled anchor slot, as in the training code of speculators, or starts after it, "
            "as in SGLang; the decoder of dspark-verify follows the training code",
            file=CONFIG_FILE,
            key="markov_head_type",
        )
