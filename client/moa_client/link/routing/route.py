"""A link over several servers of one model: what is known about each, for all conversations together.

State: the servers, those that the user named first, in that order; the names that have several of them; the model that
they are for; measurements and look-ups under way. The first server that answers decides on the model; servers of
another one are left out, by name.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.programs.addresses import MOST_SUCCESSORS, host_of, is_loopback, leads_here, successors_among
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.channel import Link
from moa_client.link.routing.known_server import KnownServer, computes_alike, serves
from moa_client.link.routing.route_dialer import RouteDialer
from moa_client.link.routing.server_name import LEAST_SECONDS, ServerName, is_name
from moa_client.link.routing.server_rank import rank

log = logging.getLogger(__name__)

LEAST_GRACE_SECONDS = 0.3  # for the others, once a server has answered; the rest are asked on in the background
GRACE_TIMES = 3.0  # as long as the first one took
MEASURE_SECONDS = 60.0  # a measurement is good for so long


class Route:
    """A link over several servers.

    Args:
        links: to each, best liked first; at least one; or a name that has the addresses of several.
    """

    def __init__(self, links: Sequence[Link | ServerName]) -> None:
        self._names = [each for each in links if isinstance(each, ServerName)]
        self.servers = [
            server
            for each in links
            for server in (_servers_of(each) if isinstance(each, ServerName) else [KnownServer(each)])
        ]
        self.silence_seconds = self.servers[0].link.silence_seconds
        self.model: pb.Identity | None = None
        self.newest = self.servers[0]  # that was described last, or has opened a stream last
        self._measuring: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()  # lines of the log that say who is left out

    @property
    def address(self) -> str:
        """Of the server that was described last, or has opened a stream last."""
        return self.newest.link.address

    @property
    def rtt_ms(self) -> float | None:
        """To the same."""
        return self.newest.rtt_ms

    async def describe(self, seconds: float | None = None) -> pb.DescribeResponse:
        """What the best of the servers serves: all are asked at once.

        Raises:
            MoaError: none answers; why, for each.
        """
        answered = await self._ask_all(seconds)
        if not answered:
            raise self.refusal()
        self.model = self._model_of(answered)
        self.newest = self.best(list(answered), self.model)
        return answered[self.newest]

    def follow(self, named: Sequence[str], namer: Link) -> None:
        """Takes in the servers that one of these has named to go on in its place, with the protection of its link.

        No server leads a client to programs of the client's own machine unless it runs there itself.

        Args:
            named: HOST:PORT, best first; all but the first eight are left out.
        """
        known = {each.link.address for each in self.servers} | {
            address for name in self._names for address in name.addresses
        }
        is_here = is_loopback(host_of(namer.address))
        for address in successors_among(named):
            if address in known:
                continue
            if leads_here(host_of(address)) and not is_here:
                self._log_once(f"{namer.label} names {address}, which is on this machine: not followed")
                continue
            if not self._has_room():
                self._log_once(f"{namer.label} names {address}, one server too many: not followed")
                return
            try:
                link = namer.towards(address)
            except MoaError as error:
                self._log_once(f"{namer.label} names {address}: not followed. {error.message}")
                continue
            self.servers.append(KnownServer(link, was_named=True))
            log.info("%s names %s", namer.label, address)

    def _has_room(self) -> bool:
        """Whether one more named server may be taken in, perhaps in the place of one that does not answer."""
        named = [each for each in self.servers if each.was_named]
        if len(named) < MOST_SUCCESSORS:
            return True
        gone = next((each for each in named if each.error is not None), None)
        if gone is None:
            return False
        self._remove(gone)
        return True

    def _remove(self, server: KnownServer) -> None:
        self.servers.remove(server)
        if self.newest is server:
            self.newest = self.servers[0]
        self._in_background(server.link.close())

    def look_names_up(self, seconds: float = LEAST_SECONDS) -> None:
        """Looks up in the background what addresses the names have now, where the newest look-up was so long ago."""
        for name in self._names:
            if name.is_due(seconds):
                self._in_background(self._look_up(name))

    async def _look_up(self, name: ServerName) -> None:
        if not await name.look():
            return
        mine = [each for each in self.servers if each.of is name]
        for address in name.addresses:
            if address not in [each.link.address for each in self.servers]:
                try:
                    self.servers.append(KnownServer(name.link_to(address), of=name))
                except MoaError as error:  # half of a renewed certificate: the next look-up tries again
                    self._log_once(f"{address} is left out for now: {error.message}")
        for each in mine:  # whom the name has no longer, and who is gone indeed
            if each.link.address not in name.addresses and each.error is not None and len(self.servers) > 1:
                self._remove(each)

    def _log_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            log.warning("%s", line)

    def log_left_out(self, needs: pb.Identity) -> None:
        """Says, once each, which servers a conversation passes over, and why."""
        for line in self._odd(needs):
            self._log_once(line)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._measuring.add(task)
        task.add_done_callback(self._measuring.discard)
        return task

    async def _ask_all(self, seconds: float | None) -> dict[KnownServer, pb.DescribeResponse]:
        """What those serve that answer; once one has, the others have a little time, and are waited for no longer."""
        began, deadline = time.monotonic(), math.inf
        pending = {self._measure(server, seconds) for server in self.servers}
        answered: dict[KnownServer, pb.DescribeResponse] = {}
        while pending and (now := time.monotonic()) < deadline:
            rest = deadline - now if answered else None
            _, pending = await asyncio.wait(pending, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            answered = {
                server: server.served
                for server in self.servers
                if server.measured_at >= began and server.served is not None
            }
            if answered and deadline == math.inf:
                now = time.monotonic()
                deadline = now + max(LEAST_GRACE_SECONDS, GRACE_TIMES * (now - began))
        return answered

    def _model_of(self, answered: Mapping[KnownServer, pb.DescribeResponse]) -> pb.Identity:
        """The model that the servers are for: as before if one still has it, else that of the first in the list."""
        if self.model is not None and any(serves(served, self.model) for served in answered.values()):
            return self.model
        identity = next(iter(answered.values())).identity
        return pb.Identity(
            target_id=identity.target_id,
            target_fingerprint=identity.target_fingerprint,
            tokenizer_hash=identity.tokenizer_hash,
        )

    def best(
        self, servers: Sequence[KnownServer], needs: pb.Identity, unread: Callable[[KnownServer], int] = lambda _: 0
    ) -> KnownServer:
        """The one to try first; the first of all if none has the model.

        Args:
            unread: tokens of the text that a server would have to read.
        """
        order = rank([server.standing(needs, unread(server)) for server in servers], time.monotonic())
        return servers[order[0] if order else 0]

    def refusal(self, needs: pb.Identity | None = None) -> MoaError:
        """Why none of the servers can be had.

        Args:
            needs: the model that they should have; None: the reason is not that they have another.
        """
        others = [] if needs is None else [each for each in self.servers if each.error is None]
        if lines := [
            f"{each.link.label} serves {each.served.identity.target_id}, not {needs.target_id}."
            for each in others
            if needs is not None and each.served is not None and not serves(each.served, needs)
        ]:
            failures = [each.error.message for each in self.servers if each.error is not None]
            return UnavailableError(" ".join([*failures, *lines]))
        errors = [server.error for server in self.servers if server.error is not None]
        if len(errors) == 1 or (errors and not any(isinstance(error, UnavailableError) for error in errors)):
            return errors[0]
        return UnavailableError(" ".join(error.message for error in errors) or "No server has answered in time.")

    @property
    def skipped(self) -> list[str]:
        """Servers that are left out, and why: a sentence for each."""
        lines = [
            f"{server.link.label} is left out for now: {server.error.message}"
            for server in self.servers
            if server.error is not None
        ]
        return [*lines, *self._odd(self.model)] if self.model is not None else lines

    def _odd(self, needs: pb.Identity) -> list[str]:
        """The servers that answer, and whose text would be another one: a sentence for each."""
        lines = []
        described = [each.link.served for each in self.servers if each.link.served is not None]
        executions = {served.identity.execution: served.execution for served in described}
        before = executions.get(needs.execution)
        for server in self.servers:
            label, served = server.link.label, server.served
            if server.error is not None or served is None:
                continue
            if not serves(served, needs):
                lines.append(f"{label} is left out: it serves {served.identity.target_id}, not {needs.target_id}.")
            elif not computes_alike(served, needs):
                lines.append(f"{label} is the last resort: it computes at {_differs(served.execution, before)}.")
        return lines

    def look_around(self) -> None:
        """Measures, in the background, the servers for which that was long ago, and looks their names up."""
        if self._measuring:
            return
        self.look_names_up(MEASURE_SECONDS)
        for server in self.servers:
            if server.measured_at + MEASURE_SECONDS < time.monotonic():
                self._measure(server)

    def _measure(self, server: KnownServer, seconds: float | None = None) -> asyncio.Task[None]:
        async def measure() -> None:
            with suppress(MoaError):  # the server remembers it
                await server.measure(seconds)

        return self._in_background(measure())

    def widened(self, window_bytes: int, manifest_sha256: bytes = b"") -> Link:
        """Another connection for a download, to a server that has what is to be fetched.

        Args:
            window_bytes: bytes a call may have in flight to us.
            manifest_sha256: of the list of files; empty: that of the server described last.
        """
        having = [
            server
            for server in self.servers
            if manifest_sha256 and server.served is not None and server.served.manifest_sha256 == manifest_sha256
        ]
        server = self.best(having, self.model or pb.Identity()) if having else self.newest
        return server.link.widened(window_bytes)

    def dialer(self, text: PrefixHashes) -> RouteDialer:
        """Opens streams for one conversation.

        Args:
            text: of the conversation, as it is at any time.
        """
        return RouteDialer(self, text)

    async def close(self) -> None:
        """Ends all connections."""
        measuring = list(self._measuring)
        for task in measuring:
            task.cancel()
        await asyncio.gather(*measuring, return_exceptions=True)
        for server in self.servers:
            await server.link.close()


def _differs(now: pb.Execution, before: pb.Execution | None) -> str:
    """In what an execution differs from the one before; None: that is not known."""
    if before is None:
        return f"{now.level}, not as the conversation's server did"
    if now.level != before.level:
        return f"{now.level}, not {before.level}"
    return f"{now.level} ({now.details}), not as before ({before.details})"


AnyLink = Link | Route


def _servers_of(name: ServerName) -> list[KnownServer]:
    return [KnownServer(name.link_to(address), of=name) for address in name.addresses]


async def _with_addresses(link: Link) -> Link | ServerName:
    """The name of a link, if it has several addresses."""
    if not is_name(link.address):
        return link
    name = ServerName(link)
    await name.look()
    if len(name.addresses) < 2:
        return link
    await link.close()  # which nobody has used
    return name


@asynccontextmanager
async def connect_any(links: Sequence[Link]) -> AsyncIterator[AnyLink]:
    """The link, or one over several servers, be it of one name; closed at the end."""
    found = await asyncio.gather(*map(_with_addresses, links))
    link = found[0] if len(found) == 1 and isinstance(found[0], Link) else Route(found)
    try:
        yield link
    finally:
        await link.close()
