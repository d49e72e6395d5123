"""A name with several addresses, each of which is a server of its own.

State: the addresses that were found last, and when they were looked up. Invariant: the certificate of each server is
checked against the name; a name with one address is left to gRPC, as one server.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address

from moa_shared.programs.addresses import MOST_SUCCESSORS, host_of, is_loopback
from moa_shared.programs.run_loop import look_up, one_family

from moa_client.link.server import Server

LOOK_UP_SECONDS = 2.0  # of one look-up
LEAST_SECONDS = 1.0  # between two, however often servers are lost
LookUp = Callable[[str, float], Awaitable[Sequence[str]]]


class ServerName:
    """A name by which a user reaches several servers.

    `server`: at the name; those at its addresses are protected as it is, and have its deadlines.
    """

    def __init__(self, server: Server, look_up: LookUp = look_up) -> None:
        self.addresses: tuple[str, ...] = ()  # HOST:PORT
        self._server = server
        self._host, _, self._port = server.address.rpartition(":")
        self._look_up = look_up
        self._looked_at = -math.inf  # seconds, monotonic

    async def look(self) -> bool:
        """Looks the addresses up; returns whether there are any, else those of before stay.

        Of a large fleet each client takes a few, by lot, and keeps those that it has.
        """
        self._looked_at = time.monotonic()
        found = one_family(await self._look_up(self._host, min(LOOK_UP_SECONDS, self._server.connect_seconds)))
        named = [f"[{each}]:{self._port}" if ":" in each else f"{each}:{self._port}" for each in found]
        if named:
            kept = [each for each in self.addresses if each in named][:MOST_SUCCESSORS]
            others = [each for each in named if each not in kept]
            room = MOST_SUCCESSORS - len(kept)
            self.addresses = (*kept, *(others if len(others) <= room else random.sample(others, room)))
        return bool(named)

    def is_due(self, seconds: float = LEAST_SECONDS) -> bool:
        """Whether the newest look-up was begun so long ago."""
        return time.monotonic() >= self._looked_at + seconds

    def server_at(self, address: str) -> Server:
        named = self._server
        security = replace(named.security, server_name=self._host)
        return Server(address, named.connect_seconds, named.silence_seconds, security, named.name or self._host)


async def several_behind(server: Server) -> ServerName | None:
    """The name of a server's address, if it has several addresses; None: it is one server."""
    if not is_name(server.address) or server.security.proxy(server.address) is not None:
        return None  # a proxy looks names up by itself
    name = ServerName(server)
    await name.look()
    return name if len(name.addresses) > 1 else None


def is_name(address: str) -> bool:
    """Whether the host of HOST:PORT may have several addresses."""
    host = host_of(address)
    try:
        ip_address(host)
    except ValueError:
        return not is_loopback(host)
    return False
