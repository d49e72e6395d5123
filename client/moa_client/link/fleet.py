"""The servers that a client may talk to: one to many of one model, with what is known about them.

State: the servers, those that the user named first, in that order, then those that they have named; the model that they
are for; when they were lost; calls under way. One server is a fleet of one, and grows when it names others, which are
asked only once a conversation has lost it. Of several, the first that answers decides on the model; servers of another
one are left out, by name. Invariant: only servers that the user has named, or that one of these names, are asked.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.programs.addresses import MOST_SUCCESSORS, host_of, ip_of, is_loopback, leads_here, successors_among
from moa_shared.programs.run_loop import look_up, one_family

from moa_client.link.monitor import LinkLosses
from moa_client.link.server import Server, serves

LEAST_GRACE_SECONDS = 0.3  # for the others, once a server has answered
GRACE_TIMES = 3.0  # as long as the first one took
LOOK_SECONDS = 60.0  # what a server says is good for so long: a fleet changes slowly
LOOK_UP_SECONDS = 2.0  # of one look-up of a name
LEAST_SECONDS = 1.0  # between two, however often servers are lost
log = logging.getLogger(__name__)
T = TypeVar("T")


async def ask_all(
    servers: Sequence[Server],
    ask: Callable[[Server], Awaitable[object]],
    seconds: float,
    grace: Callable[[list[Server], list[Server]], float],
) -> list[Server]:
    """Asks servers at once; which have answered in time, in the order given.

    `seconds`: how long to wait for the first answers. `grace`: how long, once these have answered, to wait for these
    others.
    """
    deadline = time.monotonic() + seconds
    pending = {asyncio.ensure_future(ask(each)): each for each in servers}
    answered: list[Server] = []
    try:
        while pending:
            rest = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            done, _ = await asyncio.wait(pending, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            answered += [server for task in done if (server := pending.pop(task)) and task.exception() is None]
            if answered:
                deadline = min(deadline, time.monotonic() + grace(answered, [*pending.values()]))
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return [each for each in servers if each in answered]


def refusal(servers: Sequence[Server], needs: pb.Identity | None = None) -> MoaError:
    """Why none of the servers can be had. `needs`: the model that they should have; None: any."""
    errors = [each.error for each in servers if each.error is not None]
    others = [line for each in servers if needs is not None and each.error is None and (line := each.left_out(needs))]
    if not others and (len(errors) == 1 or (errors and not any(isinstance(each, UnavailableError) for each in errors))):
        return errors[0]
    return UnavailableError(" ".join([each.message for each in errors] + others) or "No server has answered in time.")


class ServerName:
    """A name by which a user reaches several servers; the certificate of each is checked against the name.

    `server`: at the name; those at its addresses are protected as it is, and have its deadlines.
    """

    def __init__(self, server: Server, look_up: Callable[[str, float], Awaitable[Sequence[str]]] = look_up) -> None:
        self.servers: list[Server] = []
        self.looked_at = -math.inf  # seconds, monotonic
        self._named = server
        self._look_up = look_up

    async def look(self) -> None:
        """Looks the addresses up; if there are none, those of before stay.

        Of a large fleet each client takes a few, by lot, and keeps those that it has, and that the name has or answer.
        """
        self.looked_at = time.monotonic()
        named, (host, _, port) = self._named, self._named.address.rpartition(":")
        found = one_family(await self._look_up(host, min(LOOK_UP_SECONDS, named.connect_seconds)))
        listed = [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in found]
        kept = [each.address for each in self.servers if each.address in listed]
        others = [each for each in listed if each not in kept]
        room = max(0, MOST_SUCCESSORS - len(kept))
        for address in others if len(others) <= room else random.sample(others, room):
            with suppress(MoaError):  # half of a renewed certificate: the next look-up tries again
                security, name = replace(named.security, server_name=host), named.name or host
                self.servers.append(Server(address, named.connect_seconds, named.silence_seconds, security, name))
        for each in [each for each in self.servers if listed and each.address not in listed and each.error is not None]:
            self.servers.remove(each)
            await each.close()


class Fleet:
    """One or several servers, for all conversations together.

    `members`: servers, or names that have the addresses of several, best liked first; at least one.
    """

    def __init__(self, members: Sequence[Server | ServerName]) -> None:
        self._members = members
        self._followed: list[Server] = []  # by another server, not by the user
        # The one server that the user has named, where conversations begin; None: the user has named several.
        self.home = self.servers[0] if len(members) == 1 and not isinstance(members[0], ServerName) else None
        self.silence_seconds = self.servers[0].silence_seconds
        self.model: pb.Identity | None = None
        self.losses = LinkLosses()
        self.newest = self.servers[0]  # that was described last, or has opened a stream last
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def servers(self) -> list[Server]:
        found: list[Server] = []
        for each in self._members:
            found += each.servers if isinstance(each, ServerName) else [each]
        return found + self._followed

    @property
    def shown(self) -> Server:
        """The user's one server, else the one that was described last, or has opened a stream last."""
        return self.home or self.newest

    @property
    def skipped(self) -> list[str]:
        """Why servers are left out: a sentence for each."""
        return [line for each in self.servers if self.model is not None and (line := each.left_out(self.model))]

    def best(
        self, servers: Sequence[Server], needs: pb.Identity, unread: Callable[[Server], int] = lambda _: 0
    ) -> Server:
        """The one to try first. `unread`: tokens of the text that a server would have to read."""
        now = time.monotonic()
        return min(servers, key=lambda each: each.rank(needs, unread(each)).place(now))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self.servers:
            await server.close()

    async def describe(self) -> pb.DescribeResponse:
        """What the best of the servers serves, which are asked at once: the user's one and that in use, or all."""
        began = time.monotonic()

        def grace(*_: list[Server]) -> float:
            return max(LEAST_GRACE_SECONDS, GRACE_TIMES * (time.monotonic() - began))

        servers = self.servers if self.home is None else list(dict.fromkeys((self.home, self.newest)))
        answered = await ask_all(servers, lambda each: each.describe(), math.inf, grace)
        if not answered:
            raise refusal(servers)
        described = [each.served or pb.DescribeResponse() for each in answered]
        if self.model is None or not any(serves(each, self.model) for each in described):
            one = described[0].identity
            self.model = pb.Identity(
                target_id=one.target_id, target_fingerprint=one.target_fingerprint, tokenizer_hash=one.tokenizer_hash
            )
        self.newest = self.best(answered, self.model)
        return described[answered.index(self.newest)]

    async def call_best(self, needs: pb.Identity, call: Callable[[Server], Awaitable[T]]) -> T:
        """What a call without a state brings, from the best server that answers and has the model."""
        self.follow_named()
        now = time.monotonic()
        for server in sorted(self.servers, key=lambda each: each.rank(needs).place(now)):
            with suppress(UnavailableError):
                if serves(await server.describe(), needs):
                    return await call(server)
        raise refusal(self.servers, needs)

    def look_around(self, servers: Sequence[Server]) -> None:
        """Asks again, in the background, what these say, if that was long ago, and looks their names up."""
        if self._tasks:
            return
        self.look_names_up(LOOK_SECONDS)
        for server in servers:
            if server.described_at + LOOK_SECONDS < time.monotonic():
                self._in_background(server.describe)

    def look_names_up(self, seconds: float = LEAST_SECONDS) -> None:
        """Looks up in the background what addresses the names have now, where the newest look-up was so long ago."""
        for each in self._members:
            if isinstance(each, ServerName) and time.monotonic() >= each.looked_at + seconds:
                self._in_background(each.look)

    def follow_named(self) -> None:
        """Takes in the servers that any of these names, since the one that was lost may have known fewer."""
        for each in self.servers:
            self.follow(each.named, each)

    def follow(self, named: Sequence[str], namer: Server) -> None:
        """Takes in the servers that one of these has named to continue in its place, protected as it is.

        No server leads a client to programs of the client's own machine unless it runs there itself.

        `named`: HOST:PORT, best first; eight are followed, in the place of those that do not answer any more.
        """
        is_here = is_loopback(host_of(namer.address))
        known = [each.address for each in self.servers]
        self._followed = [each for each in self._followed if each.error is None or each.address in named]
        for address in successors_among(named):
            is_allowed = is_here or not leads_here(host_of(address))
            if address not in known and is_allowed and len(self._followed) < MOST_SUCCESSORS:
                try:
                    self._followed.append(namer.peer(address))
                except MoaError as error:
                    log.info("%s names %s: not followed. %s", namer.label, address, error.message)

    def _in_background(self, work: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            with suppress(MoaError):  # the server remembers it
                await work()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _as_member(server: Server) -> Server | ServerName:
    """One whose name has several addresses is several; a proxy looks names up by itself."""
    host = host_of(server.address)
    if ip_of(host) is None and not is_loopback(host) and server.security.proxy(server.address) is None:
        name = ServerName(server)
        await name.look()
        if len(name.servers) > 1:
            return name
    return server


@asynccontextmanager
async def connect(servers: Sequence[Server]) -> AsyncIterator[Fleet]:
    fleet = Fleet(await asyncio.gather(*map(_as_member, servers)))
    try:
        yield fleet
    finally:
        await fleet.close()
