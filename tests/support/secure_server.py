"""A server of the tiny target that speaks TLS and may want an API key, as one behind a guard does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import grpc
import grpc.aio
from moa_server.service.host import Host
from moa_server.service.service import MoaService

from tests.support.certificates import Authority, Pair


@cache
def authority() -> Authority:
    """Vouches for this server."""
    return Authority()


@cache
def _pair() -> Pair:
    return authority().issue("localhost")


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets in who has the key."""

    def __init__(self, key: str) -> None:
        self._wanted = ("authorization", f"Bearer {key}")

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if self._wanted in [(each[0], each[1]) for each in details.invocation_metadata or ()]:
            return handler

        async def refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")

        async def refuse_stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
            yield None

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(refuse_stream)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(refuse_stream)
        return grpc.unary_unary_rpc_method_handler(refuse)


@asynccontextmanager
async def secured(host: Host, key: str = "") -> AsyncIterator[int]:
    """The port of a server over TLS.

    Args:
        key: that it wants; empty: none.
    """
    server = grpc.aio.server(interceptors=[Guard(key)] if key else None)
    server.add_generic_rpc_handlers((MoaService(host).handler(),))
    credentials = grpc.ssl_server_credentials([(_pair().key, _pair().certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    host.services.engine.start()
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0.0)
        await host.services.engine.stop()
