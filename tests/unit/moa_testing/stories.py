"""Stories as tests, each in a world of its own, and servers of a test's own at the far ends of its links."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import grpc
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import ServerChanged
from moa_client.link.server import Server
from moa_server.service.host import Host
from moa_testing import Link, Screen, World, simulate
from moa_testing.link import LinkSecurity
from netsim.core.conditions import Conditions

Given = ParamSpec("Given")


def simulated(story: Callable[Concatenate[World, Given], Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """The story as a test, which gives it a world and its other arguments."""

    @wraps(story)
    def test(*given: Given.args, **named: Given.kwargs) -> None:
        simulate(lambda world: story(world, *given, **named))

    parameters = list(inspect.signature(story).parameters.values())
    test.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return test


def told(screen: Screen) -> list[str]:
    """What the reader learns of servers."""
    return [each.message for each in screen.of(ServerChanged)]


Converse = Callable[[AsyncIterator[pb.ClientFrame], Any], Awaitable[None]]


def service_of(converse: Converse, described: pb.DescribeResponse | None = None) -> grpc.GenericRpcHandler[Any, Any]:
    """What answers Converse and Describe so, in any bytes."""

    async def describe(_: bytes, __: Any) -> bytes:
        return (described or pb.DescribeResponse()).SerializeToString()

    handlers = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "Converse": grpc.stream_stream_rpc_method_handler(converse, pb.ClientFrame.FromString),
    }
    return grpc.method_handlers_generic_handler("moa.v1.Moa", handlers)


@asynccontextmanager
async def linked(host: Host, kind: type[Server] = Server) -> AsyncIterator[Any]:
    """A server as clients know it, at the near end of a link without a delay, in real time."""
    link, address = Link(Conditions(), 0), "10.0.0.1:1"
    link.serve(host)
    host.services.engine.start()
    server = kind(address, 5.0, 10.0, LinkSecurity(insecure=True, links={address: link}))
    try:
        yield server
    finally:
        link.stop()
        await host.services.engine.stop()
