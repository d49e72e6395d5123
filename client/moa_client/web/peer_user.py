"""Which user of this device is at the other end of a loopback connection: Linux says it of each socket."""

from __future__ import annotations

import socket
from pathlib import Path

TABLES = ("tcp", "tcp6")
LOCAL, REMOTE, USER = 1, 2, 7  # columns of the tables in /proc/net
Address = tuple[str, int]


def user_of(client: Address, server: Address, folder: Path = Path("/proc/net")) -> int | None:
    """The user id of the client's end; None: it is on another device, or this system does not say.

    Args:
        client, server: address and port of both ends.
    """
    try:
        wanted = {(_hexadecimal(client, mapped=each), _hexadecimal(server, mapped=each)) for each in (False, True)}
    except OSError:  # no addresses, such as those of a socket in the file system
        return None
    for table in TABLES:
        try:
            lines = (folder / table).read_text().splitlines()[1:]
        except OSError:  # not Linux, or without IPv6
            continue
        for line in lines:
            columns = line.split()
            if (columns[LOCAL], columns[REMOTE]) in wanted:
                return int(columns[USER])
    return None


def _hexadecimal(address: Address, *, mapped: bool) -> str:
    """An address as the tables have it: words of 32 bits, each with its bytes reversed, and the port.

    Args:
        mapped: an IPv4 address of a socket for IPv6.
    """
    host, port = address
    host = f"::ffff:{host}" if mapped and ":" not in host else host
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = (packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))
    return f"{''.join(words)}:{port:04X}"
