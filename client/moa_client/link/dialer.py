"""Opens the streams of one conversation, one after the other: at one server, or at one of several.

State: the attempt before, and whether it was lost. Invariant: a connection is replaced only by whoever has lost a
stream on it, so conversations that share one do not harm each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import DeniedError, MismatchError, MoaError, OverloadedError

from moa_client.link.stream import Stream, Traffic

if TYPE_CHECKING:
    from moa_client.link.channel import Link

REFUSALS = (OverloadedError, MismatchError, DeniedError)  # which show that the connection works
SESSION = "moa-session"  # of a stream's metadata: the conversation's name
MakeOpen = Callable[[str], pb.Open]  # for the server at this address


def new_session() -> str:
    """A name for one conversation, that says nothing about it: proxies send all of its streams to one server by it."""
    return secrets.token_hex(8)


class Dialer(Protocol):
    """Opens streams for one conversation."""

    @property
    def address(self) -> str:
        """Where the newest attempt went, HOST:PORT."""

    @property
    def label(self) -> str:
        """The same for people, with the name that they gave it."""

    @property
    def reason(self) -> str:
        """Why the newest stream is at another server than the one before, as a sentence; may be empty."""

    @property
    def has_other(self) -> bool:
        """Whether the next attempt could go to another server, which has not failed of late."""

    async def dial(self, make_open: MakeOpen, seconds: float | None, traffic: Traffic) -> tuple[Stream, pb.Opened]:
        """Opens a stream.

        Args:
            seconds: how long to wait; None: as for connecting.

        Raises:
            MoaError: no server opens one.
        """

    def on_lost(self, error: MoaError | None, *, was_useful: bool) -> None:
        """The newest stream is lost, or was not opened.

        Args:
            error: why; None: it was silent.
            was_useful: it had served the conversation.
        """

    def on_go_away(self, servers: Sequence[str]) -> None:
        """The server of the newest stream will end it soon.

        Args:
            servers: HOST:PORT of those that go on in its place, as it says.
        """

    def on_stalled(self) -> None:
        """The server of the newest stream answers beats and nothing else."""

    async def describe(self) -> pb.DescribeResponse:
        """What a server serves that can continue the conversation; of others, the one that was asked last.

        Raises:
            MoaError: none answers.
        """

    def look_around(self) -> None:
        """Measures the other servers meanwhile, if that was long ago."""

    def chooses_again(self) -> bool:
        """Whether another server is clearly better than that of the newest stream; the next one is opened there."""


class OneServerDialer:
    """Opens streams at the one server of a link."""

    reason = ""
    has_other = False

    def __init__(self, link: Link) -> None:
        self._link = link
        self.session = new_session()
        self.channel = 0  # number of the link's channel that the newest attempt used
        self._is_lost = False

    @property
    def address(self) -> str:
        return self._link.address

    @property
    def label(self) -> str:
        return self._link.label

    async def dial(self, make_open: MakeOpen, seconds: float | None, traffic: Traffic) -> tuple[Stream, pb.Opened]:
        link = self._link
        if self._is_lost:
            link.renew(self.channel)
        self.channel, self._is_lost = link.channel_number, False
        return await link.open(make_open(link.address), seconds, traffic, self.session)

    def on_lost(self, error: MoaError | None, *, was_useful: bool) -> None:
        self._is_lost = not isinstance(error, REFUSALS)

    def on_go_away(self, servers: Sequence[str]) -> None:
        """There is no other one."""

    def on_stalled(self) -> None:
        """There is no other one."""

    async def describe(self) -> pb.DescribeResponse:
        return await self._link.describe()

    def look_around(self) -> None:
        """There is no other one."""

    def chooses_again(self) -> bool:
        return False
