"""Opens the streams of one conversation, one after the other, each at the server that should be asked next.

State: what the conversation needs, the server of the newest attempt and what became of it, and what servers hold of the
text. The rule: it begins at the server that the user named, or the best of several, and stays where it is served. After
a loss all are asked at once, those too that others have named; the former server, which has the text in its cache, is
given a moment to answer, since most streams are lost with the network and not with the server. Invariant: a connection
is replaced only by a conversation that has lost a stream on it, so those that share one do not harm each other.
"""

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import DeniedError, MismatchError, MoaError, OverloadedError, RateLimitError, UnavailableError
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.fleet import Fleet, ask_all, refusal
from moa_client.link.server import Server, ServerRank
from moa_client.link.stream import Stream, StreamTraffic

REFUSALS = (OverloadedError, MismatchError, DeniedError)  # which show that the connection works
ANSWER_SECONDS = 0.1  # that one server may answer later than another, or two round trips
ALIKE_SECONDS = 1.0  # that a server of the same execution may answer later than one of another: the text depends on it
ATTEMPT_SECONDS = 6e-3  # for each ms of a round trip: connection, TLS and Open, and more where a packet is lost
FAILED_SECONDS = 3.0  # that a server is the last resort after an attempt that brought nothing
DENIED_SECONDS = 300.0  # after it has refused the key: the user needs another one
LEAVING_SECONDS = 10.0  # after it has said that it goes away: a restart takes five
STALLED_SECONDS = 60.0  # after it has answered beats and nothing else: its operator must restart it
MakeOpen = Callable[[str], pb.Open]  # for the server at this address


class Dialer:
    """Opens streams for one conversation. `text`: of the conversation, as it is at any time."""

    def __init__(self, fleet: Fleet, text: PrefixHashes) -> None:
        self.server = fleet.shown  # of the newest attempt
        self.reason = ""  # why the newest stream is at another server than the one before, as a sentence
        self._fleet = fleet
        self._text = text
        self._session = secrets.token_hex(8)  # says nothing about it; proxies send its streams to one server by it
        self._needs = pb.Identity()  # of the newest Open: what a server must have
        self._cached: dict[str, int] = {}  # tokens of the text that a server holds, by address; the text only grows
        self._serving: Server | None = None  # on which the newest stream was opened; it holds all of the text
        self._channel = 0  # the number of the newest attempt's connection
        self._leaves_home = fleet.home is None  # others than the user's one server are looked at
        self._is_lost = False  # the server of the newest attempt; then all are asked
        self._why_lost = ""  # since the newest stream was opened
        self._patience_seconds = 0.0  # of an attempt after those that failed: all may be busy with a crowd like us

    @property
    def _servers(self) -> list[Server]:
        home = self._fleet.home
        return [home] if home is not None and not self._leaves_home else self._fleet.servers

    def _rank(self, server: Server) -> ServerRank:
        return server.rank(self._model, self._unread(server))

    @property
    def _model(self) -> pb.Identity:
        """What the conversation needs; before it has begun, what the fleet is for."""
        return self._needs if self._needs.target_fingerprint else self._fleet.model or self._needs

    def _unread(self, server: Server) -> int:
        return 0 if server is self._serving else max(0, len(self._text) - self._cached.get(server.address, 0))

    def _best(self, servers: Sequence[Server]) -> Server:
        return self._fleet.best(servers, self._model, self._unread)

    def _is_willing(self, server: Server) -> bool:
        """Whether it may have the model, and has not failed recently."""
        rank = self._rank(server)
        return rank.has_model is not False and not rank.is_avoided(time.monotonic())

    @property
    def has_other(self) -> bool:
        """Whether the conversation could go to another server, which has not failed recently."""
        return any(each is not self.server and self._is_willing(each) for each in self._fleet.servers)

    async def _choose(self, seconds: float | None) -> Server:
        """The server to try now. `seconds`: how long to wait for answers, at least; None: as for connecting."""
        servers = self._servers
        if len(servers) == 1:
            return servers[0]
        if self._is_lost or self.server not in servers:
            return await self._search(servers, seconds or self.server.connect_seconds)
        if self._serving is not None:
            return self._serving
        best = self._best(servers)  # where to read the text may take longer, who holds how much is asked
        able = [each for each in servers if each.error is None and self._rank(each).has_model]
        read_ms = len(self._text) * max((self._rank(each).read_ms for each in able), default=0.0)
        if len(able) < 2 or not self._text.named() or read_ms <= (best.rtt_ms or 0.0):
            return best
        seconds = ANSWER_SECONDS + 2e-3 * (best.rtt_ms or 0.0)
        return self._best(await ask_all(able, self._ask, seconds, lambda *_: math.inf) or servers)

    async def _search(self, servers: list[Server], seconds: float) -> Server:
        """The former server if it answers first or nearly so, else the best that does."""
        former = self.server

        def grace(answered: list[Server], pending: list[Server]) -> float:
            able = [each for each in answered if self._rank(each).has_model]
            willing = [each for each in able if self._is_willing(each)]
            alike = [each for each in willing if self._rank(each).has_execution]
            if former in willing or (alike and not (former in pending and self._is_willing(former))):
                return 0.0
            if all(self._rank(each).load >= 1 for each in able):
                return math.inf
            return max(ANSWER_SECONDS if alike else ALIKE_SECONDS, 2e-3 * (former.rtt_ms or 0.0))

        answered = await ask_all(
            servers, self._ask, max(seconds, *(ATTEMPT_SECONDS * (each.rtt_ms or 0.0) for each in servers)), grace
        )
        able = [each for each in answered if self._rank(each).has_model]
        if former in able and self._is_willing(former):
            return former
        if able:
            return self._best(able)
        if len(answered) == len(servers):
            raise MismatchError("No server serves the conversation's model.", hint="")
        raise refusal(self._fleet.servers, self._model)

    async def _ask(self, server: Server) -> None:
        """Asks a server what it serves, how busy it is, and how much of the text it holds."""
        self._cached[server.address] = (await server.describe(prefix_hashes=self._text.named())).cached_tokens

    async def dial(
        self, make_open: MakeOpen, seconds: float | None, traffic: StreamTraffic
    ) -> tuple[Stream, pb.Opened, float]:
        """Opens a stream; in how many ms, from Open to Opened. `seconds`: to wait, at least; None: as to connect."""
        if seconds is not None:
            seconds = max(seconds, self._patience_seconds)
        try:
            self.server = server = await self._choose(seconds)
            if seconds is not None:
                seconds = max(seconds, ATTEMPT_SECONDS * (server.rtt_ms or 0.0))
            self._channel, self._is_lost = server.channel_number, False
            began, message = time.monotonic(), make_open(server.address)
            self._needs = message.identity
            stream, opened = await server.open(message, seconds, traffic, self._session)
        except UnavailableError:
            if seconds is not None and len(self._servers) > 1:
                self._patience_seconds = min(2 * seconds, self.server.connect_seconds)
            raise
        took_ms = 1e3 * (time.monotonic() - began)
        self._patience_seconds = 0.0
        if self._serving is not None and server is not self._serving:
            self.reason = self._why_lost
        self._serving, self._why_lost = server, ""
        self._fleet.newest = server
        self._fleet.follow_named()
        return stream, opened, took_ms

    def on_lost(self, error: MoaError | None, *, was_useful: bool) -> bool:
        """The newest stream is lost, or was not opened; whether another server could be tried.

        `error`: why; None: it was silent.
        """
        server = self.server
        if not isinstance(error, REFUSALS):
            server.renew(self._channel)
        self._leaves_home |= not isinstance(error, DeniedError | RateLimitError)  # which all of a fleet would say
        self._is_lost = True
        self._fleet.follow_named()
        self._fleet.look_names_up()
        self._why_lost = self._why_lost or (error.message if error is not None else "The former server is silent.")
        if isinstance(error, UnavailableError) and error.servers:
            self.on_go_away(error.servers)
        elif isinstance(error, OverloadedError):
            server.avoid(error.retry_after_ms / 1e3)
        elif isinstance(error, DeniedError):
            server.avoid(DENIED_SECONDS)
        elif not was_useful and not isinstance(error, MismatchError):  # which is looked into: see `describe`
            server.avoid(FAILED_SECONDS)
        return self._leaves_home and self.has_other

    def on_go_away(self, servers: Sequence[str]) -> None:
        """The server of the newest stream will end it soon.

        `servers`: HOST:PORT of those that continue in its place, as it says.
        """
        self._leave("The former server is going away.", LEAVING_SECONDS)
        self._fleet.follow(servers, self.server)

    def on_stalled(self) -> None:
        """The server of the newest stream answers beats and nothing else."""
        self._leave("The former server makes no progress.", STALLED_SECONDS)

    def _leave(self, why: str, seconds: float) -> None:
        self._leaves_home, self._why_lost = True, why
        self.server.avoid(seconds)

    async def describe(self) -> pb.DescribeResponse:
        """What a server serves that can continue the conversation; of others, the one that was asked last."""
        if len(self._servers) == 1:
            return await self.server.describe()
        with suppress(MismatchError):  # the caller compares, and says so
            self.server = await self._search(self._servers, self.server.connect_seconds)
        return self.server.served or pb.DescribeResponse()

    def look_around(self) -> None:
        """Learns, if that was long ago, what the servers say now, and whom they name."""
        self._fleet.look_around(self._servers)
