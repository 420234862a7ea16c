"""The decode run that several checks share, by one of the two decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from dspark_convert.checks.acceptance import AcceptanceSettings, measure_acceptance
from dspark_convert.checks.confidence import check_confidence
from dspark_convert.checks.marked_texts import Marks, mark_decoded
from dspark_convert.checks.observer import RunObserver
from dspark_convert.checks.options import DecoderOption, VerifyOptions
from dspark_convert.replay.repetition import group_prompts
from dspark_convert.runtime import CausalTarget, DecodeOptions, DecodeResult, DraftModel, decode
from dspark_convert.runtime.drafting import count_tokens
from dspark_convert.runtime.fast import decode_fast, why_unsupported
from dspark_convert.runtime.records import Progress
from dspark_convert.schemas.report import CheckResult


@dataclass(frozen=True, slots=True)
class DecoderChoice:
    """The decoder of a run. ``reason``: why it is the plain one, if that was not asked for."""

    name: Literal["plain", "fast"]
    reason: str | None = None


def choose_decoder(
    asked: DecoderOption, target: CausalTarget, draft: DraftModel, device: torch.device
) -> DecoderChoice:
    """The decoder for a pair that runs on ``device``: "auto" is fast on a GPU if possible."""
    if asked != "auto":
        return DecoderChoice(asked)
    if device.type != "cuda":
        return DecoderChoice("plain", f"the device is {device}")
    reason = why_unsupported(target, draft)
    return DecoderChoice("fast" if reason is None else "plain", reason)


class DecodeRun:
    """All prompts decoded once, under an observer; the time this takes belongs to no check.

    Raises ``DialectError`` (``target-not-fast``) if the fast decoder was asked for but cannot
    decode the pair, and what ``decode`` raises.
    """

    def __init__(
        self,
        options: VerifyOptions,
        target: CausalTarget,
        draft: DraftModel,
        names: Sequence[str],
        token_ids: Sequence[list[int]],
        on_progress: Progress,
    ) -> None:
        self.target, self.draft = target, draft
        self.names, self.token_ids = names, token_ids
        self.groups = group_prompts(map(tuple, token_ids))
        self.decoder = choose_decoder(options.decoder, target, draft, draft.device)
        self.options = options.decode
        self.num_tokens = count_tokens(draft, self.options)
        self.seed, self.batch_size = options.seed, options.batch_size
        self.on_progress = on_progress
        self.observer = RunObserver(draft, target.vocab_size, options.seed)
        self.results = self._decode(self.options, self.observer, "decoding")

    @property
    def marks(self) -> list[Marks]:
        """What happened to the tokens of every output."""
        return [mark_decoded(*each) for each in zip(self.names, self.results, strict=True)]

    def run_greedily(self) -> tuple[DecodeOptions, tuple[DecodeResult, ...]]:
        """Options and results at temperature 0: of this run, or of another one if this samples."""
        if self.options.sampling.greedy:
            return self.options, self.results
        options = replace(self.options, temperature=0.0)
        return options, self._decode(options, None, "decoding greedily")

    def check_acceptance(self, settings: AcceptanceSettings) -> CheckResult:
        """The ``acceptance`` check; its interval is over different prompts."""
        outside = self.observer.mass_outside
        return measure_acceptance(
            self.results, self.names, settings, groups=self.groups, mass_outside=outside
        )

    def check_confidence(self) -> CheckResult:
        """The ``confidence`` check of a draft with a confidence head."""
        return check_confidence(self.results, self.num_tokens, self.groups)

    def _decode(
        self, options: DecodeOptions, observer: RunObserver | None, what: str
    ) -> tuple[DecodeResult, ...]:
        generator = torch.Generator(self.draft.device).manual_seed(self.seed)
        if self.decoder.name == "fast":
            return decode_fast(
                self.target,
                self.draft,
                self.token_ids,
                options,
                generator=generator,
                rows=self.batch_size,
                observer=observer,
                on_finished=lambda done: self.on_progress(what, done, len(self.token_ids)),
            )
        results: list[DecodeResult] = []
        for start in range(0, len(self.token_ids), self.batch_size):
            batch = self.token_ids[start : start + self.batch_size]
            results += decode(
                self.target, self.draft, batch, options, generator=generator, observer=observer
            )
            self.on_progress(what, len(results), len(self.token_ids))
        return tuple(results)
