"""Servers to put links before, in the test's own loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

Serve = Callable[[], "asyncio.Server"]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes; ends as the client ends."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def serving(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] = echo, port: int = 0
) -> AsyncIterator[str]:
    """An asyncio server on loopback; gives its address."""
    server = await asyncio.start_server(handler, "127.0.0.1", port)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


@pytest.fixture
def serve() -> Callable[..., object]:
    """`async with serve() as upstream`."""
    return serving


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nbytes: int = 100) -> float:
    """Sends and waits for the echo; milliseconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    writer.write(bytes(nbytes))
    await reader.readexactly(nbytes)
    return (loop.time() - start) * 1e3


@pytest.fixture(name="ask")
def ask_fixture() -> Callable[..., Awaitable[float]]:
    """Latency of one request."""
    return ask
