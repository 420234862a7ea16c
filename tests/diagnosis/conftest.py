"""Traces and drafts that tests share.

One thread for tensors this small: more only get in each other's way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark_convert.traces.trace import Trace

from .helpers import TINY, Config, Plant, record_trace

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Long enough for faults that cost little."""
    return record_trace(tmp_path_factory.mktemp("long"), every=1, max_new_tokens=48)


@pytest.fixture(scope="module")
def short_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Long enough for faults that cost much."""
    return record_trace(tmp_path_factory.mktemp("short"), every=1, max_new_tokens=24)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """A tiny draft with faults: ``build(base, *plants)`` returns its folder."""

    def copy(base: str, *plants: Plant) -> Path:
        folder = tmp_path / base
        shutil.copytree(TINY / base, folder)
        config: Config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        for plant in plants:
            plant(config, tensors)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        return folder

    return copy
