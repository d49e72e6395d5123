"""The control socket of a running link: one JSON object per line, one answer to each.

`ControlServer` lives in the link's loop; `send` is the other end (`netsim ctl`, the Python handle). Sockets of running
links are in one folder per user, under the links' names. `open_link` is a link in a process of its own, from Python.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from netsim.errors import NetsimError
from netsim.recorder import EVENTS, SUMMARY
from netsim.run.loop import Address, Loop, parse_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
MAX_REQUEST_BYTES = 64 * 1024
TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0  # of a link in a process of its own


def folder() -> Path:
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return base / "netsim" if base.is_absolute() else Path(tempfile.gettempdir()) / f"netsim-{os.getuid()}"


def named_path(name: str) -> Path:
    """The socket of this user's link of that name; raises NetsimError for what cannot be a name."""
    if not NAME.fullmatch(name):
        raise NetsimError(
            f"{name!r} cannot be the name of a link.",
            hint="Use at most 40 letters, digits, dots, hyphens, underscores.",
        )
    return folder() / f"{name}.sock"


def new_path(name: str | None) -> Path:
    """Where a new link, named after this process without a name, has its socket; makes the folder, for this user only.

    Raises NetsimError if a link of that name is running.
    """
    socket_path = named_path(name if name is not None else str(os.getpid()))
    path = folder()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.lstat().st_uid not in (0, os.getuid()):  # who made a symbolic link
        raise NetsimError(f"{path} belongs to somebody else.", hint="Give another path with --control.")
    if name is not None and socket_path.exists() and _answers(socket_path):
        raise NetsimError(f"A link named {name} is running.", hint="Choose another --name, or end that link.")
    return socket_path


class ControlServer:
    """Answers requests on the control socket, which it owns and `close` removes."""

    def __init__(self, loop: Loop, path: Path, handler: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
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
            raise NetsimError(f"Control socket {path} cannot be made: {error.strerror or error}.") from error
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
                raise NetsimError("A request is a JSON object.")
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
        for peer in list(self._peers):
            self._drop(peer)
        self._loop.read(self._socket.fileno(), None)
        self._socket.close()
        self.path.unlink(missing_ok=True)


def send(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request and returns the answer's fields; raises NetsimError if it was refused or not answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(str(path))
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as stream:
                line = stream.readline()
        except OSError as error:
            raise NetsimError(f"No link answers at {path}: {error.strerror or error}.") from error
    if not line:
        raise NetsimError(f"The link at {path} ended without an answer.")
    answer: dict[str, Any] = json.loads(line)
    if not answer.pop("ok"):
        raise NetsimError(answer["error"], hint=answer.get("hint"))
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


class LinkProcess:
    """A link running as a process. `scratch` is a folder for its ready file, control socket and standard error."""

    def __init__(self, command: str, words: Sequence[str], out: Path, scratch: Path) -> None:
        self.control_path = scratch / "control.sock"
        self._ready = scratch / "ready"
        self._said = scratch / "stderr"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "netsim.cli", command, "--out", str(out), "--control",
                    str(self.control_path), "--ready-file", str(self._ready), *words,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env=environment(),
            )  # fmt: skip

    def await_ready(self) -> None:
        """Waits until the link carries traffic; raises NetsimError with what netsim said if it does not open."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self.process.poll() is not None:
                said = self._said.read_text().removeprefix("netsim: ").strip()
                raise NetsimError(f"The link did not open: {said}")
            if time.monotonic() > deadline:
                raise NetsimError(f"The link did not open within {START_TIMEOUT_S:.0f} s.")
            time.sleep(0.01)

    def address(self) -> Address:
        return parse_address(self._ready.read_text().strip(), "link")

    def send(self, **request: Any) -> dict[str, Any]:
        return send(self.control_path, request)

    def stop(self) -> None:
        """Ends the process and waits for it; its outputs are complete then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment() -> dict[str, str]:
    """Our environment, with the folder that netsim was imported from: a checkout may not be installed."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class LinkHandle:
    """A running link. A method does what the command of `netsim ctl` of its name does, and returns when it is done."""

    def __init__(self, process: LinkProcess, out: Path) -> None:
        self.address = process.address()
        self.target = str(self.address)  # HOST:PORT that clients connect to
        self.out = out
        self._process = process

    async def _send(self, **request: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._process.send, **request)

    async def command_prefix(self) -> list[str]:
        """What to put before a command to run it at the client's end of a tun link; empty for a proxy."""
        namespaces = (await self.status()).get("namespaces")
        return ["ip", "netns", "exec", namespaces["client"]] if namespaces else []

    async def cut(self, direction: str = "both", seconds: float | None = None) -> None:
        await self._send(do="cut", direction=direction, seconds=seconds)

    async def hold(self, direction: str = "both", seconds: float | None = None) -> None:
        await self._send(do="hold", direction=direction, seconds=seconds)

    async def heal(self) -> None:
        await self._send(do="heal")

    async def reset(self) -> None:
        await self._send(do="reset")

    async def fin(self) -> None:
        await self._send(do="fin")

    async def refuse(self, seconds: float | None = None) -> None:
        await self._send(do="refuse", seconds=seconds)

    async def set(
        self, *, profile: str | None = None, ramp_s: float = 0.0, direction: str = "both", **settings: float
    ) -> None:
        await self._send(do="set", settings=settings, profile=profile, ramp_s=ramp_s, direction=direction)

    async def status(self) -> dict[str, Any]:
        return await self._send(do="status")

    def summary(self) -> dict[str, Any]:
        """summary.json; exists once the block has ended."""
        content: dict[str, Any] = json.loads((self.out / SUMMARY).read_text())
        return content

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl; complete once the block has ended."""
        return [json.loads(line) for line in (self.out / EVENTS).read_text().splitlines()]


@asynccontextmanager
async def open_link(
    profile: str,
    *,
    upstream: str,
    seed: int = 0,
    backend: Literal["proxy", "tun"] = "proxy",
    events: Sequence[str] = (),
    trace: Path | None = None,
    loop_trace: bool = False,
    out: Path | None = None,
) -> AsyncIterator[LinkHandle]:
    """Opens a link before `upstream` (HOST:PORT) and closes it with the block.

    `events` are of the form `12:blackhole:3`; `trace` drives the link, and the profile fills in what it leaves blank.
    Outputs go to `out`, or to a folder that is removed when the block ends. Raises NetsimError with what netsim said
    if the link does not open.
    """
    with tempfile.TemporaryDirectory(prefix="netsim-") as scratch:
        kept = out or Path(scratch) / "out"
        words = ["--profile", profile, "--seed", str(seed), "--backend", backend, "--upstream", upstream]
        words += [word for event in events for word in ("--event", event)]
        words += (["--loop"] if loop_trace else []) + ([str(trace)] if trace is not None else [])
        process = LinkProcess("run" if trace is None else "replay", words, kept, Path(scratch))
        try:
            await asyncio.to_thread(process.await_ready)
            yield LinkHandle(process, kept)
        finally:
            # Not to_thread: the process must end even when the block was cancelled.
            process.stop()
