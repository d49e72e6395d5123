"""Links by name, and bytes through a real one."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from moa_bench.harness.links import EmulatedLink, linked


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets, for any number of connections."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def dial(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10)


def test_bytes_pass_and_wait(echo: str) -> None:
    with linked(EmulatedLink("RTT 40 ms", 20.0), echo, seed=1) as running, dial(running.address) as connection:
        began = time.perf_counter()
        for _ in range(3):
            connection.sendall(b"question")
            assert connection.recv(100) == b"question"
        assert time.perf_counter() - began >= 3 * 0.04


def test_a_cut_holds_everything_up(echo: str) -> None:
    with linked(EmulatedLink("RTT 2 ms", 1.0), echo) as running, dial(running.address) as connection:
        connection.sendall(b"1")
        assert connection.recv(10) == b"1"
        running.cut(0.4)
        began = time.perf_counter()
        connection.sendall(b"2")
        assert connection.recv(10) == b"2"
        assert time.perf_counter() - began >= 0.3
        running.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(10)
