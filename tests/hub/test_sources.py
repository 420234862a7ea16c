"""Drafts and targets on the Hub: how little is fetched, what is recorded, what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest

from dspark_convert.checkpoint.header import layout_entries, render_header
from fixtures.broken.edits import write
from tests.hub.repos import Repo, Sparse
from tests.hub.server import Fault, HubServer
from tests.hub.sources import DRAFT, NAME, WEIGHTS, Cli, Publish

SHARDED = "spec_rnn_full_anchor_sharded_bf16/checkpoint"


def big_draft(source: Path, size: int) -> tuple[bytes, Sparse]:
    """Config and weights of a draft of ``size`` bytes or more: a real vocabulary, a huge rank."""
    config = json.loads((source / "config.json").read_bytes())
    decoder = config["transformer_layer_config"]
    hidden, vocab = decoder["hidden_size"], 151_936
    rank = math.ceil(size / 2 / vocab)
    decoder["vocab_size"], config["markov_rank"] = vocab, rank
    with (source / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    header["t2d"]["shape"] = [vocab]
    header["markov_head.markov_w1.weight"]["shape"] = [vocab, rank]
    header["markov_head.markov_w2.weight"]["shape"][1] = rank
    header["confidence_head.proj.weight"]["shape"][1] = hidden + rank
    entries = layout_entries((n, e["dtype"], tuple(e["shape"])) for n, e in header.items())
    head = render_header(entries, {})
    # A table of zeros is right: draft id k is target id k. The mask then marks the first ids.
    size = len(head) + entries[-1].end
    mask = next(entry for entry in entries if entry.name == "t2d")
    marked = header["d2t"]["shape"][0]
    return json.dumps(config).encode(), Sparse(head, size, {len(head) + mask.begin: b"\1" * marked})


@pytest.mark.parametrize("command", ["inspect", "check", "engines"])
def test_looking_costs_headers_and_tables_only(
    command: str, hub: HubServer, repo: Repo, source: Path, cli: Cli
) -> None:
    remote = cli(command, NAME, "--json")
    local = cli(command, source, "--json")
    assert remote.code == local.code == 0, remote
    assert remote.json["findings"] == local.json["findings"]
    assert remote.json["name"] == f"{NAME}@{repo.refs['main']}"
    sizes = {path: len(content) for path, content in repo.tree.items()}
    assert hub.sent < 60_000 < sizes["model.safetensors"]
    ranges = [r for verb, path, r in hub.requests if verb == "GET" and "safetensors" in path]
    assert len(ranges) == 3  # the header, d2t, t2d
    assert all(ranges)


@pytest.mark.parametrize("command", ["inspect", "check", "engines"])
def test_four_gibibytes_cost_less_than_one_megabyte(
    command: str, hub: HubServer, source: Path, cli: Cli
) -> None:
    config, weights = big_draft(source, 4 << 30)
    assert weights.size > 4 << 30
    tree = {"config.json": config, "model.safetensors": weights}
    hub.repo("org/big", {**tree, "optimizer.pt": Sparse(b"", 4 << 30)})
    started = time.monotonic()
    outcome = cli(command, "hf://org/big", "--json")
    assert outcome.code == 0, outcome
    assert hub.sent < 250_000  # 152 kB of them are the mask of the vocabulary
    assert time.monotonic() - started < 20


def test_four_gibibytes_of_something_else(hub: HubServer, golden: Path, cli: Cli) -> None:
    config = (golden / "verifier_bf16/config.json").read_bytes()
    specs = [(f"model.layers.{n}.w", "BF16", (1 << 15, 1 << 10)) for n in range(64)]
    entries = layout_entries(specs)
    head = render_header(entries, {})
    weights = Sparse(head, len(head) + entries[-1].end)
    assert weights.size > 4 << 30
    hub.repo("org/big", {"config.json": config, "model.safetensors": weights})
    outcome = cli("inspect", "org/big", "--json")
    assert outcome.code == 3  # it is no draft; that is what the headers tell
    assert outcome.json["weight_bytes"] == 4 << 30
    assert hub.sent < 100_000


def test_dry_run_plans_what_the_conversion_does(
    hub: HubServer, repo: Repo, source: Path, cli: Cli, tmp_path: Path
) -> None:
    plan = cli("to-dense", NAME, tmp_path / "out", "--dry-run", "--json")
    assert plan.code == 0, plan
    sent, weights = hub.sent, repo.tree["model.safetensors"]
    assert sent < 60_000
    done = cli("to-dense", NAME, tmp_path / "out", "--json")
    assert done.code == 0, done
    assert hub.sent - sent > len(weights)
    hashed = done.json["source"]["files"]
    planned = [{**file, "sha256": None} for file in hashed]
    assert {**done.json["source"], "files": planned} == plan.json["source"]
    assert done.json["source"]["name"] == NAME
    assert done.json["source"]["revision"] == repo.refs["main"]
    digest = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    assert hashed[0]["sha256"] == digest
    assert done.json["side_files"] == plan.json["side_files"]
    assert (tmp_path / "out/README.md").read_bytes() == b"# A draft\n"
    local = cli("to-dense", source, tmp_path / "local", "--json")
    assert local.code == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


def test_second_conversion_fetches_nothing_again(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    assert cli("to-dense", NAME, tmp_path / "one").code == 0
    hub.requests.clear()
    assert cli("to-dense", NAME, tmp_path / "two").code == 0
    whole = [r for r in hub.requests if r[0] == "GET" and "/resolve/" in r[1] and r[2] is None]
    assert whole == []


def test_only_the_shards_with_embedding_and_head_of_a_target_are_fetched(
    hub: HubServer, repo: Repo, golden: Path, cli: Cli, tmp_path: Path
) -> None:
    target = golden / "verifier_bf16"
    data = (target / "model.safetensors").read_bytes()
    other = render_header(layout_entries([("model.other", "F32", (1 << 20,))]), {})
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    names.pop("__metadata__", None)
    index = {
        "weight_map": {**dict.fromkeys(names, "a.safetensors"), "model.other": "b.safetensors"}
    }
    tree = {
        "config.json": (target / "config.json").read_bytes(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "a.safetensors": data,
        "b.safetensors": Sparse(other, len(other) + (4 << 20)),
    }
    hub.repo("org/target", tree)
    outcome = cli("to-dense", NAME, tmp_path / "out", "--target", "org/target", "--json")
    assert outcome.code == 0, outcome
    assert outcome.json["target"]["name"] == "org/target"
    filled = [step for step in outcome.json["tensors"] if step["action"] == "filled"]
    assert filled
    whole = {p.rpartition("/")[2] for v, p, r in hub.requests if v == "GET" and r is None}
    assert "a.safetensors" in whole
    assert "b.safetensors" not in whole
    local = cli("to-dense", NAME, tmp_path / "local", "--target", target)
    assert local.code == 0
    weights = "model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "local" / weights).read_bytes()


def test_verifier_is_compared_when_it_is_an_address_and_recorded_when_it_is_a_name(
    hub: HubServer, publish: Publish, golden: Path, cli: Cli, tmp_path: Path
) -> None:
    publish("org/target", golden / "verifier_bf16")
    dense = tmp_path / "dense"
    assert cli("to-dense", golden / DRAFT, dense, "--target", "org/target").code == 0
    (dense / "dspark_conversion.json").unlink()  # nothing but the bytes can tell now
    publish("org/dense", dense)
    arguments = ("to-speculators", "org/dense", tmp_path / "out", "--json")
    compared = cli(*arguments, "--verifier", "hf://org/target", "--dry-run")
    assert compared.code == 0, compared
    dropped = {s["source"] for s in compared.json["tensors"] if s["action"] == "dropped"}
    assert "embed_tokens.weight" in dropped
    verifier = compared.json["config"]["speculators_config"]["verifier"]
    assert verifier["name_or_path"] == "org/target"
    hub.requests.clear()
    recorded = cli(*arguments, "--verifier", "org/target")
    assert recorded.codes == ["own-weights-unknown"]
    assert not any("org/target" in path for _, path, _ in hub.requests)


def test_broken_draft_is_refused_before_its_weights_are_fetched(
    hub: HubServer, publish: Publish, draft: Callable[..., Path], cli: Cli, tmp_path: Path
) -> None:
    repo = publish(NAME, draft(write("model-2.safetensors", b"no"), base=DRAFT.split("/")[0]))
    outcome = cli("to-dense", NAME, tmp_path / "out", "--json")
    assert (outcome.code, outcome.codes) == (3, ["shard-stray"])
    assert hub.sent < 60_000 < len(repo.tree["model.safetensors"])
    assert not (tmp_path / "out").exists()


def test_pickles_are_named_and_never_fetched(hub: HubServer, source: Path, cli: Cli) -> None:
    config = (source / "config.json").read_bytes()
    hub.repo(NAME, {"config.json": config, "pytorch_model.bin": Sparse(b"", 1 << 40)})
    outcome = cli("check", NAME, "--json")
    assert outcome.codes == ["pickle-only"]
    assert not any("pytorch_model" in path for _, path, _ in hub.requests)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads are written, and so can be resumed, every 10 MB; here every 10 kB."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)


@pytest.mark.usefixtures("short_chunks")
def test_interrupted_download_resumes_where_it_broke(
    hub: HubServer, repo: Repo, source: Path, cli: Cli, tmp_path: Path
) -> None:
    hub.fail(Fault("GET", WEIGHTS, range="^$", cut_after=50_000))
    hub.fail(Fault("GET", WEIGHTS, range="^bytes=50000-$", cut_after=30_000))
    outcome = cli("to-dense", NAME, tmp_path / "out", "--json")
    assert outcome.code == 0, outcome
    asked = [r for v, p, r in hub.requests if v == "GET" and p.endswith("model.safetensors")]
    assert asked[3:] == [None, "bytes=50000-", "bytes=80000-"]
    assert hub.sent < len(repo.tree["model.safetensors"]) + 60_000
    assert cli("to-dense", source, tmp_path / "local").code == 0
    weights = "model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "local" / weights).read_bytes()


def test_interrupted_range_request_is_made_again(hub: HubServer, repo: Repo, cli: Cli) -> None:
    hub.fail(Fault("GET", WEIGHTS, range="^bytes=0-", cut_after=100))
    outcome = cli("inspect", NAME, "--json")
    assert outcome.code == 0, outcome


@pytest.mark.usefixtures("short_chunks")
def test_download_that_stays_broken_is_refused_and_nothing_is_written(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    hub.fail(Fault("GET", WEIGHTS, range="^$", cut_after=50_000))
    hub.fail(Fault("GET", WEIGHTS, range="^bytes=50000-$", cut_after=0), times=99)
    outcome = cli("to-dense", NAME, tmp_path / "out", "--json")
    assert (outcome.code, outcome.codes) == (3, ["hub-unreachable"])
    assert not (tmp_path / "out").exists()


def test_moved_revision_is_noticed(hub: HubServer, repo: Repo, cli: Cli) -> None:
    first = repo.refs["main"]
    assert "revision-moved" not in cli("inspect", NAME).err
    assert "revision-moved" not in cli("inspect", NAME).err
    second = repo.commit({**repo.tree, "README.md": b"# Changed\n"})
    moved = cli("inspect", NAME, env={"COLUMNS": "200"})
    assert moved.code == 0
    assert "warning revision-moved" in moved.err
    assert first in moved.err
    assert second in moved.err
    pinned = cli("inspect", f"hf://{NAME}@{first}", "--json")
    assert pinned.json["name"] == f"{NAME}@{first}"
    assert "revision-moved" not in pinned.err
    assert "revision-moved" not in cli("inspect", NAME).err


def test_branch_is_resolved_to_its_commit(hub: HubServer, repo: Repo, cli: Cli) -> None:
    commit = repo.commit({**repo.tree}, ref="dev")
    outcome = cli("inspect", f"hf://{NAME}@dev", "--json")
    assert outcome.json["name"] == f"{NAME}@{commit}"
    assert f"note hub-commit: hf://{NAME}@dev is commit {commit}" in " ".join(outcome.err.split())


def test_move_between_two_requests_is_refused(
    hub: HubServer, repo: Repo, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dspark_convert.hub import answers as module

    listed = module.listed

    def moving(info: Any) -> Any:
        repo.commit({**repo.tree, "README.md": b"# Moved\n"})
        return listed(info)

    monkeypatch.setattr(module, "listed", moving)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["revision-moved"])


def test_nothing_remains_of_a_preview(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    assert cli("inspect", NAME).code == 0
    assert cli("to-dense", NAME, tmp_path / "out").code == 0
    assert list(place.iterdir()) == []


def test_launch_lines_name_the_repository(hub: HubServer, repo: Repo, cli: Cli) -> None:
    report = cli("engines", NAME, "--json").json
    lines = [line for engine in report["engines"] for line in engine["launch"]]
    assert any(NAME in line for line in lines)
    assert not any("models--" in line or repo.refs["main"] in line for line in lines)


def test_sharded_draft_arrives_whole(
    hub: HubServer, publish: Publish, golden: Path, cli: Cli, tmp_path: Path
) -> None:
    publish("org/sharded", golden / SHARDED)
    remote = cli("to-dense", "org/sharded", tmp_path / "remote")
    assert remote.code == 0, remote
    assert cli("to-dense", golden / SHARDED, tmp_path / "local").code == 0
    names = sorted(path.name for path in (tmp_path / "local").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "remote").iterdir())
    for name in names:
        if name != "dspark_conversion.json":
            remote_bytes = (tmp_path / "remote" / name).read_bytes()
            assert remote_bytes == (tmp_path / "local" / name).read_bytes()
