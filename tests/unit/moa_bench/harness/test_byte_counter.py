"""The counting proxy, over real sockets on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moa_bench.harness.byte_counter import SocketBytes, counting

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
def test_bytes_pass_and_are_counted_each_way(size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    with doubling_server() as upstream, counting(upstream) as counter, dial(counter.address) as connection:
        sender = threading.Thread(target=connection.sendall, args=(payload,))
        sender.start()
        got = receive(connection, 2 * size)
        sender.join(5)
        assert counter.read() == SocketBytes(size, 2 * size)
        assert sorted(got) == sorted(payload * 2)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""  # the end passes too, both ways


def test_a_dead_upstream_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
    with counting(dead) as counter:
        with dial(counter.address) as connection:
            assert connection.recv(1) == b""
        assert counter.read() == SocketBytes(0, 0)


def test_counts_are_subtracted() -> None:
    assert SocketBytes(5, 9) - SocketBytes(2, 3) == SocketBytes(3, 6)
