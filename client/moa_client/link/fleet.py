"""The servers that a client may talk to: one or several of one model, with what is known about them.

State: the servers, those that the user named first, in that order, then those that they have named; the names that have
several of them; the model that they are for; when they were lost; measurements and look-ups under way. One server is a
fleet of one, and grows when a conversation has to leave it. Of several, the first that answers decides on the model;
servers of another one are left out, by name. Invariant: only servers that the user has named, or that one of these
names, are asked.
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

from moa_client.link.monitor import LinkLosses
from moa_client.link.rank import rank
from moa_client.link.server import Server, computes_alike, serves
from moa_client.link.server_name import LEAST_SECONDS, ServerName, several_behind


def refusal(servers: Sequence[Server], needs: pb.Identity | None = None) -> MoaError:
    """Why none of the servers can be had.

    `needs`: the model that they should have; None: the reason is not that they have another.
    """
    errors = [each.error for each in servers if each.error is not None]
    others = [] if needs is None else _of_other_models(servers, needs)
    if others:
        return UnavailableError(" ".join([*(error.message for error in errors), *others]))
    if len(errors) == 1 or (errors and not any(isinstance(error, UnavailableError) for error in errors)):
        return errors[0]
    return UnavailableError(" ".join(error.message for error in errors) or "No server has answered in time.")


def _of_other_models(servers: Sequence[Server], needs: pb.Identity) -> list[str]:
    return [
        f"{each.label} serves {each.served.identity.target_id}, not {needs.target_id}."
        for each in servers
        if each.error is None and each.served is not None and not serves(each.served, needs)
    ]


def silent(servers: Sequence[Server]) -> list[str]:
    return [f"{each.label} is left out for now: {each.error.message}" for each in servers if each.error is not None]


def odd(servers: Sequence[Server], needs: pb.Identity) -> list[str]:
    """The servers that answer, and whose text would be another one."""
    lines = []
    described = [each.served for each in servers if each.served is not None]
    executions = {served.identity.execution: served.execution for served in described}
    before = executions.get(needs.execution)
    for each in servers:
        if each.error is not None or each.served is None:
            continue
        served = each.served
        if not serves(served, needs):
            lines.append(f"{each.label} is left out: it serves {served.identity.target_id}, not {needs.target_id}.")
        elif not computes_alike(served, needs):
            lines.append(f"{each.label} is the last resort: it computes at {_differs(served.execution, before)}.")
    return lines


def _differs(now: pb.Execution, before: pb.Execution | None) -> str:
    """In what an execution differs from the one before; None: that is not known."""
    if before is None:
        return f"{now.level}, not as the conversation's server did"
    if now.level != before.level:
        return f"{now.level}, not {before.level}"
    return f"{now.level} ({now.details}), not as before ({before.details})"


LEAST_GRACE_SECONDS = 0.3  # for the others, once a server has answered; the rest are asked on in the background
GRACE_TIMES = 3.0  # as long as the first one took
MEASURE_SECONDS = 60.0  # a measurement is good for so long
LOOK_SECONDS = 60.0  # a fleet changes slowly, and a replica that is gone is passed over
log = logging.getLogger(__name__)


class Fleet:
    """One or several servers, for all conversations together.

    `members`: servers, or names that have the addresses of several, best liked first; at least one.
    """

    def __init__(self, members: Sequence[Server | ServerName]) -> None:
        self._name_of: dict[Server, ServerName] = {}
        self._followed: list[Server] = []  # by another server, not by the user
        self._names = [each for each in members if isinstance(each, ServerName)]
        self.servers: list[Server] = []
        for each in members:
            if isinstance(each, ServerName):
                for address in each.addresses:
                    self._add_at(each, address)
            else:
                self.servers.append(each)
        # The one server that the user has named, where conversations begin; None: the user has named several.
        self.home = self.servers[0] if len(members) == 1 and not self._names else None
        self.silence_seconds = self.servers[0].silence_seconds
        self.model: pb.Identity | None = None
        self.losses = LinkLosses()
        self.newest = self.servers[0]  # that was described last, or has opened a stream last
        self._working: set[asyncio.Task[None]] = set()
        self._hearing: asyncio.Task[None] | None = None  # asks which others the user's server names now
        self._told: set[str] = set()  # lines of the log that say who is left out

    @property
    def address(self) -> str:
        """Of the user's one server, else of the one that was described last, or has opened a stream last."""
        return self._shown.address

    @property
    def rtt_ms(self) -> float | None:
        return self._shown.first_rtt_ms if self._shown.rtt_ms is None else self._shown.rtt_ms

    @property
    def _shown(self) -> Server:
        return self.home or self.newest

    @property
    def skipped(self) -> list[str]:
        """Servers that are left out, and why: a sentence for each."""
        lines = silent(self.servers)
        return [*lines, *odd(self.servers, self.model)] if self.model is not None else lines

    def log_left_out(self, needs: pb.Identity) -> None:
        """Says, once each, which servers a conversation passes over, and why."""
        for line in odd(self.servers, needs):
            self._log_once(line)

    def best(
        self,
        servers: Sequence[Server],
        needs: pb.Identity,
        unread: Callable[[Server], int] = lambda _: 0,
        *,
        needs_form: bool = False,
    ) -> Server:
        """The one to try first; the first of all if none has the model.

        `unread`: tokens of the text that a server would have to read; `needs_form`: the answer must have a form.
        """
        ranks = [server.rank(needs, unread(server), needs_form=needs_form) for server in servers]
        order = rank(ranks, time.monotonic())
        return servers[order[0] if order else 0]

    def widened(self, window_bytes: int, manifest_sha256: bytes = b"") -> Server:
        """A server that has what is to be fetched, over another connection.

        Args:
            window_bytes: bytes a call may have in flight to us.
            manifest_sha256: of the list of files; empty: that of the server described last.
        """
        if self.home is not None:
            return self.home.widened(window_bytes)  # it has them or not
        having = [
            server
            for server in self.servers
            if manifest_sha256 and server.served is not None and server.served.manifest_sha256 == manifest_sha256
        ]
        server = self.best(having, self.model or pb.Identity()) if having else self.newest
        return server.widened(window_bytes)

    async def close(self) -> None:
        working = list(self._working)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for server in self.servers:
            await server.close()

    async def describe(self) -> pb.DescribeResponse:
        """What the best of the servers serves: several are asked at once."""
        if self.home is not None:
            return await self.home.describe()
        answered = await self._ask_all()
        if not answered:
            raise refusal(self.servers)
        self.model = self._model_of(answered)
        self.newest = self.best(list(answered), self.model)
        return answered[self.newest]

    async def check(self) -> None:
        """Checks that a server answers: the one in use, which may have taken over from the user's, or another one."""
        try:
            await self.newest.ask()
        except MoaError:
            if self.newest is self.home:
                raise
            await self.describe()

    async def _ask_all(self) -> dict[Server, pb.DescribeResponse]:
        """What those serve that answer; once one has, the others have a little time, and are waited for no longer."""
        began, deadline = time.monotonic(), math.inf
        pending = {self._measure(server) for server in self.servers}
        answered: dict[Server, pb.DescribeResponse] = {}
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

    def _model_of(self, answered: Mapping[Server, pb.DescribeResponse]) -> pb.Identity:
        """The model that the servers are for: as before if one still has it, else that of the first in the list."""
        if self.model is not None and any(serves(served, self.model) for served in answered.values()):
            return self.model
        identity = next(iter(answered.values())).identity
        return pb.Identity(
            target_id=identity.target_id,
            target_fingerprint=identity.target_fingerprint,
            tokenizer_hash=identity.tokenizer_hash,
        )

    def look_around(self) -> None:
        """Measures, in the background, the servers for which that was long ago, and looks their names up."""
        if self._working:
            return
        self.look_names_up(MEASURE_SECONDS)
        for server in self.servers:
            if server.measured_at + MEASURE_SECONDS < time.monotonic():
                self._measure(server)

    def _measure(self, server: Server) -> asyncio.Task[None]:
        async def measure() -> None:
            with suppress(MoaError):  # the server remembers it
                await server.measure()

        return self._in_background(measure())

    def hear_names(self) -> None:
        """Asks the user's one server in the background which others it names now, if that was long ago."""
        home = self.home
        if home is not None and self._hearing is None and time.monotonic() > home.described_at + LOOK_SECONDS:
            self._hearing = self._in_background(self._hear(home))

    async def _hear(self, home: Server) -> None:
        try:
            await home.describe()
        except MoaError as error:
            log.info("%s does not say whom it names: %s", home.label, error.message)
            home.described_at = time.monotonic()
        finally:
            self._hearing = None

    def follow_named(self) -> None:
        """Takes in the servers that any of these names, since the one that was lost may have known fewer."""
        for each in tuple(self.servers):
            self.follow(each.named, each)

    def follow(self, named: Sequence[str], namer: Server) -> None:
        """Takes in the servers that one of these has named to continue in its place, protected as it is.

        No server leads a client to programs of the client's own machine unless it runs there itself.

        `named`: HOST:PORT, best first; all but the first eight are left out.
        """
        known = {each.address for each in self.servers} | {
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
                server = namer.peer(address)
            except MoaError as error:
                self._log_once(f"{namer.label} names {address}: not followed. {error.message}")
                continue
            self.servers.append(server)
            self._followed.append(server)
            log.info("%s names %s", namer.label, address)

    def _has_room(self) -> bool:
        """Whether one more named server may be taken in, perhaps in the place of one that does not answer."""
        named = [each for each in self.servers if each in self._followed]
        if len(named) < MOST_SUCCESSORS:
            return True
        gone = next((each for each in named if each.error is not None), None)
        if gone is None:
            return False
        self._remove(gone)
        return True

    def look_names_up(self, seconds: float = LEAST_SECONDS) -> None:
        """Looks up in the background what addresses the names have now, where the newest look-up was so long ago."""
        for name in self._names:
            if name.is_due(seconds):
                self._in_background(self._look_up(name))

    async def _look_up(self, name: ServerName) -> None:
        if not await name.look():
            return
        before = [each for each in self.servers if self._name_of.get(each) is name]
        for address in name.addresses:
            if address not in [each.address for each in self.servers]:
                try:
                    self._add_at(name, address)
                except MoaError as error:  # half of a renewed certificate: the next look-up tries again
                    self._log_once(f"{address} is left out for now: {error.message}")
        for each in before:  # those that the name no longer has, if they are gone indeed
            if each.address not in name.addresses and each.error is not None and len(self.servers) > 1:
                self._remove(each)

    def _add_at(self, name: ServerName, address: str) -> None:
        server = name.server_at(address)
        self._name_of[server] = name
        self.servers.append(server)

    def _remove(self, server: Server) -> None:
        self.servers.remove(server)
        if self.newest is server:
            self.newest = self.servers[0]
        self._in_background(server.close())

    def _log_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            log.warning("%s", line)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task


async def _as_member(server: Server) -> Server | ServerName:
    name = await several_behind(server)
    if name is None:
        return server
    await server.close()  # unused
    return name


@asynccontextmanager
async def connect(servers: Sequence[Server]) -> AsyncIterator[Fleet]:
    """The fleet of these servers, closed at the end; one whose name has several addresses is several."""
    fleet = Fleet(await asyncio.gather(*map(_as_member, servers)))
    try:
        yield fleet
    finally:
        await fleet.close()
