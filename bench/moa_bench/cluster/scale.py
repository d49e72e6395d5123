"""`moa-bench fleet --engine ray`: Ray scales a fleet by its replicas' load, under clients that come and go.

State: the fleet on a Ray of its own, its replicas as they were last reported, and what was seen to happen to them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moa_client.link.routing.route import Route
from moa_server.cluster.connection import connected
from moa_server.cluster.fleet_settings import FleetSettings
from moa_server.cluster.roster import State
from moa_server.settings import SECTION, ServerSettings
from moa_shared.errors import InternalError
from moa_shared.programs.config import load_settings

from moa_bench.cluster.own_ray import own_ray
from moa_bench.fleet.outcome import Incident
from moa_bench.fleet.watched_link import WatchedLink

if TYPE_CHECKING:
    from moa_client.settings import ClientSettings

    from moa_bench.fleet.asked import Opening
    from moa_bench.fleet.clients import Clients
    from moa_bench.fleet.scenarios import FleetEffort

LOOK_S = 1.0  # between looks at the replicas
CPUS = 0.5  # of a replica, so that three find room on two cores
UPSCALE_S, DOWNSCALE_S = 2.0, 10.0
MOST_S = 240.0  # that Ray may take to follow a load


@dataclass(slots=True)
class RayFleet:
    """The replicas as they come and go.

    Args:
        name: of the fleet.
        seen: direct addresses of all replicas that there have been, in their order.
        members: those that serve.
        incidents: replicas that joined and left.
    """

    name: str
    seen: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    most: int = 0
    _looked_s: float = field(default_factory=time.perf_counter)
    _leaving_s: dict[str, float] = field(default_factory=dict)

    async def look(self) -> None:
        """Notes what has changed since the last look."""
        from moa_server.cluster.control import reports as told

        reports = await asyncio.to_thread(told, self.name)
        now_s = time.perf_counter()
        serving = [each.address for each in reports if each.state is State.SERVES]
        for address in serving:
            if address not in self.members and self.members:
                self.incidents.append(Incident("join", self._looked_s, now_s, address))
            if address not in self.seen:
                self.seen.append(address)
        for address in self.members:
            if address not in serving:
                self._leaving_s[address] = self._looked_s
        there = {each.address for each in reports}
        for address in [each for each in self._leaving_s if each not in there]:
            self.incidents.append(Incident("leave", self._leaving_s.pop(address), now_s, address))
        self.members, self._looked_s, self.most = serving, now_s, max(self.most, len(serving))

    async def until(self, replicas: int) -> float:
        """Looks until so many serve; gives how long that took, in seconds.

        Raises:
            InternalError: Ray does not follow.
        """
        began_s = time.perf_counter()
        while len(self.members) != replicas or self._leaving_s:
            if time.perf_counter() - began_s > MOST_S:
                raise InternalError(f"Ray has {len(self.members)} replicas after {MOST_S:g} s, not {replicas}.")
            await asyncio.sleep(LOOK_S)
            await self.look()
        return time.perf_counter() - began_s

    async def stay(self, seconds: float) -> None:
        """Looks for so long."""
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            await asyncio.sleep(LOOK_S)
            await self.look()

    def connector(self, program: ClientSettings) -> Callable[[int, Callable[[Opening], None]], Route]:
        """Makes links for clients, who are given the members, as a name in DNS gives them."""
        seconds = program.connect_seconds, program.silence_seconds
        return lambda _, note: Route([WatchedLink(each, *seconds, note, {}) for each in self.members])


@contextmanager
def ray_fleet(model: str, level: str, drafter: str, effort: FleetEffort) -> Iterator[RayFleet]:
    """One replica, and up to so many by load, on a Ray that is started for it.

    Raises:
        MoaError: Ray or a replica does not start.
    """
    streams = max(2, effort.clients // 2)  # of a replica: all clients are too many for two of them
    given = {
        "model": model, "port": 0, "drafter": drafter, "execution": level, "threads": 1, "max_streams": streams,
        "grace_seconds": effort.grace_s, "log_level": "warning", "allow_ignore_end_of_text": True,
        "share_prefixes": "off", "peer_requests_per_minute": 0,
    }  # fmt: skip
    settings = load_settings(ServerSettings, SECTION, given, environment={})
    fleet = FleetSettings("bench", 1, effort.most_replicas, CPUS, 0.0, UPSCALE_S, DOWNSCALE_S)
    with ExitStack() as stack:
        own_ray(stack)
        stack.enter_context(connected(None, fleet.local_cpus))
        from moa_server.cluster import control  # not before: Ray reads the environment when it is imported

        stack.callback(control.down, fleet.name)
        control.up(fleet, settings)
        yield RayFleet(fleet.name)


async def rise_and_fall(
    fleet: RayFleet, clients: Clients, effort: FleetEffort, on_done: Callable[[], None], facts: dict[str, float]
) -> None:
    """Few clients, then all until Ray has all replicas, then few until it has one.

    Args:
        on_done: called after each phase.
        facts: what is found, by name.
    """
    facts |= {"replicas, first": len(fleet.members)}
    for active, replicas, name in (
        (max(1, effort.clients // 8), 1, ""),
        (effort.clients, effort.most_replicas, "from the load's rise to all, s"),
        (max(1, effort.clients // 8), 1, "from its fall to one, s"),
    ):
        clients.active = active
        took_s = await fleet.until(replicas)
        if name:
            facts[name] = round(took_s, 1)
        await fleet.stay(effort.phase_s)
        on_done()
    facts |= {"replicas, most": fleet.most, "at the end": len(fleet.members)}
