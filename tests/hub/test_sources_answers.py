"""Answers of the Hub that are no draft, tokens, caches, and names that are not what they seem."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest

from tests.hub.repos import Repo, Sparse
from tests.hub.server import Fault, HubServer
from tests.hub.sources import NAME, WEIGHTS, Cli, Publish


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "repo-private"),
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            "hub-unauthorized",
        ),
        (403, {"X-Error-Code": "GatedRepo"}, "repo-gated"),
        (403, {}, "hub-forbidden"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "repo-disabled"),
        (404, {"X-Error-Code": "RepoNotFound"}, "repo-missing"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "revision-missing"),
        (409, {}, "hub-conflict"),
        (429, {"Retry-After": "7"}, "rate-limited"),
        (500, {}, "hub-error"),
    ],
)
def test_every_answer_has_its_code(
    status: int, headers: dict[str, str], code: str, hub: HubServer, repo: Repo, cli: Cli
) -> None:
    hub.fail(Fault("GET", f"/api/models/{NAME}$", status, headers), times=99)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, [code])
    (finding,) = outcome.json["findings"]
    assert finding["hint"]
    assert NAME in finding["found"] + (finding["expected"] or "")
    assert "Traceback" not in outcome.err
    assert hub.token not in outcome.out + outcome.err


def test_answer_that_names_no_commit_is_refused(hub: HubServer, repo: Repo, cli: Cli) -> None:
    repo.commits["latest"] = repo.tree
    repo.refs["main"] = "latest"
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["hub-refused"])
    assert outcome.json["findings"][0]["found"] == "the answer names no commit"


def test_file_that_was_listed_and_is_not_there(hub: HubServer, repo: Repo, cli: Cli) -> None:
    hub.fail(Fault("GET", WEIGHTS, 404, {"X-Error-Code": "EntryNotFound"}), times=99)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["hub-file-missing"])
    assert NAME in outcome.json["findings"][0]["found"]


def test_rate_limit_of_a_download_is_told(hub: HubServer, repo: Repo, cli: Cli) -> None:
    hub.fail(Fault("GET", WEIGHTS, 429, {"Retry-After": "3"}), times=99)
    outcome = cli("inspect", NAME, "--json")
    assert outcome.codes == ["rate-limited"]
    assert "asks to wait 3 s" in outcome.json["findings"][0]["found"]


def test_rate_limit_that_passes_is_waited_for(hub: HubServer, repo: Repo, cli: Cli) -> None:
    hub.fail(Fault("GET", WEIGHTS, 429), times=2)
    assert cli("inspect", NAME).code == 0


def test_private_and_gated_repositories_without_a_token(
    hub: HubServer, publish: Publish, source: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("org/private", source, private=True)
    publish("org/gated", source, gated=True)
    assert cli("inspect", "org/private").code == 0
    assert cli("inspect", "org/gated").code == 0
    shutil.rmtree(Path(constants.HF_HUB_CACHE))
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    assert cli("inspect", "org/private", "--json").codes == ["repo-private"]
    assert cli("inspect", "org/gated", "--json").codes == ["repo-gated"]
    assert cli("inspect", "org/absent", "--json").codes == ["repo-private"]


def test_token_is_never_stored(hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path) -> None:
    outcome = cli("to-dense", NAME, tmp_path / "out")
    assert outcome.code == 0
    assert hub.token not in outcome.out + outcome.err
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert hub.token.encode() not in path.read_bytes(), path


def test_offline_reads_the_cache_or_says_why_not(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("inspect", NAME).code == 0  # config and headers only
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert cli("inspect", NAME, "--json").codes == ["offline"]
    assert cli("inspect", "org/never-seen", "--json").codes == ["offline"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert cli("to-dense", NAME, tmp_path / "online").code == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    done = cli("to-dense", NAME, tmp_path / "offline", "--json")
    assert done.code == 0, done
    assert "note offline" in done.err
    assert done.json["source"]["revision"] == repo.refs["main"]
    assert hub.requests == []


def test_unreachable_hub(hub: HubServer, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert cli("inspect", NAME, "--json").codes == ["hub-unreachable"]


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "disk-full"), (errno.EACCES, "cache-not-writable")]
)
def test_cache_that_cannot_be_written(
    number: int,
    code: str,
    hub: HubServer,
    repo: Repo,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(target))

    monkeypatch.setattr("huggingface_hub.file_download._chmod_and_move", failing)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, [code])
    assert "cache" in outcome.json["findings"][0]["found"]


def test_server_that_ignores_ranges_is_not_drained(
    hub: HubServer, repo: Repo, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.hub import server

    plain = server._Handler._file

    def ignoring(self: Any, content: Any, headers: dict[str, str]) -> None:
        del self.headers["Range"]
        plain(self, content, headers)

    monkeypatch.setattr(server._Handler, "_file", ignoring)
    assert cli("inspect", NAME, "--json").codes == ["range-refused"]


def test_absurd_size_is_refused(hub: HubServer, cli: Cli) -> None:
    hub.repo(NAME, {"config.json": b"{}", "model.safetensors": Sparse(b"", 1 << 50)})
    assert cli("inspect", NAME, "--json").codes == ["hub-size-absurd"]


def test_names_that_leave_the_folder_are_left_out(
    hub: HubServer, repo: Repo, source: Path, cli: Cli, tmp_path: Path
) -> None:
    repo.commit({**repo.tree, "../outside.json": b"{}", "..": b"x", "a/b.json": b"{}"})
    assert cli("to-dense", NAME, tmp_path / "out").code == 0
    asked = [path for _, path, _ in hub.requests if "outside" in path or "b.json" in path]
    assert asked == []


def test_local_folder_wins_and_that_is_said(
    hub: HubServer,
    repo: Repo,
    source: Path,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(source, tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    local = cli("inspect", NAME, "--json")
    assert local.json["name"] == "draft"
    assert "note local-folder-used" in local.err
    assert hub.requests == []
    assert cli("inspect", f"hf://{NAME}", "--json").json["name"].startswith(f"{NAME}@")
    assert cli("inspect", f"./{NAME}", "--json").err.count("local-folder-used") == 0


@pytest.mark.parametrize("text", ["hf://", "hf://one", "hf://a/b/c", "hf://a/b@", "hf://../b@x"])
def test_bad_address_is_wrong_usage(text: str, hub: HubServer, cli: Cli) -> None:
    outcome = cli("inspect", text, "--json")
    assert (outcome.code, outcome.codes) == (2, ["bad-hub-address"])
    assert hub.requests == []


def test_endpoint_and_token_come_from_the_environment(
    hub: HubServer, publish: Publish, source: Path, command: Cli, tmp_path: Path
) -> None:
    publish("org/private", source, private=True)
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    allowed = command("inspect", "org/private", "--json", HF_TOKEN=hub.token, **environment)
    assert allowed.code == 0, allowed
    refused = command("inspect", "org/private", "--json", HF_TOKEN="hf_wrong", **environment)
    assert refused.codes == ["repo-private"]
    assert "hf_wrong" not in refused.out + refused.err
    offline = command("inspect", "org/other", "--json", HF_HUB_OFFLINE="1", **environment)
    assert offline.codes == ["offline"]
