"""A small Hub on loopback: as much of its HTTP interface as ``huggingface_hub`` uses for models.

Everything lies in memory. It counts bytes, logs requests, and fails where it is told to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.hub.repos import LARGE, Repo, Sparse, Tree, etag, git_id, is_large, sha256

_RELATIONS = (None, "adapter", "finetune", "merge", "quantized")


@dataclass(frozen=True)
class Fault:
    """What to do to requests of ``method`` whose path matches ``path``, so many ``times``."""

    method: str
    path: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "as the test wants"}'
    range: str = ""
    """Matches the Range header; "^$" is a request without one."""
    cut_after: int | None = None
    """Send so many bytes of the body, then break the connection."""


class HubServer(ThreadingHTTPServer):
    """``token`` may do everything; without it only public repositories can be read."""

    daemon_threads = True
    token = "hf_secretOfTheTests"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.faults: list[tuple[Fault, int]] = []
        self.sent = 0
        self.received = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def repo(self, name: str, tree: Tree, **options: bool) -> Repo:
        repo = self.repos[name] = Repo(**options)
        repo.commit(tree, message="first")
        return repo

    def fail(self, fault: Fault, times: int = 1) -> None:
        self.faults.append((fault, times))

    def fault(self, method: str, path: str, wanted: str) -> Fault | None:
        with self.lock:
            for index, (fault, times) in enumerate(self.faults):
                matches = re.search(fault.path, path) and re.search(fault.range, wanted)
                if times and fault.method == method and matches:
                    self.faults[index] = (fault, times - 1)
                    return fault
        return None

    def paths(self, method: str) -> list[str]:
        return [path for verb, path, _ in self.requests if verb == method]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event here."""


@contextmanager
def running_hub() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *arguments: Any) -> None: ...

    def do_GET(self) -> None:
        self._route("GET")

    def do_HEAD(self) -> None:
        self._route("HEAD")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def do_DELETE(self) -> None:
        self._route("DELETE")

    def _route(self, method: str) -> None:
        path = urlsplit(self.path).path
        self.server.requests.append((method, path, self.headers.get("Range")))
        body = self._body()
        fault = self.fault = self.server.fault(method, path, self.headers.get("Range", ""))
        if fault is not None and fault.status:
            self._send(fault.status, fault.body, fault.headers)
            return
        for verb, pattern, handler in _ROUTES:
            match = re.fullmatch(pattern, path)
            if verb == method and match:
                handler(self, body, **{k: unquote(v) for k, v in match.groupdict().items()})
                return
        self._error(404)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            data = b"".join(parts)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.received += len(data)
        return data

    @property
    def _allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.server.token}"

    def _readable(self, name: str) -> Repo | None:
        """The repository; None after an answer that says why not."""
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and not self._allowed):
            self._error(404 if self._allowed else 401, **{"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _json(self, document: Any, status: int = 200) -> None:
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, **headers: str) -> None:
        self._send(status, b'{"error": "as the test wants"}', headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str], length: int = -1) -> None:
        self.send_response(status)
        for key, value in {
            **headers,
            "Content-Length": str(len(body) if length < 0 else length),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            fault = self.fault
            cut = fault is not None and fault.cut_after is not None
            part = body[: fault.cut_after] if fault is not None and cut else body
            self.wfile.write(part)
            self.server.sent += len(part)
            if cut:
                self.wfile.flush()
                self.close_connection = True

    def info(self, body: bytes, name: str, revision: str = "main") -> None:
        repo = self._readable(name)
        if repo is None:
            return
        sha = repo.resolve(revision)
        if sha is None:
            self._error(404, **{"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for path, content in repo.commits[sha].items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content)}
            entry["blobId"] = git_id(content)
            if is_large(path, content):
                entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        self._json(
            {
                "id": name,
                "modelId": name,
                "sha": sha,
                "private": repo.private,
                "gated": "manual" if repo.gated else False,
                "siblings": siblings,
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }
        )

    def tree(self, body: bytes, name: str, revision: str) -> None:
        repo = self._readable(name)
        if repo is None:
            return
        entries = []
        for path, content in repo.commits[repo.resolve(revision) or ""].items():
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
            entry["oid"] = git_id(content)
            if is_large(path, content):
                entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self._json(entries)

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        repo = self._readable(name)
        if repo is None:
            return
        if repo.gated and not self._allowed:
            self._error(403, **{"X-Error-Code": "GatedRepo"})
            return
        sha = repo.resolve(revision)
        if sha is None:
            self._error(404, **{"X-Error-Code": "RevisionNotFound"})
            return
        content = repo.commits[sha].get(path)
        if content is None:
            self._error(404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
            return
        self._file(content, {"X-Repo-Commit": sha, "ETag": f'"{etag(path, content)}"'})

    def _file(self, content: bytes | Sparse, headers: dict[str, str]) -> None:
        size = len(content)
        begin, end, status = 0, size, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match:
            begin, end = int(match[1]), min(int(match[2] or size - 1) + 1, size)
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            status = 206
        if self.command == "HEAD":
            self._send(200, b"", headers, size)
            return
        sparse = isinstance(content, Sparse)
        data = content.read(begin, end) if sparse else content[begin:end]  # type: ignore[union-attr]
        self._send(status, data, headers)

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        files = []
        for file in json.loads(body)["files"]:
            large = file["path"].endswith(".safetensors") or file["size"] >= LARGE
            mode = "lfs" if large else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        self._json({"files": files})

    def batch(self, body: bytes, name: str) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            entry = dict(item)
            if item["oid"] not in self.server.blobs:
                entry["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{item['oid']}"}}
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def put(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._error(400)
            return
        self.server.blobs[oid] = body
        self._json({})

    def create(self, body: bytes) -> None:
        if not self._allowed:
            self._error(401)
            return
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.server.repos:
            self._error(409)
            return
        private = wanted.get("visibility") == "private" or wanted.get("private", False)
        self.server.repo(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=private)
        self._json({"url": f"{self.server.url}/{name}"})

    def delete(self, body: bytes) -> None:
        wanted = json.loads(body)
        del self.server.repos[f"{wanted['organization']}/{wanted['name']}"]
        self._json({})

    def validate(self, body: bytes) -> None:
        text = json.loads(body)["content"]
        match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
        front = yaml.safe_load(match[1]) if match else {}
        if not isinstance(front, dict) or front.get("base_model_relation") not in _RELATIONS:
            self._json({"errors": [{"message": "bad front matter"}], "warnings": []}, 400)
            return
        self._json({"errors": [], "warnings": []})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        repo = self._readable(name)
        if repo is None:
            return
        if not self._allowed:
            self._error(403)
            return
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repo.refs["main"]):
            self._error(412)
            return
        tree = dict(repo.tree)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                tree[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del tree[value["path"]]
        self._committed(repo, name, tree, header["summary"])

    def _committed(self, repo: Repo, name: str, tree: Tree, message: str) -> None:
        pull = "create_pr" in parse_qs(urlsplit(self.path).query)
        ref = f"refs/pr/{len(repo.pulls) + 1}" if pull else "main"
        sha = repo.commit(tree, ref=ref, message=message)
        answer = {"commitUrl": f"{self.server.url}/{name}/commit/{sha}", "commitOid": sha}
        if pull:
            repo.pulls.append(message)
            answer["pullRequestUrl"] = f"{self.server.url}/{name}/discussions/{len(repo.pulls)}"
        self._json(answer)

    def discussions(self, body: bytes, name: str) -> None:
        repo = self.server.repos[name]
        found = [
            {
                "title": title,
                "num": number,
                "createdAt": "2026-01-01T00:00:00.000Z",
                "status": "open",
                "repo": {"name": name, "type": "model"},
                "isPullRequest": True,
            }
            for number, title in enumerate(repo.pulls, start=1)
        ]
        self._json({"discussions": found, "count": len(found), "start": 0})


_NAME = r"(?P<name>[^/]+/[^/]+)"
_ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", rf"/api/models/{_NAME}/revision/(?P<revision>.+)", _Handler.info),
    ("GET", rf"/api/models/{_NAME}/tree/(?P<revision>[^/]+)", _Handler.tree),
    ("GET", rf"/api/models/{_NAME}/discussions", _Handler.discussions),
    ("GET", rf"/api/models/{_NAME}", _Handler.info),
    ("GET", rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
    ("HEAD", rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
    ("POST", rf"/api/models/{_NAME}/preupload/(?P<revision>.+)", _Handler.preupload),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", _Handler.put),
    ("POST", r"/api/repos/create", _Handler.create),
    ("DELETE", r"/api/repos/delete", _Handler.delete),
    ("POST", r"/api/validate-yaml", _Handler.validate),
    ("POST", rf"/api/models/{_NAME}/commit/(?P<revision>.+)", _Handler.commit),
)
