"""The control socket of a running link: one JSON object per line, one answer to each.

`ControlServer` lives in the link's loop; `send` is the other end (`netsim ctl`, the Python handle). Sockets of running
links are in one folder per user, under the links' names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netsim.errors import ControlError, NetsimError
from netsim.run.loop import Loop

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
MAX_REQUEST_BYTES = 64 * 1024
TIMEOUT_S = 5.0

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def folder() -> Path:
    """Where this user's links have their sockets."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return base / "netsim" if base.is_absolute() else Path(tempfile.gettempdir()) / f"netsim-{os.getuid()}"


def named_path(name: str) -> Path:
    """The socket of this user's link of that name; raises ControlError for what cannot be a name."""
    if not NAME.fullmatch(name):
        raise ControlError(
            f"{name!r} cannot be the name of a link.",
            hint="Use at most 40 letters, digits, dots, hyphens, underscores.",
        )
    return folder() / f"{name}.sock"


def new_path(name: str | None) -> Path:
    """Where a new link has its socket; makes the folder, for this user only.

    Args:
        name: of the link; None: the number of this process.

    Raises ControlError if a link of that name is running.
    """
    socket_path = named_path(name if name is not None else str(os.getpid()))
    path = folder()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.lstat().st_uid not in (0, os.getuid()):  # who made a symbolic link
        raise ControlError(f"{path} belongs to somebody else.", hint="Give another path with --control.")
    if name is not None and socket_path.exists() and _answers(socket_path):
        raise ControlError(f"A link named {name} is running.", hint="Choose another --name, or end that link.")
    return socket_path


class ControlServer:
    """Answers requests on the control socket, which it owns and `close` removes."""

    def __init__(self, loop: Loop, path: Path, handler: Handler) -> None:
        self.path = path
        self._loop = loop
        self._handler = handler
        self._peers: dict[socket.socket, bytes] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if path.exists() and not _answers(path):
            path.unlink()  # left by a killed run
        try:
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            raise ControlError(f"Control socket {path} cannot be made: {error.strerror or error}.") from error
        path.chmod(0o600)
        self._socket.listen()
        self._socket.setblocking(False)
        loop.read(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            peer, _ = self._socket.accept()
            peer.settimeout(TIMEOUT_S)
            self._peers[peer] = b""
            self._loop.read(peer.fileno(), lambda: self._read(peer))

    def _read(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(MAX_REQUEST_BYTES)
            self._peers[peer] += data
            while b"\n" in self._peers[peer]:
                line, _, self._peers[peer] = self._peers[peer].partition(b"\n")
                peer.sendall(json.dumps(self._answer(line)).encode() + b"\n")
        except OSError:
            data = b""  # the peer has gone
        if not data or len(self._peers[peer]) > MAX_REQUEST_BYTES:
            self._drop(peer)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ControlError("A request is a JSON object.")
            return {"ok": True, **self._handler(request)}
        except NetsimError as error:
            return {"ok": False, "error": error.message, "hint": error.hint}
        except (ValueError, TypeError, AttributeError) as error:
            return {"ok": False, "error": f"The request cannot be read: {error}.", "hint": None}

    def _drop(self, peer: socket.socket) -> None:
        self._loop.read(peer.fileno(), None)
        del self._peers[peer]
        peer.close()

    def close(self) -> None:
        """Ends the connections and removes the socket."""
        for peer in list(self._peers):
            self._drop(peer)
        self._loop.read(self._socket.fileno(), None)
        self._socket.close()
        self.path.unlink(missing_ok=True)


def send(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request and returns the answer's fields; raises ControlError if it was refused or not answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(str(path))
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as stream:
                line = stream.readline()
        except OSError as error:
            raise ControlError(f"No link answers at {path}: {error.strerror or error}.") from error
    if not line:
        raise ControlError(f"The link at {path} ended without an answer.")
    answer: dict[str, Any] = json.loads(line)
    if not answer.pop("ok"):
        raise ControlError(answer["error"], hint=answer.get("hint"))
    return answer


def running() -> list[Path]:
    """Sockets of this user's links that answer; those of killed runs are removed."""
    found = []
    for path in sorted(folder().glob("*.sock")):
        if _answers(path):
            found.append(path)
        else:
            path.unlink(missing_ok=True)
    return found


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True
