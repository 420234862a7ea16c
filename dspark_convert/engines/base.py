"""An engine as data: claims about what it does, the spelling it reads, how it is started.

One module per engine fills in these values; nothing here knows an engine by name.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dspark_convert.engines.view import EngineView
from dspark_convert.formats.decoders import DEFAULT_DECODER
from dspark_convert.formats.rules import KeyPath
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.plan import EngineNote

EngineVerdict = Literal["refuses", "silent", "loads"]
VERDICTS: tuple[EngineVerdict, ...] = ("refuses", "silent", "loads")
"""From the gravest to the best. ``silent``: it loads, but drafts worse without saying so."""

TARGET = "TARGET"
"""Stands for the target model in a launch line: the name that a draft gives is not trusted."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that an engine does if a condition holds; the engine owns its claims."""

    verdict: EngineVerdict
    when: Callable[[EngineView], bool]
    reason: str
    """May use ``{n}``, the number of speculative tokens, and ``{block}``, the block size."""
    evidence: str
    """The engine's file, in the version that ``Engine`` names, where this was read."""
    code: str
    way_out: str = ""
    """What to do about it; ``{elsewhere}`` names the engines that run the draft instead."""
    avoided_by_launch: bool = False
    """Whether our launch line avoids the fault."""
    inherent: bool = False
    """Whether the draft itself is at fault, so that no conversion for this engine helps."""

    @property
    def hinders(self) -> bool:
        """Whether the claim keeps the engine from running the draft as intended."""
        return self.verdict != "loads" and not self.avoided_by_launch


@dataclass(frozen=True)
class KeySpelling:
    """One config key that an engine needs in addition to the reference spelling."""

    path: KeyPath
    value: Callable[[DraftConfig], Any]
    """What to write; None: nothing."""
    reason: str


@dataclass(frozen=True)
class Spelling:
    """How a dense checkpoint must be written for the engine to read it as intended."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Stored names that differ from the reference form, by canonical name."""
    keys: tuple[KeySpelling, ...] = ()
    zeros: tuple[str, ...] = ()
    """Optional tensors that are written as zeros, which is what their absence means."""
    ignores: Callable[[DraftConfig], tuple[str, ...]] = lambda config: ()
    """Tensors that it takes from the target, whatever the draft stores."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine at one version: a file of this package, and a row of ``ENGINES``."""

    key: str
    """Its name for ``--for``."""
    name: str
    version: str
    claims: tuple[Claim, ...]
    commands: Callable[[str, int], tuple[tuple[str, ...], ...]]
    """Commands that use the draft at a path, drafting this many tokens per round."""
    spelling: Spelling = field(default_factory=Spelling)
    reads_dense: bool = True
    """Whether it reads the dense form, so that ``--for`` can write for it."""
    decoders: Mapping[str, str] = field(default_factory=dict)
    """The decoders that it runs besides the default one, with the file where that was read."""
    schemes: Mapping[str, str] = field(default_factory=dict)
    """The quantisation schemes that it reads, with the file where that was read."""
    serves: bool = True
    """Whether it drafts for a target instead of only loading the draft."""

    def holding(self, draft: EngineView) -> list[Claim]:
        """Every claim that holds for ``draft``, the gravest first.

        Its claims are about drafts whose decoder and weights it reads; nothing more can be said
        about others.
        """
        claims = self._unread(draft) or [claim for claim in self.claims if claim.when(draft)]
        return sorted(claims, key=lambda claim: VERDICTS.index(claim.verdict))

    def _unread(self, draft: EngineView) -> list[Claim]:
        body, scheme = draft.dialect.body, draft.scheme
        unread = []
        if body is not DEFAULT_DECODER and body.name not in self.decoders:
            unread.append(_unread_part("decoder-unread", f"it has no {body.title} decoder"))
        if scheme is not None and scheme.name not in self.schemes:
            reason = f"it does not read weights of the scheme {scheme.name}"
            unread.append(_unread_part("quantisation-unread", reason))
        return unread

    def notes(self, draft: EngineView, elsewhere: str) -> tuple[EngineNote, ...]:
        """What it does with ``draft``; "loads" if no claim holds.

        Args:
            draft: a checkpoint.
            elsewhere: the advice if only another engine helps.
        """
        claims = self.holding(draft)
        notes = tuple(self._note(claim, draft, elsewhere) for claim in claims)
        return notes or (self._loads(draft),)

    def runs(self, draft: EngineView) -> bool:
        """Whether it runs ``draft`` as intended if started with our launch line."""
        return not any(claim.hinders for claim in self.holding(draft))

    def launch(self, path: str, num_speculative_tokens: int) -> tuple[str, ...]:
        """The commands, quoted for a shell."""
        return tuple(shlex.join(line) for line in self.commands(path, num_speculative_tokens))

    def _note(self, claim: Claim, draft: EngineView, elsewhere: str) -> EngineNote:
        said = {
            "n": draft.config.num_speculative_tokens,
            "block": draft.config.block_size,
            "elsewhere": elsewhere,
        }
        return EngineNote(
            engine=self.name,
            version=self.version,
            verdict=claim.verdict,
            code=claim.code,
            reason=claim.reason.format(**said),
            evidence=claim.evidence,
            way_out=claim.way_out.format(**said) or None,
            avoided_by_launch=claim.avoided_by_launch,
        )

    def _loads(self, draft: EngineView) -> EngineNote:
        return EngineNote(
            engine=self.name,
            version=self.version,
            verdict="loads",
            code="loads",
            reason=f"drafts {draft.config.num_speculative_tokens} tokens per round",
            evidence="no claim against it",
        )


def _unread_part(code: str, reason: str) -> Claim:
    return Claim(
        verdict="refuses",
        when=lambda draft: True,
        reason=reason,
        evidence="not among what its version reads",
        code=code,
        way_out="{elsewhere}",
        inherent=True,
    )


def gravest(notes: Iterable[EngineNote]) -> EngineVerdict:
    """What an engine does with a draft, in one word, if started with our launch line."""
    return min(
        ("loads" if note.avoided_by_launch else note.verdict for note in notes),
        key=VERDICTS.index,
    )
