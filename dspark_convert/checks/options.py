"""All knobs of ``dspark-verify check``, and what cannot be meant by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from dspark_convert.checks.acceptance import AcceptanceSettings
from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime import DecodeOptions

Progress = Callable[[str, int, int], None]
"""Hears what is being done, how many prompts are done, and of how many."""

EngineOption = Literal["auto", "plain", "fast"]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """All knobs of ``dspark-verify check``.

    ``decode.stop_token_ids`` is replaced by the target's own unless ``stop_token_ids`` is given.
    ``dtype`` "auto" takes that of each checkpoint. With a ``trace`` no target is loaded;
    ``target_weights`` is the folder from which the draft's borrowed tensors are read, and limit,
    stop tokens and sampling are the trace's: ``stated`` names those that the user gave, which must
    be the same. ``worst`` is how many of the worst texts are shown. ``engine`` "auto" decodes by
    ``runtime.fast`` on a GPU where it can decode the pair, else by ``runtime.decode``.
    """

    draft: Path
    target: Path | None = None
    trace: Path | None = None
    target_weights: Path | None = None
    stated: frozenset[str] = frozenset()
    source: Path | None = None
    prompts: Path | None = None
    decode: DecodeOptions = field(default_factory=lambda: DecodeOptions(max_new_tokens=128))
    stop_token_ids: frozenset[int] | None = None
    min_accepted_length: float | None = None
    min_acceptance: tuple[float, ...] = ()
    worst: int = 0
    seed: int = 0
    batch_size: int = 8
    engine: EngineOption = "auto"
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False

    def torch_device(self) -> torch.device:
        """The device to run on; "auto" is CUDA where there is one.

        Raises ``UsageError`` (``device-unavailable``).
        """
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        expected = "auto, cpu, or a GPU that this PyTorch sees: cuda, cuda:1, ..."
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].split(". ")[0]
            found = f"{name} ({reason})"
            raise usage("device-unavailable", "--device", found, expected) from None
        # Devices of PyTorch that hold no weights, or that files cannot be read to.
        if device.type == "meta" or (device.type == "cpu" and device.index is not None):
            raise usage("device-unavailable", "--device", name, expected)
        return device

    def torch_dtype(self) -> torch.dtype | None:
        """The dtype of both models; None keeps that of each checkpoint.

        Raises ``UsageError`` (``dtype-unknown``).
        """
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise usage("dtype-unknown", "--dtype", self.dtype, f"auto, {', '.join(DTYPES)}")
        return DTYPES.get(self.dtype)

    def acceptance_settings(self, num_tokens: int) -> AcceptanceSettings:
        """What acceptance is held against, for a draft of ``num_tokens`` a round."""
        if len(self.min_acceptance) > num_tokens:
            found = f"{len(self.min_acceptance)} values"
            expected = f"at most {num_tokens}, one for each drafted token"
            raise usage("option-out-of-range", "--min-acceptance", found, expected)
        return AcceptanceSettings(
            num_tokens=num_tokens,
            min_accepted_length=self.min_accepted_length,
            min_acceptance=self.min_acceptance,
            seed=self.seed,
        )

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.target is None and self.trace is None and self.source is None:
            expected = "--target DIR, --trace FILE, or --source DIR"
            raise usage("target-missing", "--target", "neither", expected)
        if self.trace is None and self.target_weights is not None:
            raise usage("trace-missing", "--target-weights", "no --trace", "--trace FILE beside it")
        if self.trace is not None:
            given = {"--target": self.target, "--prompts": self.prompts}
            for option, path in given.items():
                if path is not None:
                    raise usage("trace-option-conflict", option, "--trace beside it", "one of them")
        if self.worst < 0:
            raise usage("option-out-of-range", "--worst", str(self.worst), "0 or above")
        if self.batch_size < 1:
            raise usage("option-out-of-range", "--batch-size", str(self.batch_size), "1 or above")


def usage(code: str, option: str, found: str, expected: str) -> UsageError:
    """The error for an option that cannot be used like this."""
    return UsageError(
        Finding(
            code=code,
            message=f"{option} cannot be used like this",
            found=found,
            expected=expected,
        )
    )
