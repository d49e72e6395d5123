"""Who is at the other end of a loopback connection."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from moa_client.web.peer_user import user_of

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


def test_it_is_the_user_of_the_clients_end(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(TCP)
    (tmp_path / "tcp6").write_text(TCP6)
    assert user_of(("127.0.0.1", 0xC001), ("127.0.0.1", 8674), tmp_path) == 8
    assert user_of(("::1", 0xC002), ("::1", 8674), tmp_path) == 9
    assert user_of(("127.0.0.1", 0xC003), ("127.0.0.1", 8674), tmp_path) == 10
    assert user_of(("127.0.0.1", 0xC004), ("127.0.0.1", 8674), tmp_path) is None


def test_a_system_that_does_not_say_it(tmp_path: Path) -> None:
    assert user_of(("127.0.0.1", 0xC001), ("127.0.0.1", 8674), tmp_path) is None


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_of_a_real_connection_it_is_this_process(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            assert family is socket.AF_INET6  # there may be none
            return
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as client:
            client_end, server_end = client.getsockname()[:2], listener.getsockname()[:2]
            assert user_of(client_end, server_end) == os.getuid()
