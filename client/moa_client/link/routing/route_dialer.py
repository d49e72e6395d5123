"""Opens the streams of one conversation at the best of several servers, and changes the server when one is lost.

State: the server of the newest attempt, and what became of it. After a useful stream was lost, all servers are asked at
once: the former one, which has the conversation in its cache, is given a moment to answer, since most streams are lost
with the network and not with the server; then whoever answers continues. Invariant: while a server serves the
conversation, it is not changed; between answers it is only for a clearly better one (server_rank.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import (
    DeniedError,
    MismatchError,
    MoaError,
    OverloadedError,
    RateLimitError,
    UnavailableError,
)
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.dialer import REFUSALS, MakeOpen, new_session
from moa_client.link.routing.known_server import KnownServer
from moa_client.link.routing.reading import Reading
from moa_client.link.routing.server_rank import ServerRank, is_clearly_better
from moa_client.link.stream import Stream, Traffic

if TYPE_CHECKING:
    from moa_client.link.routing.route import Route

FAILED_SECONDS = 3.0  # that a server is the last resort after an attempt that brought nothing
LEAVING_SECONDS = 10.0  # after it has said that it goes away: a restart takes five
DENIED_SECONDS = 300.0  # after it has refused the key: somebody must give it another one
STALLED_SECONDS = 60.0  # after it has answered beats and nothing else: somebody must restart it
FORMER_SECONDS = 0.1  # that the former server may answer later than another one, or twice its round trip
ALIKE_SECONDS = 1.0  # that a server of the same execution may answer later than one of another: the text depends on it
ATTEMPT_ROUND_TRIPS = 6  # of an attempt: connection, TLS and Open, and more where a packet is lost
STAY_SECONDS = 60.0  # after a change, before another one for the better


class RouteDialer:
    """Opens streams for one conversation at the servers of a route.

    Args:
        text: of the conversation, as it is at any time.
        serving: the server on which another dialer has opened the newest stream; None: there is none.
        channel: its number at that server's link.
        needs: what it has named.
        session: its name of the conversation; empty: a new one.
    """

    def __init__(
        self,
        route: Route,
        text: PrefixHashes,
        serving: KnownServer | None = None,
        channel: int = 0,
        needs: pb.Identity | None = None,
        session: str = "",
    ) -> None:
        self.reason = ""
        self._route = route
        self._session = session or new_session()
        self._reading = Reading(text)
        if serving is not None:
            self._reading.on_served(serving.link.address)
        self._needs = needs or pb.Identity()  # of the newest Open: what a server must have
        self._server = serving or route.newest  # of the newest attempt
        self._channel = channel  # the number of its link's channel
        self._is_lost = False  # the server of the newest attempt; then all are asked
        self._must_renew = False  # and its connection too
        self._serving = serving  # on which the newest stream was opened
        self._why_lost = ""  # since then
        self._better: KnownServer | None = None  # where the next stream is to be opened
        self._changed_at = -math.inf
        self._patience_seconds = 0.0  # of an attempt after those that failed: all may be busy with a crowd like us

    @property
    def address(self) -> str:
        return self._server.link.address

    @property
    def label(self) -> str:
        return self._server.link.label

    @property
    def has_other(self) -> bool:
        now = time.monotonic()
        others = [each for each in self._route.servers if each is not self._server]
        standings = [each.standing(self._model) for each in others]
        return any(each.has_model is not False and not each.is_avoided(now) for each in standings)

    @property
    def _model(self) -> pb.Identity:
        return self._needs if self._needs.target_fingerprint else self._route.model or self._needs

    # ------------------------------------------------------------ streams

    async def dial(self, make_open: MakeOpen, seconds: float | None, traffic: Traffic) -> tuple[Stream, pb.Opened]:
        if seconds is not None:
            seconds = max(seconds, self._patience_seconds)
        try:
            opened = await self._dial(make_open, seconds, traffic)
        except UnavailableError:
            if seconds is not None:
                self._patience_seconds = min(2 * seconds, self._server.link.connect_seconds)
            raise
        self._patience_seconds = 0.0
        return opened

    async def _dial(self, make_open: MakeOpen, seconds: float | None, traffic: Traffic) -> tuple[Stream, pb.Opened]:
        if self._server not in self._route.servers:  # another conversation has found it gone
            self._is_lost, self._must_renew = True, False
        if self._must_renew:
            self._server.link.renew(self._channel)
            self._must_renew = False
        if self._is_lost:
            self._server = await self._find(seconds or self._server.link.connect_seconds)
        else:
            self._server = self._better or self._serving or await self._choose()
        self._better = None
        server, link = self._server, self._server.link
        self._channel, self._is_lost = link.channel_number, False
        message = make_open(link.address)
        self._needs = message.identity
        attempt_seconds = seconds and max(seconds, _least_seconds([server]))
        opened = await link.open(message, attempt_seconds, traffic, self._session)
        if self._serving is not None and server is not self._serving:
            self.reason, self._changed_at = self._why_lost, time.monotonic()
            if opened[1].HasField("new_execution"):
                level = opened[1].new_execution.execution.level
                self.reason += f" It computes at {level}: no server that computes as before has answered."
        self._serving, self._why_lost = server, ""
        self._route.newest = server
        self._reading.on_served(server.link.address)
        return opened

    def on_lost(self, error: MoaError | None, *, was_useful: bool) -> None:
        self._is_lost, self._must_renew = True, not isinstance(error, REFUSALS)
        if self._must_renew or is_full(error):
            self._route.follow(self._server.link.named, self._server.link)
            self._route.look_names_up()
        self._why_lost = self._why_lost or (error.message if error is not None else "The former server is silent.")
        if isinstance(error, DeniedError):
            self._server.avoid(DENIED_SECONDS)
        elif isinstance(error, OverloadedError):
            self._server.avoid(error.retry_after_ms / 1e3)
        elif isinstance(error, UnavailableError) and error.servers:
            self.on_go_away(error.servers)
        elif not was_useful and not isinstance(error, MismatchError):  # a mismatch is looked into: see `describe`
            self._server.avoid(FAILED_SECONDS)

    def on_go_away(self, servers: Sequence[str]) -> None:
        self._why_lost = "The former server is going away."
        self._route.follow(servers, self._server.link)
        self._server.avoid(LEAVING_SECONDS)

    def on_stalled(self) -> None:
        self._why_lost = "The former server makes no progress."
        self._server.avoid(STALLED_SECONDS)

    # ------------------------------------------------------------ which server

    async def describe(self) -> pb.DescribeResponse:
        with suppress(MismatchError):  # the caller compares, and says so
            self._server = await self._find(self._server.link.connect_seconds)
        return self._server.served or pb.DescribeResponse()

    def look_around(self) -> None:
        self._route.look_around()

    def chooses_again(self) -> bool:
        """Whether another server is clearly better; not soon after a change, so that no two servers take turns."""
        now = time.monotonic()
        best = self._best()
        if best is self._server or now < self._changed_at + STAY_SECONDS:
            return False
        if not is_clearly_better(self._standing(best), self._standing(self._server), now):
            return False
        self._better, self._why_lost = best, "It is nearer, or has less to do."
        return True

    def _best(self, servers: Sequence[KnownServer] = ()) -> KnownServer:
        return self._route.best(servers or self._route.servers, self._model, self._unread)

    def _unread(self, server: KnownServer) -> int:
        return self._reading.unread(server.link.address)

    def _standing(self, server: KnownServer) -> ServerRank:
        return server.standing(self._model, self._unread(server))

    async def _ask(self, server: KnownServer, seconds: float | None = None) -> None:
        """Asks a server what it serves, how busy it is, and how much of the text it holds.

        Raises:
            MoaError: it does not answer.
        """
        served = await server.describe(seconds, self._reading.prefix_hashes)
        self._reading.on_described(server.link.address, served.cached_tokens)

    async def _choose(self) -> KnownServer:
        """The server for the first stream: all that can be had are asked who holds how much of the text.

        Only where that may save more time than it takes: no text that is read within a round trip is asked about.
        """
        reading, best = self._reading, self._best()
        servers = [each for each in self._route.servers if each.error is None and self._has_model(each)]
        read_ms = reading.tokens * max((self._standing(each).read_ms for each in servers), default=0.0)
        if len(servers) < 2 or not reading.prefix_hashes or read_ms <= (best.rtt_ms or 0.0):
            return best
        asked = {asyncio.create_task(self._ask(each)): each for each in servers}
        try:
            done, _ = await asyncio.wait(asked, timeout=FORMER_SECONDS + 2e-3 * (best.rtt_ms or 0.0))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return self._best([asked[task] for task in done if task.exception() is None])

    async def _find(self, seconds: float) -> KnownServer:
        """The server to go to after a loss: the former one if it answers first or nearly so, else the best that does.

        Raises:
            MismatchError: all answer, and serve another model.
            MoaError: none answers that can be used.
        """
        former = self._server
        seconds = max(seconds, _least_seconds(self._route.servers))
        asked = {asyncio.create_task(self._ask(each, seconds)): each for each in self._route.servers}
        pending, found = set(asked), list[KnownServer]()
        deadline = time.monotonic() + seconds
        try:
            while pending:
                rest = max(0.0, deadline - time.monotonic())
                done, pending = await asyncio.wait(pending, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                found += [asked[task] for task in done if task.exception() is None and self._has_model(asked[task])]
                willing = [each for each in found if not self._is_avoided(each)]
                if former in willing:
                    return former
                alike = [each for each in willing if each.standing(self._model).has_execution]
                if alike and (self._is_avoided(former) or not any(asked[task] is former for task in pending)):
                    break
                if any(each.served is not None and each.served.load < 1 for each in found):
                    grace = max(FORMER_SECONDS if alike else ALIKE_SECONDS, 2e-3 * (former.rtt_ms or 0.0))
                    deadline = min(deadline, time.monotonic() + grace)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        self._route.log_left_out(self._model)
        if found:
            return self._best(found)
        if not pending and all(each.error is None and each.served is not None for each in asked.values()):
            raise MismatchError("No server serves the conversation's model.", hint="")
        raise self._route.refusal(self._model)

    def _has_model(self, server: KnownServer) -> bool:
        return bool(server.standing(self._model).has_model)

    def _is_avoided(self, server: KnownServer) -> bool:
        return server.standing(self._model).is_avoided(time.monotonic())


def is_full(error: MoaError | None) -> bool:
    """Whether a server refuses for want of room, which another one may have; a limit of the caller is not that."""
    return isinstance(error, OverloadedError) and not isinstance(error, RateLimitError)


def _least_seconds(servers: Sequence[KnownServer]) -> float:
    """How long an attempt at the farthest of these servers may take."""
    return ATTEMPT_ROUND_TRIPS * max(server.rtt_ms or 0.0 for server in servers) / 1e3
