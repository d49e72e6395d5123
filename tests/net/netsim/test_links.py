"""Links in real time: packets between namespaces, which need root, and both backends: nothing is faster than its profile says, nothing
is lost, and a link that is late says so. How fast they are was measured (docs/measurements/netsim.md).
"""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from netsim.core.stream import HEADER, MSS
from netsim.errors import NetsimError
from netsim.run.control import LinkProcess
from netsim.run.loop import Address
from netsim.run.tun import NAMESPACES, SERVER_ADDRESS, NamespacePair, clean_leftovers, socket_inside

from netsim import open_link
from tests.support.programs import environment, started

pytestmark = pytest.mark.xdist_group("netsim-real-time")
PORT = 7000
TIMEOUT_S = 60.0


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

    def connect(self) -> socket.socket:
        """The client's end of a TCP connection through the link."""
        if self.backend == "tun":
            client = self.client_socket()
            target: tuple[str, int] = (SERVER_ADDRESS, PORT)
        else:
            client = self.stack.enter_context(socket.socket())
            address = self.process.address()
            target = (address.host, address.port)
        client.settimeout(TIMEOUT_S)
        client.connect(target)
        return client

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """A TCP connection through the link: the client's socket and the server's."""
        client, server = self.connect(), self.stack.enter_context(self.listener.accept()[0])
        server.settimeout(TIMEOUT_S)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client, server


@contextmanager
def open_checked_link(backend: str, fields: dict[str, Any], seed: int) -> Iterator[CheckedLink]:
    """Opens a link whose profile has `fields`, and a listening socket at its far end."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netsim-")))
        document = {"version": 1, "name": "check", "description": "Made by a test.", "basis": "one_way", **fields}
        (scratch / "check.yaml").write_text(json.dumps(document))  # JSON is YAML
        words = ["--profile", str(scratch / "check.yaml"), "--seed", str(seed), "--backend", backend]
        listener = socket.socket()
        stack.callback(listener.close)
        if backend == "tun":
            words += ["--port", str(PORT)]
        else:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            words += ["--upstream", str(Address(*listener.getsockname()))]
        process = LinkProcess("run", words, scratch / "out", scratch)
        stack.callback(process.stop)
        summary: dict[str, Any] = {}
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
        summary.update(json.loads((scratch / "out" / "summary.json").read_text()))


DELAY = {"delay": {"mean_ms": 10}}
each_backend = pytest.mark.parametrize("backend", [pytest.param("tun", marks=pytest.mark.root), "proxy"])
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = environment("netsim")


def ask(client: socket.socket, server: socket.socket) -> None:
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    server.sendall(b"answer")
    assert client.recv(100) == b"answer"


@pytest.mark.root
def test_the_kernels_congestion_control_is_pinned() -> None:
    with open_checked_link("tun", {**DELAY, "congestion": "reno"}, 0) as link:
        client, server = link.pair()
        for sock in (client, server):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        ask(client, server)
    assert link.summary["congestion_control"] == "reno"
    assert link.summary["approximate"] is False


@pytest.mark.root
def test_loopbacks_port_goes_over_the_link_too() -> None:
    with open_checked_link("tun", DELAY, 0) as link:
        client = link.client_socket()
        client.settimeout(60.0)
        client.connect(("127.0.0.1", PORT))
        server = link.stack.enter_context(link.listener.accept()[0])
        ask(client, server)
    assert link.summary["directions"]["up"]["packets"] >= 3  # SYN, ACK, question; the last ACK may come too late


@each_backend
@pytest.mark.parametrize(("action", "expected"), [("reset", "reset"), ("fin", "end")])
def test_connections_end_on_both_sides(backend: str, action: str, expected: str) -> None:
    def end_of(sock: socket.socket) -> str:
        try:
            return "end" if sock.recv(10) == b"" else "data"
        except ConnectionResetError:
            return "reset"

    with open_checked_link(backend, DELAY, 0) as link:
        client, server = link.pair()
        ask(client, server)
        link.process.send(do=action)
        assert (end_of(client), end_of(server)) == (expected, expected)
        client.close()
        server.close()
        ask(*link.pair())  # the link still works


@each_backend
def test_new_connections_are_refused_for_a_time(backend: str) -> None:
    with open_checked_link(backend, DELAY, 0) as link:
        ask(*(ends := link.pair()))
        link.process.send(do="refuse")
        with pytest.raises(ConnectionRefusedError):
            link.connect()
        ask(*ends)  # those that are open stay
        link.process.send(do="heal")
        ask(*link.pair())


@each_backend
def test_packets_under_way_are_lost_in_a_cut_and_sent_again(backend: str) -> None:
    with open_checked_link(backend, {"delay": {"mean_ms": 60}}, 0) as link:
        client, server = link.pair()
        ask(client, server)
        client.sendall(b"under way")
        link.process.send(do="cut", direction="up")
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.recv(100)
        link.process.send(do="heal")
        server.settimeout(60.0)
        assert server.recv(100) == b"under way"


RUN = [sys.executable, "-m", "netsim.cli", "run", "--profile", "wired"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command over a link, to its end."""
    return subprocess.run([*RUN, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.root
def test_a_command_reaches_a_server_outside_and_its_status_is_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(peer.recv(100).upper())

        thread = threading.Thread(target=answer)
        thread.start()
        script = (
            "import os, socket, sys\n"
            f"s = socket.create_connection(('127.0.0.1', {port}))\n"
            "s.sendall(b'hello'); print(s.recv(100).decode(), os.environ['NETSIM_LINK'], sys.argv[1]); sys.exit(7)"
        )
        done = run("--upstream", f":{port}", "--", sys.executable, "-c", script, "{link}")
        thread.join()
    assert (done.stdout, done.returncode) == (f"HELLO 198.18.0.2:{port} 198.18.0.2:{port}\n", 7)


@pytest.mark.root
def test_an_upstream_that_refuses_refuses_in_the_namespace() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    script = (
        "import socket, sys\n"
        f"a = ('127.0.0.1', {port})\n"
        "try: print(socket.create_connection(a).recv(1))\n"
        "except ConnectionResetError: print('reset')\n"
        "try: socket.create_connection(a)\n"
        "except ConnectionRefusedError: print('refused')"
    )
    done = run("--upstream", f":{port}", "--", sys.executable, "-c", script)
    assert done.stdout == "reset\nrefused\n"


@pytest.mark.root
def test_a_server_started_at_the_far_end() -> None:
    server = "import socket; s = socket.create_server(('0.0.0.0', 7123)); c, _ = s.accept(); c.sendall(b'far')"
    client = "import socket; print(socket.create_connection(('127.0.0.1', 7123)).recv(10))"
    served = f'{sys.executable} -c "{server}"'
    done = run("--port", "7123", "--serve", served, "--", sys.executable, "-c", client)
    assert done.stdout == "b'far'\n", done.stderr


@pytest.mark.root
def test_what_a_killed_run_leaves_is_found_and_cleaned() -> None:
    with started([*RUN, "--port", "7000"], ENVIRONMENT) as killed:
        assert "carries to" in killed.out.readline()
        mine = {f"netsim-{killed.process.pid}-0-{side}" for side in ("client", "server")}
        assert mine <= {path.name for path in NAMESPACES.iterdir()}
        assert not mine & set(clean_leftovers())  # it lives
    assert run("--port", "7000", "--", "true").returncode == 0
    assert not mine & {path.name for path in NAMESPACES.iterdir()}


@pytest.mark.root
def test_a_failed_set_up_leaves_nothing() -> None:
    before = set(NAMESPACES.iterdir()) if NAMESPACES.exists() else set()
    with pytest.raises(NetsimError, match="cannot be set up"):
        NamespacePair("nosuch", 7000)
    after = {path for path in NAMESPACES.iterdir() if f"netsim-{os.getpid()}-" in path.name}
    assert not after - before


@pytest.mark.root
async def test_the_python_handle_over_tun() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = "{}:{}".format(*listener.getsockname())
        async with open_link("wired", upstream=upstream, backend="tun") as link:
            prefix = await link.command_prefix()
            script = f"import socket; socket.create_connection({tuple(link.address)!r}).close()"
            process = await asyncio.create_subprocess_exec(*prefix, sys.executable, "-c", script)
            assert await process.wait() == 0
            listener.accept()[0].close()
            assert (await link.status())["packets"]["up"]["packets"] >= 3


@contextmanager
def in_thread(target: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    yield
    thread.join()


def echo(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(4096):
            server.sendall(data)


@each_backend
def test_no_answer_comes_before_its_delay(backend: str) -> None:
    with open_checked_link(backend, {"delay": {"mean_ms": 12}}, 1) as link:
        client, server = link.pair()
        with in_thread(echo, server):
            for _ in range(20):
                began = time.monotonic()
                client.sendall(b"x")
                client.recv(1)
                assert time.monotonic() - began >= 0.0239
            client.shutdown(socket.SHUT_WR)


@each_backend
def test_no_more_comes_than_its_rate_lets_through(backend: str) -> None:
    mbps, seconds = 20.0, 2.0
    with open_checked_link(backend, {"delay": {"mean_ms": 5}, "rate_mbps": mbps}, 1) as link:
        client, server = link.pair()
        end = time.monotonic() + seconds

        def send() -> None:
            client.settimeout(0.2)
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    client.send(bytes(256 * 1024))

        began, received = time.monotonic(), 0
        with in_thread(send):
            while time.monotonic() < end:
                received += len(server.recv(1 << 20))
        most = mbps * 1e6 / 8 * (time.monotonic() - began) * MSS / (MSS + HEADER)
    assert 0 < received <= 1.05 * most


@each_backend
def test_a_link_that_is_stopped_with_a_packet_on_its_way_says_that_it_was_late(backend: str) -> None:
    with open_checked_link(backend, {"delay": {"mean_ms": 300}}, 1) as link:
        client, server = link.pair()

        def taken_in() -> int:
            packets: int = link.process.send(do="status")["packets"]["up"]["packets"]
            return packets

        late = False
        while not late:  # one try, unless this test is kept waiting for as long as the delay
            before = taken_in()
            client.sendall(b"x")
            while taken_in() == before:
                pass
            os.kill(link.process.process.pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(link.process.process.pid, signal.SIGCONT)
            assert server.recv(1) == b"x"
            late = link.process.send(do="status")["lateness"]["flagged"]
    assert link.summary["lateness"]["flagged"]


@each_backend
def test_every_byte_arrives_over_a_lossy_link(backend: str) -> None:
    content = random.Random(1).randbytes(2_000_000)
    fields = {
        "delay": {"mean_ms": 5, "deviation_ms": 4},
        "rate_mbps": 50,
        "loss": {"model": "gilbert_elliott", "enter_bad": 0.01, "leave_bad": 0.3, "loss_bad": 0.5},
        "queue_kib": 64,
    }

    def send(client: socket.socket) -> None:
        client.sendall(content)
        client.close()

    with open_checked_link(backend, fields, 1) as link:
        client, server = link.pair()
        with in_thread(send, client):
            received = bytearray()
            while data := server.recv(1 << 20):
                received += data
    assert hashlib.sha256(received).digest() == hashlib.sha256(content).digest()
