"""What /proc says of processes."""

from __future__ import annotations

import os
import socket

import pytest
from moa_server.cluster.processes import began, listening, name_of


@pytest.mark.parametrize(
    ("family", "host", "shown"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", "0.0.0.0"),
        (socket.AF_INET6, "::1", "[::1]"),
        (socket.AF_INET6, "::", "[::]"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_it_is_found_where_a_process_listens(family: socket.AddressFamily, host: str, shown: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener:
        address = f"{shown}:{listener.getsockname()[1]}"
        assert address in listening([os.getpid()])
    assert address not in listening([os.getpid()])


def test_a_process_that_is_gone_has_nothing() -> None:
    gone = 1 << 22
    assert (began(gone), name_of(gone), listening([gone])) == ("", "", [])
