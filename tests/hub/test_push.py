"""Publishing: only what was verified, in one commit, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from jsonschema import Draft202012Validator

from dspark_convert.checkpoint.header import read_header
from dspark_convert.schemas.catalog import schema_text
from tests.hub.server import Fault, HubServer, Repo
from tests.hub.sources import COMMIT

SOURCE = "spec_vanilla_reduced_anchor_bf16/checkpoint"
SHARDED = "spec_rnn_full_anchor_sharded_bf16/checkpoint"
NAME = "me/draft-dense"
Cli = Callable[..., Any]

# huggingface_hub hands files to its HTTP library in a way that the latter no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
Publish = Callable[..., Repo]


def front_matter(card: bytes) -> dict[str, Any]:
    match = re.match(rb"---\n(.*?)\n---\n", card, re.DOTALL)
    assert match is not None
    return yaml.safe_load(match[1])


def test_new_repository_is_private_and_holds_what_the_manifest_names(
    hub: HubServer, converted: Path, cli: Cli
) -> None:
    (converted / "notes.txt").write_text("mine")
    outcome = cli("push", converted, NAME, "--json")
    assert outcome.code == 0, outcome
    Draft202012Validator(json.loads(schema_text("push-report"))).validate(outcome.json)
    repo = hub.repos[NAME]
    assert repo.private
    assert outcome.json["action"] == "created"
    assert outcome.json["commit"] == repo.refs["main"]
    assert repo.messages == ["first", "Convert to dense with dspark-convert"]
    names = {file["name"] for file in manifest(converted)["files"]}
    assert set(repo.tree) == {*names, "dspark_conversion.json", ".gitattributes"}
    for name in set(repo.tree) - {"README.md", ".gitattributes"}:
        assert repo.tree[name] == (converted / name).read_bytes()
    assert hub.token not in outcome.out + outcome.err


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "dspark_conversion.json").read_bytes())


def test_public_is_asked_for(hub: HubServer, converted: Path, cli: Cli) -> None:
    outcome = cli("push", converted, NAME, "--public")
    assert outcome.code == 0
    assert "visible to  everybody" in outcome.out
    assert not hub.repos[NAME].private


def test_second_push_of_the_same_content_does_nothing(
    hub: HubServer, converted: Path, cli: Cli
) -> None:
    assert cli("push", converted, NAME).code == 0
    before = dict(hub.repos[NAME].refs)
    hub.requests.clear()
    again = cli("push", converted, NAME, "--json")
    assert (again.code, again.json["action"]) == (0, "unchanged")
    assert again.json["uploaded"] == []
    assert hub.repos[NAME].refs == before
    assert [verb for verb, _, _ in hub.requests if verb not in ("GET", "HEAD")] == []


def test_existing_repository_needs_a_word(
    hub: HubServer, converted: Path, publish: Publish, golden: Path, cli: Cli
) -> None:
    repo = publish(NAME, golden / SHARDED, {"notes.md": b"keep me\n"})
    before = repo.refs["main"]
    refused = cli("push", converted, NAME, "--json")
    assert (refused.code, refused.codes) == (3, ["repo-exists"])
    assert repo.refs == {"main": before}
    done = cli("push", converted, NAME, "--yes", "--json")
    assert (done.code, done.json["action"]) == (0, "updated")
    assert len(done.json["deleted"]) == 7  # six shards and their index
    assert len(repo.messages) == 2  # one commit
    assert "notes.md" in repo.tree
    weights = {name for name in repo.tree if "safetensors" in name}
    assert weights == {"model.safetensors"}


def test_only_what_changed_is_sent(hub: HubServer, converted: Path, cli: Cli) -> None:
    assert cli("push", converted, NAME).code == 0
    repo = hub.repos[NAME]
    repo.commit({**repo.tree, "config.json": b"{}"})
    weights = (converted / "model.safetensors").stat().st_size
    hub.received = 0
    done = cli("push", converted, NAME, "--yes", "--json")
    assert done.json["uploaded"] == ["config.json"]
    assert hub.received < weights
    assert repo.tree["config.json"] == (converted / "config.json").read_bytes()


def test_pull_request_leaves_the_branch_and_is_made_once(
    hub: HubServer, converted: Path, publish: Publish, golden: Path, cli: Cli
) -> None:
    repo = publish(NAME, golden / SHARDED)
    before = repo.refs["main"]
    done = cli("push", converted, NAME, "--create-pr", "--json")
    assert (done.code, done.json["action"]) == (0, "proposed")
    assert done.json["url"].endswith(f"{NAME}/discussions/1")
    assert repo.refs["main"] == before
    assert (
        repo.commits[repo.refs["refs/pr/1"]]["config.json"]
        == (converted / "config.json").read_bytes()
    )
    again = cli("push", converted, NAME, "--create-pr", "--json")
    assert (again.code, again.json["action"]) == (0, "unchanged")
    assert len(repo.pulls) == 1


def test_pull_request_needs_a_repository(hub: HubServer, converted: Path, cli: Cli) -> None:
    outcome = cli("push", converted, NAME, "--create-pr", "--json")
    assert (outcome.code, outcome.codes) == (3, ["no-repo-for-pr"])
    assert NAME not in hub.repos


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/lfs/"),
        ("POST", "/preupload/"),
        ("POST", "/objects/batch"),
        ("POST", "/commit/"),
        ("POST", "/validate-yaml"),
    ],
)
@pytest.mark.parametrize("existing", [True, False])
def test_broken_upload_leaves_the_remote_unchanged(
    method: str,
    path: str,
    existing: bool,
    hub: HubServer,
    converted: Path,
    publish: Publish,
    golden: Path,
    cli: Cli,
) -> None:
    if existing:
        publish(NAME, golden / SHARDED)
    before = {name: dict(repo.refs) for name, repo in hub.repos.items()}
    hub.fail(Fault(method, path, 403), times=9)
    outcome = cli("push", converted, NAME, "--yes", "--json")
    assert outcome.code == 3, outcome
    assert outcome.codes == ["hub-forbidden"]
    assert {name: dict(repo.refs) for name, repo in hub.repos.items()} == before
    assert "Traceback" not in outcome.err
    hub.faults.clear()
    assert cli("push", converted, NAME, "--yes").code == 0


def test_broken_connection_while_uploading(hub: HubServer, converted: Path, cli: Cli) -> None:
    hub.fail(Fault("PUT", "/lfs/", cut_after=0), times=1)
    hub.fail(Fault("POST", "/commit/", cut_after=3), times=1)
    outcome = cli("push", converted, NAME, "--json")
    # The commit was made, and only its answer was lost: then it stays.
    assert outcome.codes == ["hub-unreachable"]
    assert "config.json" in hub.repos[NAME].tree
    again = cli("push", converted, NAME, "--json")
    assert again.json["action"] == "unchanged"


def test_repository_that_cannot_be_removed_again_is_told(
    hub: HubServer, converted: Path, cli: Cli
) -> None:
    """Beside what went wrong first."""
    hub.fail(Fault("PUT", "/lfs/", 403), times=9)
    hub.fail(Fault("DELETE", "/api/repos/delete", 403))
    outcome = cli("push", converted, NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["hub-forbidden", "repo-left-empty"])
    hub.faults.clear()
    assert cli("push", converted, NAME, "--yes").code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_during_an_upload_leaves_nothing(
    number: int,
    code: int,
    hub: HubServer,
    converted: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = huggingface_hub.HfApi.preupload_lfs_files

    def struck(self: Any, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(huggingface_hub.HfApi, "preupload_lfs_files", struck)
    outcome = cli("push", converted, NAME)
    assert outcome.code == code, outcome
    assert "interrupted" in outcome.err
    assert NAME not in hub.repos
    assert hub.blobs  # files had arrived, and no repository shows them


def test_signal_stays_a_signal_when_the_repository_cannot_be_removed(
    hub: HubServer, converted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.fail(Fault("DELETE", "/api/repos/delete", 403))

    def struck(self: Any, *arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(huggingface_hub.HfApi, "preupload_lfs_files", struck)
    outcome = cli("push", converted, NAME)
    assert outcome.code == 143, outcome
    assert "repo-left-empty" in outcome.err
    assert "nothing was left behind" not in outcome.err


def test_branch_that_moves_during_the_push_is_refused(
    hub: HubServer,
    converted: Path,
    publish: Publish,
    golden: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.hub import server

    repo = publish(NAME, golden / SHARDED)
    batch = server._Handler.batch

    def moving(self: Any, body: bytes, name: str) -> None:
        repo.commit({**repo.tree, "theirs.md": b"x"})
        batch(self, body, name)

    routes = tuple(
        (verb, pattern, moving if handler is batch else handler)
        for verb, pattern, handler in server._ROUTES
    )
    monkeypatch.setattr(server, "_ROUTES", routes)
    outcome = cli("push", converted, NAME, "--yes", "--json")
    assert (outcome.code, outcome.codes) == (3, ["revision-moved"])
    assert "theirs.md" in repo.tree
    assert len(repo.messages) == 2


def test_server_that_stores_something_else_is_caught(
    hub: HubServer, converted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Repo.commit

    def spoiling(self: Repo, tree: Any, **options: Any) -> str:
        if "config.json" in tree:
            tree = {**tree, "config.json": b"{}"}
        return commit(self, tree, **options)

    monkeypatch.setattr(Repo, "commit", spoiling)
    assert cli("push", converted, NAME, "--json").codes == ["push-differs"]


def test_weights_that_change_during_the_push_are_caught(
    hub: HubServer, converted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dspark_convert.hub import push as module

    examine = module.examine_publishable

    def examined(*arguments: Any, **options: Any) -> Any:
        source = examine(*arguments, **options)
        zero_a_tensor(converted)
        return source

    monkeypatch.setattr(module, "examine_publishable", examined)
    assert cli("push", converted, NAME, "--json").codes == ["push-differs"]


def test_push_needs_a_token(
    hub: HubServer, converted: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    outcome = cli("push", converted, NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["not-logged-in"])
    assert hub.requests == []


@pytest.mark.parametrize("name", ["draft", "me/draft@main", "hf://me/a/b", "../x"])
def test_bad_name_is_wrong_usage(name: str, hub: HubServer, converted: Path, cli: Cli) -> None:
    outcome = cli("push", converted, name, "--json")
    assert (outcome.code, outcome.codes) == (2, ["bad-hub-address"])


def remove_manifest(folder: Path) -> None:
    (folder / "dspark_conversion.json").unlink()


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "block_size": 3}))


def rename_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"norm.weight", b"Norm.weight", 1))


def zero_a_tensor(folder: Path) -> None:
    """The header stays, and with it size and names of everything."""
    path = folder / "model.safetensors"
    header = read_header(path)
    entry = next(entry for entry in header.entries if entry.name == "fc.weight")
    data = bytearray(path.read_bytes())
    begin = header.data_begin + entry.begin
    data[begin : begin + entry.nbytes] = bytes(entry.nbytes)
    path.write_bytes(data)


def name_outside(folder: Path) -> None:
    document = manifest(folder)
    document["files"][0]["name"] = "../secret"
    (folder / "dspark_conversion.json").write_text(json.dumps(document))


def break_and_record(folder: Path) -> None:
    """The files agree with the manifest, and the draft is wrong all the same."""
    config = json.loads((folder / "config.json").read_bytes())
    data = json.dumps({**config, "mask_token_id": 10**6}).encode()
    (folder / "config.json").write_bytes(data)
    document = manifest(folder)
    for file in document["files"]:
        if file["name"] == "config.json":
            file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    (folder / "dspark_conversion.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (remove_manifest, "manifest-missing"),
        (remove_config, "manifest-file-missing"),
        (change_config, "manifest-file-differs"),
        (rename_tensor, "manifest-file-differs"),
        (zero_a_tensor, "manifest-file-differs"),
        (name_outside, "manifest-name-unsafe"),
        (break_and_record, "mask-token-out-of-range"),
    ],
)
def test_what_is_not_a_sound_conversion_is_refused_before_the_hub_is_asked(
    damage: Callable[[Path], None], code: str, hub: HubServer, converted: Path, cli: Cli
) -> None:
    damage(converted)
    outcome = cli("push", converted, NAME, "--json")
    assert outcome.code == 3, outcome
    assert code in outcome.codes
    assert hub.requests == []


def test_source_that_was_never_converted_is_refused(hub: HubServer, golden: Path, cli: Cli) -> None:
    assert cli("push", golden / SOURCE, NAME, "--json").codes == ["manifest-missing"]


def test_card_of_a_new_repository(hub: HubServer, converted: Path, cli: Cli) -> None:
    assert cli("push", converted, NAME).code == 0
    card = hub.repos[NAME].tree["README.md"]
    assert isinstance(card, bytes)
    front = front_matter(card)
    assert front["license"] == "mit"
    assert front["base_model"] == "org/draft"
    assert front["base_model_relation"] == "quantized"
    assert {"dspark", "speculative-decoding"} <= set(front["tags"])
    text = card.decode()
    assert "\n# A draft\n" in text
    assert f"https://huggingface.co/org/draft/tree/{COMMIT}" in text
    assert "anchor-first: every slot predicts the next position" in text
    assert "reduced: 200 of 320 tokens" in text
    assert "vllm serve TARGET" in text
    assert NAME in text
    assert "acceptance was not measured" in text
    assert (converted / "README.md").read_bytes() == b"---\nlicense: mit\n---\n# A draft\n"


def test_card_that_people_edited_keeps_their_text(
    hub: HubServer, converted: Path, cli: Cli
) -> None:
    assert cli("push", converted, NAME).code == 0
    repo = hub.repos[NAME]
    card = repo.tree["README.md"]
    assert isinstance(card, bytes)
    edited = card.replace(b"# A draft", b"# Ours & theirs") + b"\nThanks: everybody.\n"
    edited = edited.replace(b"license: mit", b"license: mit  # for now")
    repo.commit({**repo.tree, "README.md": edited, "config.json": b"{}"})
    done = cli("push", converted, NAME, "--yes", "--json")
    assert done.json["uploaded"] == ["config.json"]
    assert repo.tree["README.md"] == edited


def test_local_edit_of_the_card_is_published(hub: HubServer, converted: Path, cli: Cli) -> None:
    (converted / "README.md").write_text("# Written after the conversion\n")
    assert cli("push", converted, NAME).code == 0
    card = hub.repos[NAME].tree["README.md"]
    assert isinstance(card, bytes)
    assert b"# Written after the conversion\n" in card


@pytest.mark.parametrize("where", ["here", "on the Hub"])
@pytest.mark.parametrize(
    ("card", "code"),
    [
        ("# Entwürfe\n".encode("latin-1"), "card-unreadable"),
        (b"---\na: !!timestamp x\n---\n# x\n", "card-front-matter-invalid"),
    ],
)
def test_card_that_cannot_be_read_is_refused(
    card: bytes, code: str, where: str, hub: HubServer, converted: Path, cli: Cli
) -> None:
    if where == "here":
        (converted / "README.md").write_bytes(card)
    else:
        hub.repo(NAME, {"README.md": card})
    before = dict(hub.repos)
    outcome = cli("push", converted, NAME, "--yes", "--json")
    assert (outcome.code, outcome.codes) == (3, [code])
    assert [verb for verb, _, _ in hub.requests if verb not in ("GET", "HEAD")] == []
    assert hub.repos == before
