"""A fleet as an operator writes it (addresses, or a name in DNS that has them all), kept true by look-ups.

State: what the newest look-up has found. Invariant: while the name cannot be looked up, what was known stays.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address

import structlog
from moa_shared.programs.addresses import MOST_SUCCESSORS, host_of, is_host_port
from moa_shared.programs.run_loop import look_up

from moa_server.addresses import Peers


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
        self._fleet = fleet
        self._peers = peers
        self._own = own
        self._look_up = look_up
        self._fails = False
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
        found = await self._look_up(self._peers.host, LOOK_UP_SECONDS)
        if found:
            self._tell(self._peers.at(found))
        elif not self._fails:
            log.warning("the fleet's name has no address; what was known stays", name=self._peers.name)
        self._fails = not found

    def _tell(self, all_of_them: Sequence[str]) -> None:
        others = [each for each in all_of_them if not is_own(each, self._own)]
        if sorted(others) != sorted(self._fleet.others):  # a resolver gives the same ones in another order each time
            log.info("the fleet's other replicas", servers=others)
            self._fleet.update(others)


def is_own(address: str, own: str) -> bool:
    """Whether an address is that of this server.

    `own`: where clients reach it, or where it listens; that may be every address of the machine.
    """
    if address == own:
        return True
    if address.rpartition(":")[2] != own.rpartition(":")[2] or not _is_any(host_of(own)):
        return False
    return host_of(address) in (socket.gethostname(), socket.getfqdn()) or _is_of_this_machine(host_of(address))


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_of_this_machine(host: str) -> bool:
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind((host, 0))
    except (ValueError, OSError):  # a name, or another machine's
        return False
    return True
