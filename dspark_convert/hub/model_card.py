"""The model card of a conversion: a generated section between marks, inside text by anyone.

Names and reasons come from files that nobody vouches for. In the card they are plain text: no
Markdown or HTML, and so no fake mark of ours, can come from them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from dspark_convert.checkpoint.names import is_commit
from dspark_convert.errors import DraftError, Finding
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.hub.front_matter import with_front_matter
from dspark_convert.hub.location import is_repository_name
from dspark_convert.schemas.draft import Layout
from dspark_convert.schemas.engines import EngineReport, EnginesReport
from dspark_convert.schemas.numbers import AcceptanceNumbers
from dspark_convert.schemas.plan import ConversionManifest, SourceIdentity
from dspark_convert.schemas.report import VerifyReport

BEGIN = "<!-- dspark-convert begin: generated, write outside of it -->"
END = "<!-- dspark-convert end -->"

RELATION = "quantized"
"""Of the four relations that the Hub knows, the one for changes of format."""

_SECTION = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
_MARKUP = re.compile(r"([\\`*_\[\]#|~$])")
_LAYOUTS = {
    Layout.ANCHOR_FIRST: "anchor-first: every slot predicts the next position",
    Layout.BONUS_ANCHOR: "1+N: slot 0 is the anchor and is not sampled",
}


def update_card(
    card: str,
    manifest: ConversionManifest,
    engines: EnginesReport,
    report: VerifyReport | None,
    *,
    vocabulary: str,
) -> str:
    """``card`` with its generated section and front matter brought up to date.

    Args:
        card: the text so far; may be empty.
        manifest: of the conversion.
        engines: what engines do with the result, under the name by which it is published.
        report: of ``dspark-verify``; None: not verified.
        vocabulary: one line about the vocabulary.

    Raises:
        DraftError: ``card-marks-damaged``, ``card-front-matter-invalid``.
    """
    if (card.count(BEGIN), card.count(END)) not in ((0, 0), (1, 1)) or (
        BEGIN in card and _SECTION.search(card) is None
    ):
        raise DraftError(
            Finding(
                code="card-marks-damaged",
                message="the marks of the generated section are not one matching pair",
                file="README.md",
                expected=f"{BEGIN} ... {END}",
                hint="remove the marks and the generated text between them",
            )
        )
    lines = _section(manifest, engines, report, vocabulary)
    section = f"{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}"
    if BEGIN in card:
        card = _SECTION.sub(lambda match: section, card)
    else:
        card = f"{card.rstrip()}\n\n{section}\n" if card.strip() else f"{section}\n"
    return with_front_matter(card, _front(manifest))


def _front(manifest: ConversionManifest) -> dict[str, str | tuple[str, ...]]:
    tags: tuple[str, ...] = ("dspark", "speculative-decoding")
    if dialect := DIALECTS.get(manifest.output_dialect):
        tags = (*tags, *dialect.tags)
    published = [source for source in _sources(manifest) if _published(source)]
    if not published:
        return {"tags": tags}
    return {"base_model": published[0].name, "base_model_relation": RELATION, "tags": tags}


def _published(source: SourceIdentity) -> bool:
    """Whether a manifest names a commit of a repository; somebody else may have written it."""
    commit = is_commit(source.revision)
    return bool(commit) and is_repository_name(source.name)


def _sources(manifest: ConversionManifest) -> list[SourceIdentity]:
    return [manifest.source, *(earlier.source for earlier in manifest.history)]


def _section(
    manifest: ConversionManifest,
    engines: EnginesReport,
    report: VerifyReport | None,
    vocabulary: str,
) -> Iterator[str]:
    tokens = engines.num_speculative_tokens
    yield "## How this draft was made"
    yield ""
    yield from _table(
        ("", ""),
        (
            ("converted from", _identity(manifest.source)),
            *(("made from", _identity(earlier.source)) for earlier in manifest.history),
            *((("target model", _identity(manifest.target)),) if manifest.target else ()),
            ("converted by", f"dspark-convert {_text(manifest.tool_version)}"),
            ("format", f"{_text(manifest.dialect)} to {_text(manifest.output_dialect)}"),
            ("layout", f"{_LAYOUTS[manifest.layout]} ({_text(manifest.layout_evidence)})"),
            ("block", f"{engines.block_size} slots, {tokens} speculative tokens"),
            ("vocabulary", _text(vocabulary)),
            ("tensors", _tensors(manifest)),
            *((("overruled", _overrides(manifest)),) if manifest.overrides else ()),
        ),
    )
    yield ""
    yield "`dspark_conversion.json` says what happened to every tensor and every config key."
    yield ""
    yield "## Serving"
    yield ""
    yield "`TARGET` stands for the target model."
    for engine in engines.engines:
        yield from _engine(engine)
    yield ""
    yield "## Verification"
    yield ""
    yield from _verification(report)


def _identity(source: SourceIdentity) -> str:
    if not _published(source):
        return f"{_code(source.name)}, a local folder"
    link = f"https://huggingface.co/{source.name}/tree/{source.revision}"
    return f"[{_text(source.name)}]({link}) at commit {_code(source.revision)}"


def _tensors(manifest: ConversionManifest) -> str:
    actions = [step.action for step in manifest.tensors]
    return ", ".join(f"{actions.count(action)} {action}" for action in dict.fromkeys(actions))


def _overrides(manifest: ConversionManifest) -> str:
    return ", ".join(_code(f"{key}={value}") for key, value in manifest.overrides.items())


def _engine(engine: EngineReport) -> Iterator[str]:
    words = {"loads": "loads", "refuses": "does not load it", "silent": "loads it, with a fault"}
    yield ""
    yield f"**{_text(engine.engine)} {_text(engine.version)}**: {words[engine.verdict]}."
    if engine.verdict != "loads":
        yield from (f"- {_text(note.reason)}" for note in engine.notes)
    if engine.launch:
        yield ""
        yield "```shell"
        yield from engine.launch
        yield "```"


def _verification(report: VerifyReport | None) -> Iterator[str]:
    if report is None:
        yield "The draft was checked statically; its acceptance was not measured."
        return
    settings = report.settings
    target = _code(report.target.name) if report.target else "no target"
    yield (
        f"`dspark-verify` {_text(report.tool_version)}: **{report.verdict}**, against {target}, "
        f"{settings.num_prompts} prompts, temperature {settings.temperature:g}, "
        f"{settings.max_new_tokens} new tokens, seed {settings.seed}."
    )
    yield ""
    checks = ((_code(c.id), c.verdict, _text(c.reason)) for c in report.checks)
    yield from _table(("check", "verdict", "because"), checks)
    for check in report.checks:
        if isinstance(check.numbers, AcceptanceNumbers):
            yield ""
            yield from _acceptance(check.numbers)


def _acceptance(numbers: AcceptanceNumbers) -> Iterator[str]:
    interval = numbers.interval95
    bounds = "" if interval is None else f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})"
    yield (
        f"Accepted length, bonus token included: **{_number(numbers.accepted_length)}**"
        f"{bounds}, {numbers.method}."
    )
    yield ""
    rows = zip(numbers.acceptance_by_position, numbers.survival_by_position, strict=True)
    yield from _table(
        ("token", "acceptance", "survival"),
        ((str(k), _number(rate), _number(alive)) for k, (rate, alive) in enumerate(rows, start=1)),
    )


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _text(value: object) -> str:
    """``value`` on one line, shown as it is."""
    plain = _one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", plain)


def _code(value: object) -> str:
    """``value`` in an HTML code span, since a backtick or a bar would end a Markdown one."""
    plain = _one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<code>{_MARKUP.sub(_entity, plain)}</code>"


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[1])};"


def _one_line(value: object) -> str:
    return "".join(
        " " if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") else character
        for character in str(value)
    )
