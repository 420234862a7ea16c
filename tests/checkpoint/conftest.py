"""The place of an output."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"
