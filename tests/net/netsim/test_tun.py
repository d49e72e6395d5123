"""The tun backend: real packets between namespaces. It needs root."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from netsim.errors import NetsimError
from netsim.run.tun import NAMESPACES, SERVER_ADDRESS, NamespacePair, clean_leftovers

from netsim import open_link
from tests.support.checked_links import PORT, CheckedLink, open_checked_link
from tests.support.programs import environment, started

pytestmark = [pytest.mark.root, pytest.mark.timeout(90), pytest.mark.xdist_group("netsim-real-time")]

DELAY = {"delay": {"mean_ms": 10}}
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = environment("netsim")


def ask(client: socket.socket, server: socket.socket) -> None:
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    server.sendall(b"answer")
    assert client.recv(100) == b"answer"


def test_the_kernels_congestion_control_is_pinned() -> None:
    with open_checked_link("tun", {**DELAY, "congestion": "reno"}, 0) as link:
        client, server = link.pair()
        for sock in (client, server):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        ask(client, server)
    assert link.summary["congestion_control"] == "reno"
    assert link.summary["approximate"] is False


def test_loopbacks_port_goes_over_the_link_too() -> None:
    with open_checked_link("tun", DELAY, 0) as link:
        client = link.client_socket()
        client.settimeout(10.0)
        client.connect(("127.0.0.1", PORT))
        server = link.stack.enter_context(link.listener.accept()[0])
        ask(client, server)
    assert link.summary["directions"]["up"]["packets"] >= 3  # SYN, ACK, question; the last ACK may come too late


@pytest.mark.parametrize(("action", "expected"), [("reset", "reset"), ("fin", "end")])
def test_connections_end_on_both_sides(action: str, expected: str) -> None:
    def end_of(sock: socket.socket) -> str:
        try:
            return "end" if sock.recv(10) == b"" else "data"
        except ConnectionResetError:
            return "reset"

    with open_checked_link("tun", DELAY, 0) as link:
        client, server = link.pair()
        ask(client, server)
        link.process.send(do=action)
        assert (end_of(client), end_of(server)) == (expected, expected)
        client.close()
        server.close()
        ask(*link.pair())  # the link still works


def test_connections_are_refused(link_refusing: CheckedLink) -> None:
    client = link_refusing.client_socket()
    client.settimeout(10.0)
    with pytest.raises(ConnectionRefusedError):
        client.connect((SERVER_ADDRESS, PORT))
    link_refusing.process.send(do="heal")
    ask(*link_refusing.pair())


@pytest.fixture
def link_refusing() -> Iterator[CheckedLink]:
    with open_checked_link("tun", DELAY, 0) as link:
        link.process.send(do="refuse")
        yield link


def test_packets_under_way_are_lost_in_a_cut_and_sent_again() -> None:
    with open_checked_link("tun", {"delay": {"mean_ms": 60}}, 0) as link:
        client, server = link.pair()
        ask(client, server)
        client.sendall(b"under way")
        link.process.send(do="cut", direction="up")
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.recv(100)
        link.process.send(do="heal")
        server.settimeout(30.0)
        assert server.recv(100) == b"under way"


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
        done = subprocess.run(
            [
                sys.executable, "-m", "netsim.cli", "run", "--profile", "wired", "--upstream", f":{port}", "--",
                sys.executable, "-c", script, "{link}",
            ],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        thread.join()
    assert done.stdout == f"HELLO 198.18.0.2:{port} 198.18.0.2:{port}\n"
    assert done.returncode == 7


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
    done = subprocess.run(
        [
            sys.executable, "-m", "netsim.cli", "run", "--profile", "wired", "--upstream", f":{port}", "--",
            sys.executable, "-c", script,
        ],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "reset\nrefused\n"


def test_a_server_started_at_the_far_end() -> None:
    server = "import socket; s = socket.create_server(('0.0.0.0', 7123)); c, _ = s.accept(); c.sendall(b'far')"
    client = "import socket; print(socket.create_connection(('127.0.0.1', 7123)).recv(10))"
    done = subprocess.run(
        [
            sys.executable, "-m", "netsim.cli", "run", "--profile", "wired", "--port", "7123",
            "--serve", f'{sys.executable} -c "{server}"', "--", sys.executable, "-c", client,
        ],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "b'far'\n", done.stderr


def test_what_a_killed_run_leaves_is_found_and_cleaned() -> None:
    with started(
        [sys.executable, "-m", "netsim.cli", "run", "--profile", "wired", "--port", "7000"], ENVIRONMENT
    ) as run:
        assert "carries to" in run.out.readline()
        mine = {f"netsim-{run.process.pid}-0-{side}" for side in ("client", "server")}
        assert mine <= {path.name for path in NAMESPACES.iterdir()}
        assert not mine & set(clean_leftovers())  # it lives
    subprocess.run(
        [sys.executable, "-m", "netsim.cli", "run", "--profile", "wired", "--port", "7000", "--", "true"],
        env=ENVIRONMENT, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert not mine & {path.name for path in NAMESPACES.iterdir()}


def test_a_failed_set_up_leaves_nothing() -> None:
    before = set(NAMESPACES.iterdir()) if NAMESPACES.exists() else set()
    with pytest.raises(NetsimError, match="cannot be set up"):
        NamespacePair("nosuch", 7000)
    after = {path for path in NAMESPACES.iterdir() if f"netsim-{os.getpid()}-" in path.name}
    assert not after - before


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
