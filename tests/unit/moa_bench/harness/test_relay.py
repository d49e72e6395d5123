"""The relay, over real sockets on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moa_bench.harness.relay import relaying

from tests.unit.moa_bench.conftest import dial


@contextmanager
def doubling_server() -> Iterator[str]:
    """Sends back twice what it gets, until the peer closes its half; one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data * 2)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


def receive(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        got += connection.recv(65536)
    return got


@pytest.mark.parametrize("size", [1, 300_000])
def test_bytes_pass_both_ways(size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    with doubling_server() as upstream, relaying(upstream) as relay, dial(relay.address) as connection:
        sender = threading.Thread(target=connection.sendall, args=(payload,))
        sender.start()
        got = receive(connection, 2 * size)
        sender.join(5)
        assert sorted(got) == sorted(payload * 2)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""  # the end passes too, both ways


def test_a_dead_upstream_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
    with relaying(dead) as relay, dial(relay.address) as connection:
        assert connection.recv(1) == b""


def test_new_connections_reach_another_server_and_open_ones_stay() -> None:
    with (
        doubling_server() as first,
        doubling_server() as second,
        relaying(first) as relay,
        dial(relay.address) as before,
    ):
        before.sendall(b"a")
        assert receive(before, 2) == b"aa"
        relay.redirect(second)
        with dial(relay.address) as after:
            after.sendall(b"c")
            before.sendall(b"b")
            assert receive(after, 2) + receive(before, 2) == b"ccbb"


def test_its_end_ends_what_is_open() -> None:
    with doubling_server() as upstream:
        with relaying(upstream) as relay:
            connection = dial(relay.address)
            connection.sendall(b"a")
            assert receive(connection, 2) == b"aa"
        with connection:
            assert connection.recv(1) == b""
