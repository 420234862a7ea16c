"""Where a model runs, in what precision, and whether code that came with it may run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dspark_convert.errors import Finding, UsageError
from dspark_convert.runtime.dtypes import FLOAT_DTYPES


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How every command that runs a model runs it.

    ``device`` "auto" is CUDA if available, else the CPU. ``dtype`` "auto" takes that of each
    checkpoint. ``trust_remote_code``: whether Python code of the target's folder may run.
    """

    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False

    def check(self) -> None:
        """Refuse what this PyTorch cannot do, before anything is read.

        Raises ``UsageError``: ``device-unavailable``, ``dtype-unknown``.
        """
        self.torch_device()
        self.torch_dtype()

    def torch_device(self) -> torch.device:
        """The device to run on.

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
            raise unusable_option("device-unavailable", "--device", found, expected) from None
        # PyTorch devices that cannot hold weights, or into which files cannot be read.
        if device.type == "meta" or (device.type == "cpu" and device.index is not None):
            raise unusable_option("device-unavailable", "--device", name, expected)
        return device

    def torch_dtype(self) -> torch.dtype | None:
        """The dtype of every model that is loaded; None keeps that of each checkpoint.

        Raises ``UsageError`` (``dtype-unknown``).
        """
        dtype = next((known for name, known in FLOAT_DTYPES.items() if name == self.dtype), None)
        if self.dtype != "auto" and dtype is None:
            expected = f"auto, {', '.join(FLOAT_DTYPES)}"
            raise unusable_option("dtype-unknown", "--dtype", self.dtype, expected)
        return dtype


def unusable_option(code: str, option: str, found: str, expected: str) -> UsageError:
    """The error for an option that cannot be used like this."""
    return UsageError(
        Finding(
            code=code,
            message=f"{option} cannot be used like this",
            found=found,
            expected=expected,
        )
    )
