"""What ``check`` and ``diagnose`` are asked alike: a draft, texts of its target, how to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dspark_convert.cli.console import Sink
from dspark_convert.errors import Finding, UsageError
from dspark_convert.hub.sources import whole_model

if TYPE_CHECKING:
    from dspark_convert.checks.options import RunOptions

    Options = TypeVar("Options", bound=RunOptions)

MAX_NEW_TOKENS = 128
# Options that a trace decides.
_RECORDED = ("max_new_tokens", "stop_token_ids", "temperature", "top_k", "top_p")


@dataclass(frozen=True, kw_only=True)
class RawRun:
    """The options as typed; lists are still texts."""

    draft: str
    target: str | None
    trace: Path | None
    target_weights: str | None
    prompts: Path | None
    max_new_tokens: int | None
    stop_token_ids: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    draft_sampling: Literal["sample", "greedy"]
    num_speculative_tokens: int | None
    seed: int
    batch_size: int
    engine: Literal["auto", "plain", "fast"]
    device: str
    dtype: str
    trust_remote_code: bool


def open_folder(raw: RawRun, sink: Sink) -> Callable[[str], Path]:
    """Where a folder or a repository of the Hub lies, fetched if need be."""
    return partial(
        whole_model,
        code=raw.trust_remote_code,
        on_finding=sink.findings,
        progress=sink.shows_progress,
    )


def build_options(
    kind: type[Options],
    raw: RawRun,
    sink: Sink,
    *,
    confidence_threshold: float | None = None,
    **more: Any,
) -> Options:
    """The options of a run; ``more`` are fields that only one command has.

    Raises ``UsageError`` for values that cannot be meant, and what ``whole_model`` raises.
    """
    quieten_transformers()
    from dspark_convert.runtime import DecodeOptions
    from dspark_convert.runtime.machine import Machine

    folder = open_folder(raw, sink)
    return kind(
        draft=folder(raw.draft),
        target=None if raw.target is None else folder(raw.target),
        trace=raw.trace,
        target_weights=None if raw.target_weights is None else folder(raw.target_weights),
        stated=frozenset(name for name in _RECORDED if getattr(raw, name) is not None),
        prompts=raw.prompts,
        decode=DecodeOptions(
            max_new_tokens=MAX_NEW_TOKENS if raw.max_new_tokens is None else raw.max_new_tokens,
            temperature=raw.temperature or 0.0,
            top_k=raw.top_k,
            top_p=raw.top_p,
            draft_sampling=raw.draft_sampling,
            num_speculative_tokens=raw.num_speculative_tokens,
            confidence_threshold=confidence_threshold,
        ),
        stop_token_ids=_stop_ids(raw.stop_token_ids),
        seed=raw.seed,
        batch_size=raw.batch_size,
        engine=raw.engine,
        machine=Machine(
            device=raw.device, dtype=raw.dtype, trust_remote_code=raw.trust_remote_code
        ),
        **more,
    )


def quieten_transformers() -> None:
    """Keep its advice and its progress bars off the terminal.

    Raises ``DependencyError`` where PyTorch or transformers is missing: call it before anything
    that imports them.
    """
    import dspark_convert.runtime  # noqa: F401

    # isort: split
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _stop_ids(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(
            Finding(
                code="stop-token-ids-invalid",
                message="--stop-token-ids is a list of numbers",
                found=text,
                expected="1,2",
            )
        ) from None
