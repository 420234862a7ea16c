"""Answers that a Hub would not give: refused by a code, before a byte is written or believed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest
from huggingface_hub import set_client_factory
from huggingface_hub.utils import get_session

from dspark_convert.errors import CheckpointError
from dspark_convert.hub.answers import MAX_ANSWER_BYTES, MAX_FILES, listed
from dspark_convert.hub.errors import understood
from dspark_convert.hub.guard import MAX_WAIT_SECONDS
from tests.hub.repos import Repo
from tests.hub.server import Fault, HubServer
from tests.hub.sources import NAME, WEIGHTS, Cli, Publish

SHA = "a" * 40


def lying(hub: HubServer, method: str, path: str, headers: dict[str, str], **more: Any) -> None:
    hub.fail(Fault(method, path, 200, headers, **more), times=99)


def everything_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize(
    "etag",
    [
        '"../../../../outside"',
        '"/tmp/outside"',
        'W/"../outside"',
        '"."',
        '".."',
        '""',
        '"a b"',
        '"a\\b"',
        '"a%2fb"',
        '"' + "e" * 129 + '"',
    ],
)
@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag"])
def test_etag_that_is_no_name_is_refused_before_anything_is_written(
    header: str, etag: str, hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    before = everything_below(tmp_path)
    commit = repo.refs["main"]
    lying(hub, "HEAD", "config.json", {"X-Repo-Commit": commit, "ETag": '"ok"', header: etag})
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["hub-answer-invalid"])
    assert everything_below(tmp_path) == before
    assert not [path for verb, path, _ in hub.requests if verb == "GET" and "/resolve/" in path]


def test_etag_of_an_existing_file_reads_nothing(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    config = json.loads(repo.tree["config.json"])  # type: ignore[arg-type]
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({**config, "private_marker": "S3CRET"}))
    blobs = Path(constants.HF_HUB_CACHE, f"models--{NAME.replace('/', '--')}", "blobs")
    etag = os.path.relpath(secret, blobs)
    lying(hub, "HEAD", "config.json", {"X-Repo-Commit": repo.refs["main"], "ETag": f'"{etag}"'})
    outcome = cli("to-dense", NAME, tmp_path / "out", "--json")
    assert outcome.codes == ["hub-answer-invalid"]
    assert not (tmp_path / "out").exists()
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_etag_behind_a_redirect_is_looked_at_too(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    before = everything_below(tmp_path)
    commit = repo.refs["main"]
    hub.fail(Fault("HEAD", "config.json", 307, {"Location": "/else", "X-Repo-Commit": commit}))
    lying(hub, "HEAD", "/else", {"X-Repo-Commit": commit, "ETag": '"../outside"'})
    assert cli("inspect", NAME, "--json").codes == ["hub-answer-invalid"]
    assert everything_below(tmp_path) == before


def test_weak_etag_is_a_name(hub: HubServer, repo: Repo, cli: Cli) -> None:
    size = str(len(repo.tree["config.json"]))
    headers = {"X-Repo-Commit": repo.refs["main"], "ETag": 'W/"c0n-f_i.g"', "X-Linked-Size": size}
    lying(hub, "HEAD", "config.json", headers)
    assert cli("inspect", NAME).code == 0


@pytest.mark.parametrize("commit", ["../../outside", "main", "A" * 40, "a" * 41, ""])
@pytest.mark.parametrize("status", [200, 404])
def test_commit_that_is_none_is_refused_before_anything_is_written(
    commit: str, status: int, hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path
) -> None:
    before = everything_below(tmp_path)
    headers = {"X-Repo-Commit": commit, "ETag": '"ok"', "X-Error-Code": "EntryNotFound"}
    hub.fail(Fault("HEAD", "config.json", status, headers), times=99)
    assert cli("inspect", NAME, "--json").codes == ["hub-answer-invalid"]
    assert everything_below(tmp_path) == before


def test_answer_for_another_commit_is_refused(hub: HubServer, repo: Repo, cli: Cli) -> None:
    headers = {"X-Repo-Commit": SHA, "Content-Range": "bytes 0-9/10"}
    lying(hub, "GET", WEIGHTS, headers, range="bytes")
    assert cli("inspect", NAME, "--json").codes == ["hub-answer-invalid"]


def test_xet_hash_that_is_none_is_refused(hub: HubServer, repo: Repo, cli: Cli) -> None:
    headers = {"X-Repo-Commit": repo.refs["main"], "ETag": '"ok"', "X-Xet-Hash": "../x"}
    lying(hub, "HEAD", "config.json", headers)
    assert cli("inspect", NAME, "--json").codes == ["hub-answer-invalid"]


@pytest.mark.current  # before 2.0 the library goes on with the client that it closed
def test_client_that_is_made_anew_is_watched_too(
    hub: HubServer, repo: Repo, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library replaces its client after a connection that could not be made."""
    made = []

    def own_factory() -> Any:
        made.append("client")
        return default()

    from huggingface_hub.utils._http import default_client_factory as default

    set_client_factory(own_factory)  # by somebody else, after ours
    try:
        send = type(get_session()).send
        calls = []

        def breaking(self: Any, request: Any, **options: Any) -> Any:
            if request.method == "HEAD":
                calls.append(request)
                if len(calls) <= 2:
                    raise connect_error("refused")
            return send(self, request, **options)

        module = __import__(type(get_session()).__module__.partition(".")[0])
        connect_error = module.ConnectError
        monkeypatch.setattr(type(get_session()), "send", breaking)
        headers = {"X-Repo-Commit": repo.refs["main"], "ETag": '"../x"'}
        lying(hub, "HEAD", "config.json", headers)
        assert cli("inspect", NAME, "--json").codes == ["hub-answer-invalid"]
        assert len(calls) == 3
        assert len(made) > 1
    finally:
        set_client_factory(default)


def entry(**changes: Any) -> dict[str, Any]:
    return {"rfilename": "x.bin", "size": 5, "blobId": "0" * 40, **changes}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"siblings": "abc"}, "'abc'"),
        ({"siblings": {}}, "{}"),
        ({"siblings": ["a"]}, "'a'"),
        ({"siblings": [{"size": 1}]}, "None"),
        ({"siblings": [entry(rfilename=7)]}, "7"),
        ({"siblings": [entry(rfilename="\ud800.txt")]}, "'\\ud800.txt'"),
        ({"siblings": [entry(rfilename="a" * 256)]}, "a" * 100),
        ({"siblings": [entry(rfilename="é" * 128)]}, "xe9"),
        ({"siblings": [entry(), entry()]}, "'x.bin'"),
        ({"siblings": [entry(size="abc")]}, "'abc'"),
        ({"siblings": [entry(size=1.5)]}, "1.5"),
        ({"siblings": [entry(size=True)]}, "True"),
        ({"siblings": [entry(blobId="../x")]}, "'../x'"),
        ({"siblings": [entry(lfs="x")]}, "'x'"),
        ({"siblings": [entry(lfs={})]}, "None"),
        ({"siblings": [entry(lfs={"sha256": 5})]}, "5"),
        ({"siblings": [entry(lfs={"sha256": "../../x"})]}, "'../../x'"),
        ({"siblings": [entry(rfilename=f"{n}") for n in range(MAX_FILES + 1)]}, f"{MAX_FILES + 1}"),
        ({"id": None}, "None"),
        ({"id": 7}, "7"),
        ({"id": "one"}, "'one'"),
        ({"id": "../../x"}, "'../../x'"),
        ({"id": "a/b\0c"}, "\\x00"),
        ({"id": "a/" + "b" * 300}, "'a/bbb"),
        ({"id": "a/b..c"}, "'a/b..c'"),
    ],
)
def test_malformed_description_is_refused(changes: dict[str, Any], found: str) -> None:
    answer = {"id": NAME, "sha": SHA, "siblings": [entry()], **changes}
    with pytest.raises(CheckpointError, match="hub-answer-invalid") as caught:
        listed(answer)
    assert found in str(caught.value.findings[0].found)


@pytest.mark.parametrize("answer", [[1], "text", None, 5])
def test_description_that_is_no_object_is_refused(answer: Any) -> None:
    with pytest.raises(CheckpointError, match="hub-answer-invalid"):
        listed(answer)


def test_what_a_hub_may_leave_out() -> None:
    answer = {"id": NAME, "sha": SHA, "siblings": [{"rfilename": "x", "lfs": None}], "more": 1}
    (file,) = listed(answer).files.values()
    assert (file.size, file.sha256, file.git_id) == (0, None, None)
    assert listed({"id": NAME, "sha": SHA}).files == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[1]", "hub-answer-invalid"),
        (b"<html>captive portal</html>", "hub-refused"),
        (b"", "hub-refused"),
        (b'{"id": "a/b", "x": ' + b"[" * 100_000, "hub-refused"),
        (b'{"id": "org/draft", "sha": "%s", "x": NaN}' % SHA.encode(), "hub-refused"),
        (b"\xff\xfe", "hub-refused"),
        (b" " * (MAX_ANSWER_BYTES + 1), "hub-answer-invalid"),
    ],
    ids=["list", "html", "empty", "deep", "nan", "no-text", "huge"],
)
def test_body_that_describes_nothing_is_refused(
    body: bytes, code: str, hub: HubServer, repo: Repo, cli: Cli
) -> None:
    hub.fail(Fault("GET", f"/api/models/{NAME}$", 200, body=body), times=9)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, [code])


def test_answer_that_the_library_trips_over_is_refused() -> None:
    with pytest.raises(CheckpointError, match="hub-answer-invalid") as caught, understood():
        {}["oid"]
    assert caught.value.findings[0].found == "KeyError: 'oid'"


@pytest.mark.parametrize(
    "said", [None, "bytes 5-14/15", "bytes 0-32767/1", "bytes 0-32766/{size}", "rubbish"]
)
def test_range_that_is_another_one_is_refused(
    said: str | None, hub: HubServer, repo: Repo, cli: Cli
) -> None:
    size = len(repo.tree["model.safetensors"])
    headers = {} if said is None else {"Content-Range": said.format(size=size)}
    hub.fail(Fault("GET", WEIGHTS, 206, headers, b"x" * 32768, range="bytes=0-"), times=9)
    assert cli("inspect", NAME, "--json").codes == ["range-refused"]


def test_range_is_read_no_further_than_asked(hub: HubServer, repo: Repo, cli: Cli) -> None:
    size = len(repo.tree["model.safetensors"])
    headers = {"Content-Range": f"bytes 0-32767/{size}"}
    body = b"x" * (64 << 20)
    hub.fail(Fault("GET", WEIGHTS, 206, headers, body, range="bytes=0-"), times=9)
    outcome = cli("inspect", NAME, "--json")
    assert outcome.codes == ["range-refused"]
    assert outcome.json["findings"][0]["found"].startswith("more than 32768 bytes, status 206")
    assert hub.sent < len(body)  # the connection was closed in the middle


def test_range_that_is_packed_is_refused(hub: HubServer, repo: Repo, cli: Cli) -> None:
    size = len(repo.tree["model.safetensors"])
    headers = {"Content-Range": f"bytes 0-32767/{size}", "Content-Encoding": "gzip"}
    hub.fail(Fault("GET", WEIGHTS, 206, headers, b"x" * 32768, range="bytes=0-"), times=9)
    assert cli("inspect", NAME, "--json").codes == ["range-refused"]


@pytest.mark.parametrize("cached", [False, True])
def test_bad_gateway_is_no_moved_revision(
    cached: bool, hub: HubServer, repo: Repo, cli: Cli
) -> None:
    if cached:
        assert cli("inspect", NAME).code == 0
        repo.commit({**repo.tree, "README.md": b"# Changed\n"})
    hub.fail(Fault("HEAD", "/resolve/", 502), times=99)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, ["hub-error"])
    assert outcome.json["findings"][0]["found"] == "status 502"


@pytest.mark.parametrize("header", [{"Retry-After": "{}"}, {"RateLimit": '"resolvers";r=0;t={}'}])
def test_pause_that_the_hub_asks_for_is_said(
    header: dict[str, str], hub: HubServer, repo: Repo, cli: Cli
) -> None:
    asked = {name: value.format(MAX_WAIT_SECONDS) for name, value in header.items()}
    hub.fail(Fault("GET", WEIGHTS, 429, asked))
    outcome = cli("inspect", NAME, env={"COLUMNS": "200"})
    assert outcome.code == 0, outcome
    said = f"status 429, which asks to wait {MAX_WAIT_SECONDS} s"
    assert "note hub-wait: the Hub asks for a pause" in outcome.err
    assert said in outcome.err


@pytest.mark.parametrize("seconds", [f"{MAX_WAIT_SECONDS + 1}", "9" * 30])
@pytest.mark.parametrize(("status", "code"), [(429, "rate-limited"), (503, "hub-error")])
def test_longer_pause_is_refused_at_once(
    status: int, code: str, seconds: str, hub: HubServer, repo: Repo, cli: Cli
) -> None:
    hub.fail(Fault("GET", WEIGHTS, status, {"Retry-After": seconds}), times=9)
    outcome = cli("inspect", NAME, "--json")
    assert (outcome.code, outcome.codes) == (3, [code])
    assert seconds[:20] in outcome.json["findings"][0]["found"]
    assert [r for _, path, r in hub.requests if path.endswith("model.safetensors")] == [
        "bytes=0-32767"
    ]


def test_pauses_add_up(hub: HubServer, repo: Repo, cli: Cli) -> None:
    hub.fail(Fault("GET", WEIGHTS, 429, {"Retry-After": "140"}), times=9)
    outcome = cli("inspect", NAME, "--json")
    assert outcome.codes == ["rate-limited"]
    assert outcome.err.count("note hub-wait") == 2
    hub.faults.clear()
    hub.fail(Fault("GET", WEIGHTS, 429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    assert cli("inspect", NAME).code == 0


@pytest.fixture
def snapshot(hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path) -> Path:
    """The folder of the cache after a conversion."""
    assert cli("to-dense", NAME, tmp_path / "first").code == 0
    place = Path(constants.HF_HUB_CACHE, f"models--{NAME.replace('/', '--')}")
    return place / "snapshots" / repo.refs["main"]


def spoil(path: Path) -> None:
    """Other bytes, and as many."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.resolve().write_bytes(data)


@pytest.mark.parametrize("name", ["config.json", "README.md", "model.safetensors"])
@pytest.mark.parametrize("offline", [False, True])
def test_cached_file_of_other_bytes_is_refused(
    name: str,
    offline: bool,
    snapshot: Path,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    assert cli("to-dense", NAME, tmp_path / "again").code == 0
    spoil(snapshot / name)
    outcome = cli("to-dense", NAME, tmp_path / "out", "--json")
    assert (outcome.code, outcome.codes) == (3, ["cached-file-corrupt"])
    (finding,) = outcome.json["findings"]
    assert finding["file"] == name
    assert str((snapshot / name).resolve()) in finding["hint"]
    assert not (tmp_path / "out").exists()


def test_weights_that_a_mirror_names_otherwise_are_compared_all_the_same(
    hub: HubServer, repo: Repo, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.hub.server.etag", lambda path, content: f"mirror-{len(content)}")
    assert cli("to-dense", NAME, tmp_path / "one").code == 0
    blob = next(Path(constants.HF_HUB_CACHE).rglob("model.safetensors"))
    spoil(blob)
    assert cli("to-dense", NAME, tmp_path / "two", "--json").codes == ["cached-file-corrupt"]


def test_mirror_that_gives_plain_digests_is_believed(
    hub: HubServer, repo: Repo, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.hub.server.git_id", lambda data: hashlib.sha1(data).hexdigest())
    assert cli("inspect", NAME).code == 0


def test_link_that_leaves_the_cache_is_refused(snapshot: Path, cli: Cli, tmp_path: Path) -> None:
    """As an older version may have left it there."""
    config = snapshot / "config.json"
    secret = tmp_path / "secret.json"
    secret.write_bytes(config.read_bytes())
    config.unlink()
    config.symlink_to(secret)
    assert cli("inspect", NAME, "--json").codes == ["cached-link-escapes"]


def test_cache_on_another_disk_is_no_escape(
    snapshot: Path, cli: Cli, tmp_path: Path, repo: Repo
) -> None:
    blobs = snapshot.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    assert cli("to-dense", NAME, tmp_path / "out").code == 0


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_commit_of_a_push_must_be_one(
    hub: HubServer, converted: Path, cli: Cli, publish: Publish, source: Path
) -> None:
    publish("me/draft", source)
    body = json.dumps(
        {"commitUrl": f"{hub.url}/me/draft/commit/{SHA}", "commitOid": "../x"}
    ).encode()
    hub.fail(Fault("POST", "/commit/", 200, body=body))
    outcome = cli("push", converted, "me/draft", "--yes", "--json")
    assert outcome.codes == ["hub-answer-invalid"], outcome


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/preupload/", b"[]", "hub-answer-invalid"),
        ("/preupload/", b"{}", "hub-refused"),  # the library says itself what it misses
        ("/commit/", b"[]", "hub-answer-invalid"),
        ("/commit/", b"{}", "hub-answer-invalid"),
        ("/objects/batch", b'{"objects": 5}', "hub-refused"),
    ],
)
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_malformed_answer_to_a_push_is_refused(
    path: str, body: bytes, code: str, hub: HubServer, converted: Path, cli: Callable[..., Any]
) -> None:
    hub.fail(Fault("POST", path, 200, body=body), times=9)
    outcome = cli("push", converted, "me/draft", "--json")
    assert (outcome.code, outcome.codes) == (3, [code])
    assert "me/draft" not in hub.repos
