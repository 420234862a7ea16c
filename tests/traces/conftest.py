from __future__ import annotations

from pathlib import Path

import pytest
import torch

# One thread for tensors this small: more only get in each other's way.
torch.set_num_threads(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.safetensors"
