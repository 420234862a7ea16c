"""All knobs of ``dspark-verify check``, and the values that make no sense for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from dspark_convert.checks.acceptance import AcceptanceSettings
from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime import DecodeOptions
from dspark_convert.runtime.machine import Machine, unusable_option
from dspark_convert.runtime.sampling import require_in_range, require_seed, require_token_ids
from dspark_convert.schemas.trace import TraceHeader

DecoderOption = Literal["auto", "plain", "fast"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a draft is run on, its target over prompts or a trace of it, and how.

    ``decode.stop_token_ids`` is replaced by the target's own unless ``stop_token_ids`` is given.
    With a ``trace`` no target is loaded; ``target_weights`` is the folder from which the draft's
    borrowed tensors are read, and limit, stop tokens and sampling are the trace's: ``stated`` names
    those that the user gave, which must be equal to them. ``decoder`` "auto" decodes or replays by
    ``runtime.fast`` on a GPU if that can serve the pair, else by the plain functions of
    ``runtime``.
    """

    draft: Path
    target: Path | None = None
    trace: Path | None = None
    target_weights: Path | None = None
    stated: frozenset[str] = frozenset()
    prompts: Path | None = None
    decode: DecodeOptions = field(default_factory=lambda: DecodeOptions(max_new_tokens=128))
    stop_token_ids: frozenset[int] | None = None
    seed: int = 0
    batch_size: int = 8
    decoder: DecoderOption = "auto"
    machine: Machine = field(default_factory=Machine)

    def follow_trace(self, header: TraceHeader) -> DecodeOptions:
        """How to decode or replay texts of a trace: limit, stop tokens and sampling are its own.

        Raises ``UsageError`` (``trace-option-conflict``) if the user stated another value.
        """
        asked = replace(self.decode, stop_token_ids=self.stop_token_ids or frozenset())
        sampling = header.sampling
        followed = replace(
            asked,
            max_new_tokens=header.max_new_tokens,
            stop_token_ids=frozenset(header.stop_token_ids),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
        for name in sorted(self.stated):
            wanted, recorded = getattr(asked, name), getattr(followed, name)
            if wanted != recorded:
                raise UsageError(
                    Finding(
                        code="trace-option-conflict",
                        message="the trace was recorded with another value of this option",
                        key=name,
                        expected=_text(recorded),
                        found=_text(wanted),
                        hint="omit the option, or record a trace with this value",
                    )
                )
        return followed

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises ``UsageError``: ``trace-missing``, ``trace-option-conflict``,
        ``option-out-of-range``.
        """
        if self.trace is None and self.target_weights is not None:
            expected = "together with --trace FILE"
            raise unusable_option("trace-missing", "--target-weights", "no --trace", expected)
        if self.trace is not None:
            given = {"--target": self.target, "--prompts": self.prompts}
            for option, path in given.items():
                if path is not None:
                    code, found = "trace-option-conflict", "together with --trace"
                    raise unusable_option(code, option, found, "one of them")
        require_in_range("--batch-size", self.batch_size, 1)
        require_seed("--seed", self.seed)
        require_token_ids("--stop-token-ids", self.stop_token_ids)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RunOptions):
    """All knobs of ``dspark-verify check``.

    ``source`` is the draft before conversion, ``worst`` how many of the worst texts are shown.
    """

    source: Path | None = None
    min_accepted_length: float | None = None
    min_acceptance: tuple[float, ...] = ()
    worst: int = 0

    def acceptance_settings(self, num_tokens: int) -> AcceptanceSettings:
        """The thresholds for acceptance, for a draft of ``num_tokens`` per round.

        Raises ``UsageError`` (``option-out-of-range``).
        """
        if len(self.min_acceptance) > num_tokens:
            found = f"{len(self.min_acceptance)} values"
            expected = f"at most {num_tokens}, one for each drafted token"
            raise _out_of_range("--min-acceptance", found, expected)
        return AcceptanceSettings(
            num_tokens=num_tokens,
            min_accepted_length=self.min_accepted_length,
            min_acceptance=self.min_acceptance,
            seed=self.seed,
        )

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises ``UsageError``: ``target-missing``, ``option-out-of-range``, and what
        ``RunOptions.check`` raises.
        """
        if self.target is None and self.trace is None and self.source is None:
            expected = "--target DIR, --trace FILE, or --source DIR"
            raise unusable_option("target-missing", "--target", "neither", expected)
        super().check()
        require_in_range("--worst", self.worst, 0)
        length = self.min_accepted_length
        if length is not None and not 0 <= length < math.inf:
            expected = "a finite number, 0 or above"
            raise _out_of_range("--min-accepted-length", str(length), expected)
        for share in self.min_acceptance:
            if not 0 <= share <= 1:
                raise _out_of_range("--min-acceptance", str(share), "numbers from 0 to 1")


def _out_of_range(option: str, found: str, expected: str) -> UsageError:
    return unusable_option("option-out-of-range", option, found, expected)


def _text(value: object) -> str:
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value))) or "none"
    return str(value)
