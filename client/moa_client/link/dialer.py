"""Opens the streams of one conversation, one after the other, at the best server of a fleet.

State: the server of the newest attempt, and what became of it. A conversation begins at the server that the user named,
if it is the only one, and looks at the others of its fleet once that one is lost, full or going. Invariants: while a
server serves the conversation, it is not changed; between answers it is only for a clearly better one. A connection is
replaced only by a conversation that has lost a stream on it, so those that share one do not harm each other.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import (
    DeniedError,
    MismatchError,
    MoaError,
    NoFormsError,
    OverloadedError,
    RateLimitError,
    UnavailableError,
)
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.link.server_choice import Search, ServerChoice, attempt_seconds
from moa_client.link.stream import Stream, StreamTraffic

REFUSALS = (OverloadedError, MismatchError, DeniedError, NoFormsError)  # which show that the connection works
LACKS_FORMS = "The former server cannot hold answers to a form."
FAILED_SECONDS = 3.0  # that a server is the last resort after an attempt that brought nothing
LEAVING_SECONDS = 10.0  # after it has said that it goes away: a restart takes five
DENIED_SECONDS = 300.0  # after it has refused the key: the user needs another one
STALLED_SECONDS = 60.0  # after it has answered beats and nothing else: its operator must restart it
STAY_SECONDS = 60.0  # after a change, before another one for the better
MakeOpen = Callable[[str], pb.Open]  # for the server at this address


def new_session() -> str:
    """A name for one conversation, that says nothing about it: proxies send all of its streams to one server by it."""
    return secrets.token_hex(8)


class Dialer:
    """Opens streams for one conversation. `text`: of the conversation, as it is at any time."""

    def __init__(self, fleet: Fleet, text: PrefixHashes) -> None:
        self.reason = ""  # why the newest stream is at another server than the one before, as a sentence
        self._fleet = fleet
        self._choice = ServerChoice(fleet, text)
        self._session = new_session()
        self._server = fleet.home or fleet.newest  # of the newest attempt
        self._channel = 0  # the number of its channel
        self._is_home = fleet.home is not None  # no other server is looked at
        self._is_lost = False  # the server of the newest attempt; then all are asked
        self._must_renew = False  # and its connection too
        self._serving: Server | None = None  # on which the newest stream was opened
        self._why_lost = ""  # since then
        self._better: Server | None = None  # where the next stream is to be opened
        self._changed_at = -math.inf
        self._patience_seconds = 0.0  # of an attempt after those that failed: all may be busy with a crowd like us

    @property
    def address(self) -> str:
        """Where the newest attempt went, HOST:PORT."""
        return self._server.address

    @property
    def label(self) -> str:
        return self._server.label

    def seek_form(self, *, is_needed: bool) -> bool:
        """Looks for servers that can hold the next answer to a form, if it must have one.

        Returns:
            whether it must, and that of the newest stream cannot, as far as is known.
        """
        self._choice.needs_form = is_needed
        return is_needed and not self._choice.rank(self._server).has_form

    @property
    def has_other(self) -> bool:
        """Whether the next attempt could go to another server, which has not failed recently."""
        if self._is_home:
            return self._knows_others
        now = time.monotonic()
        others = [self._choice.rank(each) for each in self._fleet.servers if each is not self._server]
        return any(each.has_model is not False and not each.is_avoided(now) for each in others)

    @property
    def _knows_others(self) -> bool:
        """Whether others can be asked: before this server has served the conversation, it has all the time it takes."""
        return len(self._fleet.servers) > 1 or (self._serving is not None and bool(self._server.named))

    async def dial(
        self, make_open: MakeOpen, seconds: float | None, traffic: StreamTraffic
    ) -> tuple[Stream, pb.Opened]:
        """Opens a stream. `seconds`: how long to wait; None: as for connecting."""
        if self._is_home:
            if len(self._fleet.servers) > 1:
                self._server.refresh()  # it may be back
            self._renew()
            return await self._open(make_open, seconds, traffic)
        if seconds is not None:
            seconds = max(seconds, self._patience_seconds)
        try:
            opened = await self._dial_best(make_open, seconds, traffic)
        except UnavailableError:
            if seconds is not None:
                self._patience_seconds = min(2 * seconds, self._server.connect_seconds)
            raise
        self._patience_seconds = 0.0
        return opened

    async def _dial_best(
        self, make_open: MakeOpen, seconds: float | None, traffic: StreamTraffic
    ) -> tuple[Stream, pb.Opened]:
        if self._server not in self._fleet.servers:  # another conversation has found it gone
            self._is_lost, self._must_renew = True, False
        self._renew()
        if self._is_lost:
            self._server = await self._find(seconds)
        else:
            serving = self._serving
            if serving is not None and not self._choice.rank(serving).has_form:
                serving, self._why_lost = None, LACKS_FORMS
            self._server = self._better or serving or await self._choice.first()
        self._better = None
        seconds = seconds and max(seconds, attempt_seconds(self._server))
        return await self._open(make_open, seconds, traffic)

    async def _open(
        self, make_open: MakeOpen, seconds: float | None, traffic: StreamTraffic
    ) -> tuple[Stream, pb.Opened]:
        server = self._server
        self._channel, self._is_lost = server.channel_number, False
        message = make_open(server.address)
        self._choice.needs = message.identity
        if self.seek_form(is_needed=message.ask.sampling.HasField("constraint")):
            raise _no_forms(server)
        stream, opened = await server.open(message, seconds, traffic, self._session)
        if self._choice.needs_form and not opened.limits.constraints:  # an older version, which ignores the form
            stream.cancel()
            raise _no_forms(server)
        if self._serving is not None and server is not self._serving:
            self.reason, self._changed_at = self._why_lost, time.monotonic()
            if opened.HasField("new_execution"):
                level = opened.new_execution.execution.level
                self.reason += f" It computes at {level}: no server that computes as before has answered."
        self._serving, self._why_lost = server, ""
        self._fleet.newest = server
        self._choice.on_served(server)
        return stream, opened

    def _renew(self) -> None:
        if self._must_renew:
            self._server.renew(self._channel)
            self._must_renew = False

    def on_lost(self, error: MoaError | None, *, was_useful: bool) -> None:
        """The newest stream is lost, or was not opened. `error`: why; None: it was silent."""
        if self._is_home:
            self._leave_home_if_lost(error)
        self._must_renew = not isinstance(error, REFUSALS)
        if self._is_home:
            return
        self._is_lost = True
        server = self._server
        if self._must_renew or is_full(error) or isinstance(error, NoFormsError):
            self._fleet.follow_named()
            self._fleet.look_names_up()
        self._why_lost = self._why_lost or (error.message if error is not None else "The former server is silent.")
        if isinstance(error, NoFormsError):
            self._why_lost = LACKS_FORMS
            if server.served is not None:  # else the next search asks it
                server.served.limits.constraints = False
        elif isinstance(error, DeniedError):
            server.avoid(DENIED_SECONDS)
        elif isinstance(error, OverloadedError):
            server.avoid(error.retry_after_ms / 1e3)
        elif isinstance(error, UnavailableError) and error.servers:
            self.on_go_away(error.servers)
        elif not was_useful and not isinstance(error, MismatchError):  # a mismatch is looked into: see `describe`
            server.avoid(FAILED_SECONDS)

    def on_go_away(self, servers: Sequence[str]) -> None:
        """The server of the newest stream will end it soon.

        `servers`: HOST:PORT of those that continue in its place, as it says.
        """
        if self._is_home:
            if not servers:
                return
            self._leave_home(servers)
        self._why_lost = "The former server is going away."
        self._fleet.follow(servers, self._server)
        self._server.avoid(LEAVING_SECONDS)

    def on_stalled(self) -> None:
        """The server of the newest stream answers beats and nothing else."""
        if self._is_home:
            if not self._knows_others:
                return
            self._leave_home()
        self._why_lost = "The former server makes no progress."
        self._server.avoid(STALLED_SECONDS)

    def _leave_home_if_lost(self, error: MoaError | None) -> None:
        if isinstance(error, UnavailableError) and error.servers:
            self._leave_home(error.servers)
        elif isinstance(error, NoFormsError):
            if self._server.named or len(self._fleet.servers) > 1:
                self._leave_home(self._server.named)
        elif self._knows_others and (not isinstance(error, REFUSALS) or is_full(error)):
            self._leave_home()

    def _leave_home(self, named: Sequence[str] = ()) -> None:
        """Looks at the others from now on, those named now among them; the fleet knows those named before."""
        self._is_home = False
        self._serving = self._server
        self._choice.on_served(self._server)
        self._fleet.model = self._choice.model
        self._fleet.follow(named, self._server)

    async def describe(self) -> pb.DescribeResponse:
        """What a server serves that can continue the conversation; of others, the one that was asked last."""
        if self._is_home:
            return await self._server.describe()
        with suppress(MismatchError):  # the caller compares, and says so
            self._server = await self._find(None)
        return self._server.served or pb.DescribeResponse()

    async def _find(self, seconds: float | None) -> Server:
        return await Search(self._choice, self._server).run(seconds or self._server.connect_seconds)

    def look_around(self) -> None:
        """Learns of the other servers meanwhile, if that was long ago: who they are, and once it matters how far."""
        if self._is_home:
            self._fleet.hear_names()
        else:
            self._fleet.look_around()

    def chooses_again(self) -> bool:
        """Whether another server is clearly better than that of the newest stream; the next one is opened there.

        Not soon after a change, so that no two servers take turns.
        """
        if self._is_home or time.monotonic() < self._changed_at + STAY_SECONDS:
            return False
        better = self._choice.better_than(self._server)
        if better is None:
            return False
        self._better, self._why_lost = better, "It is nearer, or has less to do."
        return True


def _no_forms(server: Server) -> NoFormsError:
    return NoFormsError(f"{server.label} cannot hold answers to a form.")


def is_full(error: MoaError | None) -> bool:
    """Whether a server refuses for want of room, which another one may have; a limit of the caller is not that."""
    return isinstance(error, OverloadedError) and not isinstance(error, RateLimitError)
