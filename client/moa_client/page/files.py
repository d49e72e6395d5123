"""The page's own files, read once: each with its type, a tag for caches, and headers that keep the page to itself."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# Scripts and styles from here alone, no HTML from strings at all (trusted types), no frame around the page.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), clipboard-write=(self)",
}


class StaticFiles:
    """All files below the folder `static`, by their path there."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        self._read(files("moa_client.page") / "static", "")

    def _read(self, folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                self._read(entry, f"{prefix}{entry.name}/")
            elif (kind := TYPES.get(entry.name.rpartition(".")[2])) is not None:
                content = entry.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                self._files[prefix + entry.name] = content, kind, tag

    async def index(self, request: Request) -> Response:
        """The page."""
        return self._respond(request, "index.html")

    async def file(self, request: Request) -> Response:
        """One of its files."""
        return self._respond(request, request.path_params["path"])

    def _respond(self, request: Request, path: str) -> Response:
        found = self._files.get(path)
        if found is None:
            return PlainTextResponse("There is no such file in the page.\n", 404, SECURITY)
        content, kind, tag = found
        headers = {**SECURITY, "etag": tag, "cache-control": "no-cache", "content-type": kind}
        if tag in (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")):
            return Response(None, 304, headers)
        return Response(content, 200, headers)
