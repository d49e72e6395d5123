"""Recording a link: against the far end, and against a server that knows nothing of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from netsim.errors import NetsimError
from netsim.measure import measure, serve
from netsim.run.loop import Address


@pytest.fixture
def far_end() -> Iterator[Address]:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener,))
    thread.start()
    yield Address(*listener.getsockname())
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_round_trips_and_rates(far_end: Address) -> None:
    seen = measure(far_end, idle_s=0.5, load_s=2.3)
    assert seen.far_end
    assert len(seen.round_trips_ms) >= 5
    assert [t for t, _ in seen.round_trips_ms] == sorted(t for t, _ in seen.round_trips_ms)
    assert seen.down_mbps[0][1] > 10
    assert seen.up_mbps[0][1] > 10
    assert seen.loss is not None
    assert 0.0 <= seen.loss < 0.5


def test_any_server_gives_round_trips() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def accept() -> None:
            with suppress(OSError):  # the listening socket was shut down
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=accept)
        thread.start()
        seen = measure(Address(*listener.getsockname()), idle_s=0.3, load_s=1.0)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert not seen.far_end
    assert seen.round_trips_ms
    assert seen.down_mbps == []


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
    with pytest.raises(NetsimError, match="cannot be reached: Connection refused"):
        measure(address, 1.0, 0.0)
