"""A task that waits on gRPC and is cancelled ends, even where gRPC loses the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link.stream import Stream, StreamTraffic, heeded_cancellation
from moa_shared.errors import OverloadedError


class Call:
    """One that is refused at once; what waits for it waits for its beginning, in another task, as in gRPC."""

    def __init__(self) -> None:
        self._preparation = asyncio.create_task(self._prepare())
        self._on_status: Callable[[Call], None] = lambda _: None

    def add_done_callback(self, callback: Callable[[Call], None]) -> None:
        self._on_status = callback

    async def _prepare(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async def read(self) -> pb.ServerFrame:
        await self._preparation
        self._on_status(self)
        raise grpc.aio.AioRpcError(await self.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), "full", None)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    async def details(self) -> str:
        return "full"

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    async def write(self, message: pb.ClientFrame) -> None:
        await self.read()

    async def done_writing(self) -> None:
        """Nothing is written."""

    def begin(self) -> None:
        """As when the server refuses and nobody is cancelled."""
        self._preparation.cancel()

    def cancel(self) -> None:
        """Changes nothing: it has ended."""


async def send(stream: Stream) -> None:
    await stream.send(pb.ClientFrame(beat=pb.Beat(stamp=1)))


@pytest.mark.parametrize("wait", [Stream.receive, send, Stream.say_goodbye])
async def test_a_stream_that_waits_heeds_it(wait: Callable[[Stream], Coroutine[Any, Any, object]]) -> None:
    stream = Stream(Call(), StreamTraffic())
    task = asyncio.create_task(wait(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_around_it_is_one() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Stream(Call(), StreamTraffic()).receive()


async def test_without_one_the_status_is_raised() -> None:
    call = Call()
    task = asyncio.create_task(Stream(call, StreamTraffic()).receive())
    await asyncio.sleep(0)
    call.begin()
    with pytest.raises(OverloadedError):
        await task


async def test_one_from_before_is_not_counted_again() -> None:
    async def clean_up_and_tell() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with heeded_cancellation():
                await asyncio.sleep(0)
        return "cleaned up"

    task = asyncio.create_task(clean_up_and_tell())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"
