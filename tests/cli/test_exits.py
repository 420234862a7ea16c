"""What ends a command, as an exit code."""

from __future__ import annotations

import pytest
import typer

from dspark_convert.cli.console import Sink
from dspark_convert.cli.exits import refusals


class OutOfMemoryError(RuntimeError):
    """As PyTorch has it for a GPU."""


CPU = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(CPU), OutOfMemoryError("CUDA")])
def test_want_of_memory_is_a_refusal(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, refusals(Sink()):
        raise error
    assert caught.value.exit_code == 3
    assert "memory-exhausted" in capsys.readouterr().err


def test_faults_of_ours_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"), refusals(Sink()):
        raise RuntimeError("size mismatch")
