"""A fleet, its clients and the links between them, where scenarios play.

State: the replicas, of which some are members, and what was done to them. Invariant: each replica names all the
others, and a client that opens a link is given the members, as a name in DNS would give them; one that is restarted
stays a member.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moa_client.link.routing.route import Route

from moa_bench.fleet.asked import Opening
from moa_bench.fleet.clients import Clients, Connect
from moa_bench.fleet.outcome import Incident
from moa_bench.fleet.replicas import Replica
from moa_bench.fleet.texts import Question
from moa_bench.fleet.watched_link import WatchedLink
from moa_bench.network.emulated import Link, RunningLink, linked

if TYPE_CHECKING:
    from moa_client.device.loading import Device
    from moa_client.settings import ClientSettings

NEAR = Link("near", 1.0)  # where links are to be cut: a proxy that adds almost nothing
SESSION_ANSWERS = 2  # of a program that is started, asked and ended
THINK_S = 0.5


@dataclass(slots=True)
class Stage:
    """What a scenario plays on.

    Args:
        replicas: all that there can be.
        devices: a client's each.
        settings: of the client program.
    """

    replicas: Sequence[Replica]
    devices: Sequence[Device]
    questions: Sequence[Question]
    vocab_size: int
    settings: ClientSettings
    incidents: list[Incident] = field(default_factory=list)
    ways: dict[int, Mapping[str, str]] = field(default_factory=dict)  # by client: proxies in place of replicas
    members: list[Replica] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [each for each in self.replicas if each.is_up]

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.replicas]

    def make_clients(self) -> Clients:
        return make_clients(self._connect, self.devices, self.questions, self.vocab_size)

    def _connect(self, client: int, note: Callable[[Opening], None]) -> Route:
        seconds = self.settings.connect_seconds, self.settings.silence_seconds
        ways = self.ways.get(client, {})
        return Route([WatchedLink(each.address, *seconds, note, ways) for each in self.members])

    def put_links(self, stack: ExitStack, clients: Sequence[int], cores: set[int] | None) -> list[RunningLink]:
        """Puts a proxy before each replica for these clients; gives the links in the order of the replicas."""
        links = [stack.enter_context(linked(NEAR, each.address, cores=cores)) for each in self.replicas]
        way = {each.address: link.address for each, link in zip(self.replicas, links, strict=True)}
        self.ways = dict.fromkeys(clients, way)
        return links

    async def restart(self, replica: Replica, *, kill: bool, away_s: float = 0.0) -> None:
        """Ends a replica and starts it again.

        Raises:
            UnavailableError: it does not end or start.
        """
        done = await asyncio.to_thread(replica.restart, kill=kill, away_s=away_s)
        self.incidents.append(Incident("kill" if kill else "drain", done.down_s, done.up_s, replica.address))

    async def join(self, replica: Replica) -> float:
        """Starts one more replica; gives when it could be called."""
        down_s = time.perf_counter()
        await asyncio.to_thread(replica.start)
        up_s = time.perf_counter()
        self.members.append(replica)
        self.incidents.append(Incident("join", down_s, up_s, replica.address))
        return up_s

    async def leave(self, replica: Replica) -> None:
        """Drains a replica for good."""
        down_s = time.perf_counter()
        self.members.remove(replica)
        ended_s = await asyncio.to_thread(replica.end, kill=False)
        self.incidents.append(Incident("leave", down_s, ended_s, replica.address))

    async def cut(self, links: Sequence[RunningLink], seconds: float) -> None:
        """Loses everything on these links for a time."""
        down_s = time.perf_counter()
        for link in links:
            link.cut(seconds)
        await asyncio.sleep(seconds)
        self.incidents.append(Incident("cut", down_s, time.perf_counter()))


def make_clients(
    connect: Connect, devices: Sequence[Device], questions: Sequence[Question], vocab_size: int
) -> Clients:
    """Clients of a fleet: they think, and open another link from time to time."""
    return Clients(connect, devices, questions, vocab_size, session_answers=SESSION_ANSWERS, think_s=THINK_S)


async def play(clients: Clients, script: Callable[[], Awaitable[None]], lead_s: float) -> None:
    """Plays a script while clients ask; what they have asked until its end is answered.

    Args:
        lead_s: before the script begins.
    """
    is_over = False
    asking = asyncio.create_task(clients.ask_until(lambda: is_over))
    try:
        await asyncio.sleep(lead_s)
        await script()
        is_over = True
        await asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
