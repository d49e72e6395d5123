"""The gRPC channel to one server, shared by the streams and calls of all conversations there.

State: the newest channel, and those that were replaced while others used them: it is replaced when it is lost, and when
certificates on this device have changed. Invariant: a channel that was replaced is closed when the last of its streams
and calls has ended, so replacing one harms no other conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Protocol

import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_shared.errors import MoaError

from moa_client.link.security import Security
from moa_client.link.stream import ConverseCall


class ServerCalls(Protocol):
    """The calls of a server that this program makes: the types that the generated stub lacks."""

    Describe: grpc.aio.UnaryUnaryMultiCallable[pb.DescribeRequest, pb.DescribeResponse]
    Embed: grpc.aio.UnaryUnaryMultiCallable[pb.EmbedRequest, pb.EmbedResponse]
    Generate: grpc.aio.UnaryStreamMultiCallable[pb.GenerateRequest, pb.GenerateResponse]
    FetchDrafter: grpc.aio.UnaryStreamMultiCallable[pb.FetchDrafterRequest, pb.FetchDrafterResponse]

    def Converse(self, *, metadata: tuple[tuple[str, str], ...] | None) -> ConverseCall: ...


class Transport:
    """A channel and its users. `number`: counts the channels of one link."""

    def __init__(self, channel: grpc.aio.Channel, number: int) -> None:
        self.number = number
        self.stub: ServerCalls = moa_pb2_grpc.MoaStub(channel)
        self._channel = channel
        self._users = 0
        self._is_replaced = False
        self._closing: asyncio.Task[None] | None = None

    def enter(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        self._close_unused()

    @contextmanager
    def used(self) -> Iterator[ServerCalls]:
        self.enter()
        try:
            yield self.stub
        finally:
            self.leave()

    def replace(self) -> None:
        self._is_replaced = True
        self._close_unused()

    async def close(self) -> None:
        self._is_replaced = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._channel.close(None))
        await self._closing

    @property
    def is_down(self) -> bool:
        return self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    def _close_unused(self) -> None:
        if self._is_replaced and self._users == 0 and self._closing is None:
            self._closing = asyncio.create_task(self._channel.close(None))


# Keepalive is the backstop for a dead peer; ping_timeout_ms is what bounds it (its own default is 60 s).
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 6_000),
    ("grpc.http2.ping_timeout_ms", 6_000),
    ("grpc.http2.bdp_probe", 0),
    # Else a new channel takes over the connection attempt that the one before is still waiting for.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also bounds a connection attempt: 500 failed at a round trip of 300 ms
    ("grpc.max_reconnect_backoff_ms", 3_000),
]
WINDOW_BYTES = 64 << 10  # of a conversation: more would let memory queue up in the network ahead of verdicts
log = logging.getLogger(__name__)


class ServerChannel:
    """The channel to one server, replaced when it is lost. `address`: HOST:PORT."""

    def __init__(self, address: str, security: Security, label: str) -> None:
        self._address = address
        self._security = security
        self._label = label
        self._window_bytes = WINDOW_BYTES
        self._stamps = security.stamps()
        self._credentials = security.credentials()
        self._replaced: list[Transport] = []
        self._transport = self._make_transport(0)

    def _make_transport(self, number: int) -> Transport:
        window = ("grpc.http2.lookahead_bytes", self._window_bytes)
        options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS, window, *self._security.options(self._address)]
        return Transport(self._security.open_channel(self._address, self._credentials, options), number)

    def current(self) -> Transport:
        """What the next call uses: another one if certificates have changed since."""
        stamps = self._security.stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._credentials = self._security.credentials()
            except MoaError as error:  # half of a renewal: the former ones will do until the rest is there
                log.warning("certificates for %s are not read again: %s", self._label, error)
            else:
                self.renew(self._transport.number)
        return self._transport

    def renew(self, lost: int) -> None:
        """Replaces a lost connection: packets lost in an outage delay the old one for seconds after it.

        `lost`: its number; if another conversation has replaced it, nothing happens.
        """
        if lost != self._transport.number:
            return
        before, self._transport = self._transport, self._make_transport(lost + 1)
        before.replace()
        self._replaced = [each for each in (*self._replaced, before) if not each.is_closed]

    def refresh(self) -> None:
        """Replaces a connection that is not there: gRPC would wait before it tries again."""
        if self._transport.is_down:
            self.renew(self._transport.number)

    def widened(self, window_bytes: int) -> ServerChannel:
        """Another channel to the same server. `window_bytes`: bytes a call may have in flight to us."""
        other = copy(self)
        other._window_bytes, other._replaced = window_bytes, []
        other._transport = other._make_transport(0)
        return other

    async def close(self) -> None:
        for transport in (*self._replaced, self._transport):
            await transport.close()
