"""A small server that speaks as much of the hub's API as fetching a model takes."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """A hub's content, and what was asked of it.

    Args:
        repos: files by name of each repository.
        gated: repositories whose terms must be accepted.
        cut_after: bytes after which the next answers with a file break off, one for each.
        lies: hashes that are said of files, in place of the right ones.
        asked: method, path and range of each request.
    """

    repos: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    cut_after: list[int] = field(default_factory=list)
    lies: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    def digest(self, name: str, data: bytes) -> str:
        return self.lies.get(name, hashlib.sha256(data).hexdigest())


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Runs it on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            words = path.strip("/").split("/")
            if words[:2] == ["api", "models"]:
                self._tell("/".join(words[2:4]), words[4:])
            elif words[2:3] != ["resolve"]:
                self._refuse(404, "EntryNotFound")
            else:
                self._send("/".join(words[:2]), words[3], "/".join(words[4:]))

        def _tell(self, repo: str, words: list[str]) -> None:
            files = hub.repos.get(repo)
            if files is None:
                self._refuse(401, "RepoNotFound")
            elif words[1:2] not in ([], ["main"], [COMMIT]):
                self._refuse(404, "RevisionNotFound")
            elif words[:1] == ["tree"]:
                self._json([{"type": "file", "path": name, **self._entry(name, files[name])} for name in files])
            else:
                siblings = [{"rfilename": name, **self._entry(name, files[name])} for name in files]
                self._json({"id": repo, "sha": COMMIT, "siblings": siblings})

        def _entry(self, name: str, data: bytes) -> dict[str, object]:
            entry: dict[str, object] = {"size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            entry["oid"] = entry["blobId"]
            if name.endswith((".gguf", ".safetensors")):
                digest = hub.digest(name, data)
                entry["lfs"] = {"sha256": digest, "oid": digest, "size": len(data), "pointerSize": 130}
            return entry

        def _send(self, repo: str, revision: str, name: str) -> None:
            if repo in hub.gated:
                self._refuse(403, "GatedRepo")
                return
            data = hub.repos[repo][name]
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            rest = data[begin:]
            self.send_response(206 if begin else 200)
            self.send_header("X-Repo-Commit", COMMIT if revision == "main" else revision)
            self.send_header("ETag", f'"{hub.digest(name, data)}"')
            self.send_header("Content-Length", str(len(rest)))
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if self.command == "GET":
                if hub.cut_after:
                    rest = rest[: hub.cut_after.pop(0)]
                    self.close_connection = True
                self.wfile.write(rest)

        def _json(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
