"""The draft that tests put on the Hub, by its folder and its name there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.hub.repos import Repo

DRAFT = "spec_vanilla_reduced_anchor_bf16/checkpoint"
NAME = "org/draft"
COMMIT = "c0ffee" + "0" * 34
WEIGHTS = r"/resolve/[^/]+/model\.safetensors$"
Cli = Callable[..., Any]
Publish = Callable[..., Repo]
