"""A new connection to a server after one on which nothing has come."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_shared.errors import UnavailableError

FIRST_SECONDS, SECOND_SECONDS = 0.3, 1.5  # less than gRPC waits for an attempt that is not answered


async def test_a_renewed_link_does_not_wait_for_the_attempt_of_the_one_before() -> None:
    """The peer takes connections and says nothing, as one does behind a link that was cut."""
    taken: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with connect([Server(f"127.0.0.1:{port}", 5.0, 20.0)]) as link:
        for seconds in (FIRST_SECONDS, SECOND_SECONDS):
            with pytest.raises(UnavailableError):
                await link.servers[0].open(pb.Open(), seconds)
            link.servers[0].renew(link.servers[0].channel_number)
    assert len(taken) >= 2
    server.close()
    for writer in taken:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    await server.wait_closed()
