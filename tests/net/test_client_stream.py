"""A client's stream ends with the status that the server gave, whatever the client was writing then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_client.link.stream import Stream, StreamTraffic
from moa_shared.errors import MoaError, OverloadedError
from moa_shared.protocol.handshake_checks import error_status

TRIES = 20  # gRPC by itself replaces the status in 19 of 20


async def refuse(frames: AsyncIterator[pb.ClientFrame], context: Any) -> AsyncIterator[bytes]:
    """Refuses a stream at its first frame."""
    async for _ in frames:
        await context.abort(*error_status(OverloadedError("There is no room.")))
        yield b""


async def write_on(stream: Stream) -> MoaError:
    """Writes until the stream ends; why it did."""
    while True:
        try:
            await stream.send(pb.ClientFrame(beat=pb.Beat(stamp=1)))
        except MoaError as error:
            return error


async def test_a_write_that_meets_the_end_does_not_hide_the_servers_reason() -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(refuse, pb.ClientFrame.FromString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("moa.Test", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.stream_stream(
                "/moa.Test/Refuse", pb.ClientFrame.SerializeToString, pb.ServerFrame.FromString
            )
            for _ in range(TRIES):
                stream = Stream(method(), StreamTraffic())
                writing = asyncio.create_task(write_on(stream))
                try:
                    await stream.receive()
                    raise AssertionError("the stream goes on")
                except MoaError as error:
                    reasons = [error, await writing]
                assert [(type(each), each.message) for each in reasons] == [(OverloadedError, "There is no room.")] * 2
    finally:
        await server.stop(None)
