"""One gRPC channel of a link, which several streams and calls may share.

State: how many use it, and whether it was replaced. Invariant: a channel that was replaced is closed when the last of
its streams and calls has ended, so replacing one harms no other conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc

from moa_client.link.stream import ConverseCall


class ServerCalls(Protocol):
    """The calls of a server that this program makes: the types that the generated stub lacks."""

    Describe: grpc.aio.UnaryUnaryMultiCallable[pb.DescribeRequest, pb.DescribeResponse]
    Embed: grpc.aio.UnaryUnaryMultiCallable[pb.EmbedRequest, pb.EmbedResponse]
    Generate: grpc.aio.UnaryStreamMultiCallable[pb.GenerateRequest, pb.GenerateResponse]
    FetchDrafter: grpc.aio.UnaryStreamMultiCallable[pb.FetchDrafterRequest, pb.FetchDrafterResponse]

    def Converse(self, *, metadata: tuple[tuple[str, str], ...] | None) -> ConverseCall: ...


class Transport:
    """A channel and its users.

    Args:
        channel: owned, and closed here.
        number: counts the channels of one link.
    """

    def __init__(self, channel: grpc.aio.Channel, number: int) -> None:
        self.number = number
        self.stub: ServerCalls = moa_pb2_grpc.MoaStub(channel)
        self._channel = channel
        self._users = 0
        self._is_replaced = False
        self._closing: asyncio.Task[None] | None = None

    def enter(self) -> None:
        """A stream or a call begins."""
        self._users += 1

    def leave(self) -> None:
        """It has ended."""
        self._users -= 1
        self._close_unused()

    @contextmanager
    def used(self) -> Iterator[ServerCalls]:
        """The stub for one call."""
        self.enter()
        try:
            yield self.stub
        finally:
            self.leave()

    def replace(self) -> None:
        """No new stream or call will use it."""
        self._is_replaced = True
        self._close_unused()

    async def close(self) -> None:
        """Closes it now, with what runs on it."""
        self._is_replaced = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._channel.close(None))
        await self._closing

    @property
    def is_down(self) -> bool:
        """Whether its connection was lost, or could not be made."""
        return self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it is left."""
        return self._closing is not None and self._closing.done()

    def _close_unused(self) -> None:
        if self._is_replaced and self._users == 0 and self._closing is None:
            self._closing = asyncio.create_task(self._channel.close(None))
