"""Which user is at the other end of a loopback connection."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from moa_client.web import connection
from moa_client.web.connection import Owner, read_tables, user_of

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = "01 00000000:00000000 00:00000000 00000000  {}        0 1 1 0 20 4 30 10 -1\n"
TCP = (
    HEAD + "   0: 0100007F:21E2 0100007F:C001 " + REST.format(7) + "   1: 0100007F:C001 0100007F:21E2 " + REST.format(8)
)
TCP6 = (
    HEAD
    + "   0: 00000000000000000000000001000000:C002 00000000000000000000000001000000:21E2 "
    + REST.format(9)
    + "   1: 0000000000000000FFFF00000100007F:C003 0000000000000000FFFF00000100007F:21E2 "
    + REST.format(10)
)


CLIENT, SERVER = ("127.0.0.1", 0xC001), ("127.0.0.1", 8674)
linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net")


def test_the_tables_have_the_user_of_the_clients_end(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(TCP)
    (tmp_path / "tcp6").write_text(TCP6)
    assert read_tables(CLIENT, SERVER, tmp_path) == Owner(1, 8, 1)
    assert read_tables(("::1", 0xC002), ("::1", 8674), tmp_path) == Owner(1, 9, 1)
    assert read_tables(("127.0.0.1", 0xC003), SERVER, tmp_path) == Owner(1, 10, 1)
    assert read_tables(("127.0.0.1", 0xC004), SERVER, tmp_path) is None


def test_a_system_that_has_no_tables(tmp_path: Path) -> None:
    assert read_tables(CLIENT, SERVER, tmp_path) is None


class Ends:
    """A connection, of which nothing is asked but its ends; `leaves`: it is reset meanwhile."""

    def __init__(self, *, leaves: bool = False) -> None:
        self._asked = 0
        self._leaves = leaves

    def getpeername(self) -> tuple[str, int]:
        self._asked += 1
        if self._leaves and self._asked > 1:
            raise OSError("Transport endpoint is not connected")
        return CLIENT

    def getsockname(self) -> tuple[str, int]:
        return SERVER


@pytest.mark.parametrize(
    ("owner", "user"),
    [
        (Owner(1, 1000, 5), 1000),
        (Owner(1, 0, 5), 0),
        (Owner(5, 1000, 5), 1000),  # it has sent all, and still reads
        (Owner(5, 0, 0), None),  # it was closed: the kernel says root
        (Owner(6, 0, 0), None),
        (Owner(1, 0, 0), None),
        (Owner(2, 1000, 5), None),  # another program that takes the port only now
        (Owner(10, 1000, 5), None),  # a server at that port
        (None, None),
    ],
)
def test_only_an_open_socket_says_whose_it_is(
    owner: Owner | None, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "read_tables", lambda client, server: owner)
    assert user_of(Ends()) == user
    assert user_of(Ends(leaves=True)) is None


@pytest.mark.parametrize(("is_whole", "user"), [(True, 65534), (False, None)])
def test_users_that_have_no_number_here_cannot_be_told_apart(
    is_whole: bool, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "read_tables", lambda client, server: Owner(1, 65534, 5))
    monkeypatch.setattr(connection, "_has_every_user", lambda: is_whole)
    assert user_of(Ends()) == user


@contextmanager
def connected(host: str, to: str = "") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the second one was accepted."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.socket(socket.AF_INET6 if ":" in (to or host) else socket.AF_INET)
        with client:
            client.connect((to or host, listener.getsockname()[1]))
            accepted, _ = listener.accept()
            with accepted:
                yield client, accepted


@linux
@pytest.mark.parametrize(("host", "to"), [("127.0.0.1", ""), ("::1", ""), ("127.0.0.1", "::ffff:127.0.0.1")])
def test_of_a_real_connection_it_is_this_process(host: str, to: str) -> None:
    if ":" in host + to and not Path("/proc/net/if_inet6").exists():
        return  # there is no IPv6 here
    with connected(host, to) as (client, accepted):
        assert user_of(accepted) == os.getuid()
        client.shutdown(socket.SHUT_WR)
        assert user_of(accepted) == os.getuid()


@linux
@pytest.mark.parametrize("linger", [b"", struct.pack("ii", 1, 0)])
def test_who_has_left_cannot_be_told(linger: bytes) -> None:
    with connected("127.0.0.1") as (client, accepted):
        if linger:  # closing resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
        assert user_of(accepted) is None
