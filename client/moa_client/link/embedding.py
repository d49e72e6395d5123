"""Embeds texts: each is a call of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb

from moa_client.link.server import Server

AT_ONCE = 4  # calls of one request: more would wait for each other at the server


async def embed(server: Server, texts: Sequence[Sequence[int]]) -> list[pb.EmbedResponse]:
    """The vectors of some texts, given by their tokens."""
    calls = asyncio.Semaphore(AT_ONCE)

    async def one(tokens: Sequence[int]) -> pb.EmbedResponse:
        async with calls:
            return await server.embed(tokens)

    tasks = [asyncio.create_task(one(tokens)) for tokens in texts]
    try:
        return await asyncio.gather(*tasks)
    finally:  # if one has failed, the others are not wanted
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
