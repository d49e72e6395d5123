"""Opens the streams of one conversation at the one server that the user named, and follows it to others of its fleet.

State: the dialer in charge. A server names others that can go on in its place, when it is described and when it goes
away; once it is lost, full or going, the conversation is at the best of them all (route_dialer.py). A new conversation
begins at the user's server again, and looks at the others once that one cannot be had. Invariant: nobody is asked whom
the user's server, or one that it named, has not named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.dialer import REFUSALS, Dialer, MakeOpen, OneServerDialer
from moa_client.link.routing.route import Route
from moa_client.link.routing.route_dialer import RouteDialer, is_full
from moa_client.link.stream import Stream, Traffic

if TYPE_CHECKING:
    from moa_client.link.channel import Link


class FollowingDialer:
    """Opens streams at a link's server, or at its successors.

    Args:
        link: to the server that the user named.
        text: of the conversation, as it is at any time.
    """

    def __init__(self, link: Link, text: PrefixHashes) -> None:
        self._link = link
        self._text = text
        self._one = OneServerDialer(link)
        self._several: RouteDialer | None = None
        self._needs = pb.Identity()
        self._was_served = False

    @property
    def _inner(self) -> Dialer:
        return self._several or self._one

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def label(self) -> str:
        return self._inner.label

    @property
    def reason(self) -> str:
        return self._inner.reason

    @property
    def has_other(self) -> bool:
        return self._inner.has_other or (self._several is None and self._knows_others)

    @property
    def _knows_others(self) -> bool:
        """Whether others can be asked: before this server has served the conversation, it has all the time it takes."""
        return self._link.successors is not None or (self._was_served and bool(self._link.named))

    async def dial(self, make_open: MakeOpen, seconds: float | None, traffic: Traffic) -> tuple[Stream, pb.Opened]:
        def make(address: str) -> pb.Open:
            message = make_open(address)
            self._needs = message.identity
            return message

        if self._several is None and self._link.successors is not None:
            self._link.refresh()  # the server may be back
        opened = await self._inner.dial(make, seconds, traffic)
        self._was_served = True
        return opened

    def on_lost(self, error: MoaError | None, *, was_useful: bool) -> None:
        if isinstance(error, UnavailableError) and error.servers:
            self._follow(error.servers)
        elif self._knows_others and (not isinstance(error, REFUSALS) or is_full(error)):
            self._follow(())
        self._inner.on_lost(error, was_useful=was_useful)

    def on_go_away(self, servers: Sequence[str]) -> None:
        if servers:
            self._follow(servers)
        self._inner.on_go_away(servers)

    def on_stalled(self) -> None:
        if self._knows_others:
            self._follow(())
        self._inner.on_stalled()

    async def describe(self) -> pb.DescribeResponse:
        return await self._inner.describe()

    def look_around(self) -> None:
        if self._several is None:
            self._link.look_around()
        self._inner.look_around()

    def chooses_again(self) -> bool:
        return self._inner.chooses_again()

    def _follow(self, named: Sequence[str]) -> None:
        """Looks at the others from now on, those named now among them; the route knows those named before."""
        if self._several is not None:
            return  # which has heard of them itself
        if self._link.successors is None:
            self._link.successors = Route([self._link])
        route = self._link.successors
        route.model = self._needs if self._needs.target_fingerprint else route.model
        route.follow(named, self._link)
        self._several = RouteDialer(
            route, self._text, route.servers[0], self._one.channel, self._needs, self._one.session
        )
