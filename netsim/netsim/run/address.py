"""Addresses as users write them (HOST:PORT, :PORT, [IPv6]:PORT), and sockets that listen on them."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from netsim.errors import AddressError

LOOPBACK = "127.0.0.1"


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, what: str) -> Address:
    """Reads an address; without a host it is loopback. Raises AddressError."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise AddressError(
            f"{what}: {text!r} is not an address.",
            hint="Write HOST:PORT or :PORT, for example 127.0.0.1:50051 or [::1]:50051.",
        )
    return Address(bare or LOOPBACK, int(port))


def resolve(address: Address, what: str) -> tuple[socket.AddressFamily, Address]:
    """Family and numeric address; raises AddressError."""
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise AddressError(f"{what}: host {address.host!r} is not known ({error.strerror}).") from error
    return family, Address(str(sockaddr[0]), int(sockaddr[1]))


def listen(address: Address, backlog: int = 128) -> socket.socket:
    """A non-blocking listening socket; raises AddressError if the port is taken."""
    family, numeric = resolve(address, "listen")
    if numeric.port == 0:
        # Bound in two steps: only a port asked for by number survives when the socket stops listening for a while.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(tuple(numeric))
            numeric = Address(numeric.host, probe.getsockname()[1])
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(tuple(numeric))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressError(
                f"Port {numeric.port} is in use on {numeric.host}.",
                hint="Choose another with --listen; port 0 takes a free one.",
            ) from error
        raise AddressError(f"Cannot listen on {numeric}: {error.strerror}.") from error
    sock.setblocking(False)
    return sock
