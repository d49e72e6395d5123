"""Models put where other programs keep theirs, and a small server that speaks as much of the hub's API as fetching takes."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


def put_into_hub(cache: Path, repo: str, files: dict[str, Path], commit: str = "c0", ref: str | None = "main") -> Path:
    """A snapshot as huggingface_hub writes it: links to blobs. The commit's folder."""
    repository = cache / f"models--{repo.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for name, source in files.items():
        data = source.read_bytes()
        blob = repository / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blob)
    if ref is not None:
        (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    return snapshot


def put_into_ollama(folder: Path, name: str, weights: Path | None, *other: str) -> Path:
    """A model as ollama keeps it; the manifest. `name`: HOST/OWNER/NAME/TAG. `other`: kinds of further layers."""
    layers = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{'0' * 64}"} for kind in other]
    if weights is not None:
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        blob = folder / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(weights, blob)
        layers.insert(0, {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"})
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return manifest


def use_hub_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes this folder the hub's cache, for its client too, which has read the environment already."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Makes a server the hub, for its client too, with ten chunks for what is large here and no pauses."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 20)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    use_hub_cache(monkeypatch, cache)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty places of its own for the hub, ollama and LM Studio."""
    home = tmp_path / "home"
    found = {"hub": home / "hub", "ollama": home / ".ollama/models", "lm studio": home / ".lmstudio/models"}
    for folder in found.values():
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    use_hub_cache(monkeypatch, found["hub"])
    return found


COMMIT = "c" * 40


@dataclass
class FakeHub:
    """A hub's content, and what was asked of it.

    Args:
        repos: files by name of each repository.
        gated: repositories whose terms must be accepted.
        gone: files that are listed, and are not there.
        cut_after: bytes after which the next answers with a file break off, one for each.
        lies: hashes that are said of files, in place of the right ones.
        told: what else is said of repositories.
        asked: method, path and range of each request.
    """

    repos: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    cut_after: list[int] = field(default_factory=list)
    lies: dict[str, str] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)
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

        def do_GET(self) -> None:
            self._answer()

        do_HEAD = do_GET

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
                self._json({"id": repo, "sha": COMMIT, "siblings": siblings, **hub.told})

        def _entry(self, name: str, data: bytes) -> dict[str, object]:
            entry: dict[str, object] = {"size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            entry["oid"] = entry["blobId"]
            if name.endswith((".gguf", ".safetensors")):
                digest = hub.digest(name, data)
                entry["lfs"] = {"sha256": digest, "oid": digest, "size": len(data), "pointerSize": 130}
            return entry

        def _send(self, repo: str, revision: str, name: str) -> None:
            if repo in hub.gated:
                self._refuse(401, "GatedRepo")
                return
            if name in hub.gone:
                self._refuse(404, "EntryNotFound")
                return
            data = hub.repos[repo][name]
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            headers = {
                "X-Repo-Commit": COMMIT if revision == "main" else revision,
                "ETag": f'"{hub.digest(name, data)}"',
            }
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            self._say(206 if begin else 200, data[begin:], headers)

        def _json(self, value: object) -> None:
            self._say(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
            headers = {**(headers or {}), "Content-Length": str(len(body))}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET" and body:
                if hub.cut_after and "ETag" in headers:
                    body, self.close_connection = body[: hub.cut_after.pop(0)], True
                self.wfile.write(body)

        def _refuse(self, status: int, code: str) -> None:
            self._say(status, headers={"X-Error-Code": code})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with server:
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
