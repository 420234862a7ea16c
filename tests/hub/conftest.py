"""The local Hub, and a ``huggingface_hub`` that knows no other."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import huggingface_hub.file_download as file_download
import pytest
from huggingface_hub.utils import close_session

from dspark_convert.conversion import plan_to_dense, run_conversion
from tests.hub.repos import Repo, Tree
from tests.hub.server import HubServer, running_hub
from tests.hub.sources import COMMIT, DRAFT, NAME, Publish


@pytest.fixture(scope="session")
def hub_process() -> Iterator[HubServer]:
    with running_hub() as server:
        yield server


@pytest.fixture
def hub(
    hub_process: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """The server, empty; a cache of its own; a token; no waiting between attempts."""
    server = hub_process
    for store in (server.repos, server.blobs, server.requests, server.faults):
        store.clear()
    server.sent = server.received = 0
    cache = str(tmp_path / "cache" / "hub")
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    for module, name, value in (
        (constants, "ENDPOINT", server.url),
        (constants, "HUGGINGFACE_CO_URL_TEMPLATE", template),
        (file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template),
        (constants, "HF_HUB_CACHE", cache),
        (constants, "HF_HUB_DISABLE_XET", True),
        (constants, "HF_HUB_OFFLINE", False),
        (time, "sleep", lambda seconds: None),
    ):
        monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.setenv("HF_TOKEN", server.token)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    yield server
    close_session()


@pytest.fixture
def publish(hub: HubServer) -> Callable[..., Repo]:
    """Puts a folder on the Hub: ``publish(name, folder, **more files)``."""

    def put(name: str, folder: Path, more: Tree | None = None, **options: bool) -> Repo:
        tree: Tree = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return hub.repo(name, {**tree, **(more or {})}, **options)

    return put


@pytest.fixture
def source(golden: Path) -> Path:
    return golden / DRAFT


@pytest.fixture
def repo(publish: Publish, source: Path) -> Repo:
    return publish(NAME, source, {"README.md": b"# A draft\n", "notes/x.bin": b"x"})


@pytest.fixture(scope="module")
def original(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense draft made from a repository; the snapshot lies as in the cache of the Hub."""
    root = tmp_path_factory.mktemp("original")
    snapshot = root / "models--org--draft" / "snapshots" / COMMIT
    shutil.copytree(golden / DRAFT, snapshot)
    (snapshot / "README.md").write_text("---\nlicense: mit\n---\n# A draft\n")
    run_conversion(plan_to_dense(snapshot, written_for="vllm"), root / "dense")
    return root / "dense"


@pytest.fixture
def converted(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "dense")
