"""Links in real time: processes of netsim with a profile of their own, and sockets at both ends."""

import json
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsim.run.control import LinkProcess
from netsim.run.loop import Address
from netsim.run.tun import SERVER_ADDRESS, socket_inside

PORT = 7000
TIMEOUT_S = 30.0


@dataclass(slots=True)
class CheckedLink:
    """An open link. `summary` is filled when it has closed."""

    backend: str
    process: LinkProcess
    namespaces: dict[str, str]
    listener: socket.socket
    summary: dict[str, Any]
    stack: ExitStack  # closes the sockets with the link

    def client_socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """A socket in the client's namespace."""
        return self.stack.enter_context(socket_inside(self.namespaces["client"], kind))

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """A TCP connection through the link: the client's socket and the server's."""
        if self.backend == "tun":
            client = self.client_socket()
            target: tuple[str, int] = (SERVER_ADDRESS, PORT)
        else:
            client = self.stack.enter_context(socket.socket())
            address = self.process.address()
            target = (address.host, address.port)
        client.settimeout(TIMEOUT_S)
        client.connect(target)
        server = self.stack.enter_context(self.listener.accept()[0])
        server.settimeout(TIMEOUT_S)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client, server

    def datagrams(self) -> tuple[socket.socket, socket.socket]:
        """UDP sockets at both ends of a tun link, the client's connected."""
        client = self.client_socket(socket.SOCK_DGRAM)
        server = self.stack.enter_context(socket_inside(self.namespaces["server"], socket.SOCK_DGRAM))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        server.bind((SERVER_ADDRESS, PORT))
        server.settimeout(1.0)
        client.connect((SERVER_ADDRESS, PORT))
        return client, server

    def origin(self) -> float:
        """time.monotonic() at the link's time 0, to about 1 ms."""
        before = time.monotonic()
        t: float = self.process.send(do="status")["t_s"]
        return (before + time.monotonic()) / 2.0 - t


@contextmanager
def open_checked_link(
    backend: str, fields: dict[str, Any], seed: int, *, events: Sequence[str] = (), trace: str | None = None
) -> Iterator[CheckedLink]:
    """Opens a link whose profile has `fields`, and a listening socket at its far end."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netsim-")))
        document = {
            "version": 1,
            "name": "check",
            "description": "Made by a test.",
            "basis": "one_way",
            **fields,
        }
        (scratch / "check.yaml").write_text(json.dumps(document))  # JSON is YAML
        words = ["--profile", str(scratch / "check.yaml"), "--seed", str(seed), "--backend", backend]
        words += [word for event in events for word in ("--event", event)]
        listener = socket.socket()
        stack.callback(listener.close)
        if backend == "tun":
            words += ["--port", str(PORT)]
        else:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            words += ["--upstream", str(Address(*listener.getsockname()))]
        if trace is not None:
            (scratch / "trace.csv").write_text(trace)
            words.append(str(scratch / "trace.csv"))
        process = LinkProcess("replay" if trace is not None else "run", words, scratch / "out", scratch)
        summary: dict[str, Any] = {}
        stopped = False
        try:
            process.await_ready()
            namespaces = process.send(do="status").get("namespaces", {})
            if backend == "tun":
                listener.close()
                listener = socket_inside(namespaces["server"])
                stack.callback(listener.close)
                listener.bind(("0.0.0.0", PORT))
                listener.listen()
            listener.settimeout(TIMEOUT_S)
            yield CheckedLink(backend, process, namespaces, listener, summary, stack)
            process.stop()
            stopped = True
            summary.update(json.loads((scratch / "out" / "summary.json").read_text()))
        finally:
            if not stopped:
                process.stop()
