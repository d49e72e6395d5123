"""A fleet as an operator writes it (addresses, or a name in DNS that has them all), kept true by look-ups.

State: what the newest look-up has found. Invariant: while the name cannot be looked up, what was known stays.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address

import structlog
from moa_shared.programs.addresses import MOST_SUCCESSORS, is_host_port
from moa_shared.programs.run_loop import look_up

from moa_server.addresses import Peers, host_port


class Membership:
    """The servers that can continue a conversation of this one; each client is told of another one first."""

    def __init__(self, others: Iterable[str] = ()) -> None:
        self._first = 0
        self.update(others)

    def update(self, others: Iterable[str]) -> None:
        self.others = tuple(dict.fromkeys(each for each in others if is_host_port(each)))

    def names(self) -> tuple[str, ...]:
        first, self._first = self._first % max(1, len(self.others)), self._first + 1
        return (self.others[first:] + self.others[:first])[:MOST_SUCCESSORS]


log = structlog.get_logger()

AGAIN_SECONDS = 5.0  # a replica that has gone is named for so long; clients pass over it
LOOK_UP_SECONDS = 4.0
LookUp = Callable[[str, float], Awaitable[Sequence[str]]]


class FleetWatch:
    def __init__(self, fleet: Membership, peers: Peers, own: str, look_up: LookUp = look_up) -> None:
        self._fleet, self._peers, self._own, self._look_up, self._fails = fleet, peers, own, look_up, False
        self._tell(peers.addresses)

    async def run(self) -> None:
        """Looks the name up for as long as the server runs; returns at once if there is none."""
        while self._peers.name:
            try:
                await self.look()
            except Exception:
                log.exception("looking for the fleet failed; the next round tries again")
            await asyncio.sleep(AGAIN_SECONDS)

    async def look(self) -> None:
        name, _, port = self._peers.name.rpartition(":")
        if found := await self._look_up(name.strip("[]"), LOOK_UP_SECONDS):
            self._tell([host_port(each, int(port)) for each in found])
        elif not self._fails:
            log.warning("the fleet's name has no address; what was known stays", name=self._peers.name)
        self._fails = not found

    def _tell(self, all_of_them: Sequence[str]) -> None:
        others = [each for each in all_of_them if not is_own(each, self._own)]
        if sorted(others) != sorted(self._fleet.others):  # a resolver gives the same ones in another order each time
            log.info("the fleet's other replicas", servers=others)
            self._fleet.update(others)


def is_own(address: str, own: str) -> bool:
    """Whether an address is that of this server: `own`, or of this machine where that is every address."""
    (host, _, port), (own_host, _, own_port) = address.rpartition(":"), own.rpartition(":")
    if address == own or port != own_port:
        return address == own
    try:
        if not ip_address(own_host.strip("[]")).is_unspecified:
            return False
        if host in (socket.gethostname(), socket.getfqdn()):
            return True
        found = ip_address(host.strip("[]"))
        with socket.socket(socket.AF_INET6 if found.version == 6 else socket.AF_INET, socket.SOCK_STREAM) as tried:
            tried.bind((str(found), 0))
    except (ValueError, OSError):  # a name, or another machine's
        return False
    return True
