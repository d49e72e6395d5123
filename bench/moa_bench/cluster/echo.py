"""A bidirectional stream that answers each frame with one, as a Serve deployment and on a server of its own.

Nothing is computed: what differs is the way of a frame.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb

SERVICE = "moa.v1.Moa"
METHOD = f"/{SERVICE}/Converse"
ANSWER = pb.ServerFrame(verdict=pb.Verdict(tokens=[1, 2]))


class Echo:
    """The Serve deployment."""

    async def Converse(self, frames: AsyncIterator[pb.ClientFrame]) -> AsyncIterator[pb.ServerFrame]:
        async for _ in frames:
            yield ANSWER


class _DirectEcho:
    """The same without Ray."""

    async def Converse(self, frames: AsyncIterator[pb.ClientFrame], _: Any) -> AsyncIterator[pb.ServerFrame]:
        async for _frame in frames:
            yield ANSWER


def add_to_proxy(servicer: Any, server: Any) -> None:
    """What Serve calls to learn of our streams."""
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.Converse, pb.ClientFrame.FromString, pb.ServerFrame.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Converse": handler}),))


async def serve_directly() -> tuple[grpc.aio.Server, int]:
    """The same stream without Ray; its server and port."""
    server = grpc.aio.server()
    add_to_proxy(_DirectEcho(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port
