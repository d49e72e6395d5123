"""Calls without a state to resume: one that a cut ends is made again, to any server of the fleet that has the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, UnavailableError

from moa_client.link.fleet import Fleet
from moa_client.link.server import Server, serves

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


RETRY_SECONDS = 0.5  # between calls that break, each of which first asks whether the server is there
T = TypeVar("T")


async def call_best(fleet: Fleet, needs: pb.Identity, call: Callable[[Server], Awaitable[T]], seconds: float) -> T:
    """What the best of the servers says.

    Args:
        needs: the target that must say it.
        call: may raise UnavailableError, where it is to be made again.
        seconds: how long a server may be lost.
    """
    loop, until = asyncio.get_running_loop(), None
    while True:
        server = fleet.best(fleet.servers, needs)
        try:
            if not serves(await server.ask(), needs):
                raise MismatchError(
                    f"The server at {server.label} has another model now.", hint="Restart this program, and ask again."
                )
            return await call(server)
        except UnavailableError:
            server.avoid(seconds)
            fleet.follow_named()
            until = until or loop.time() + seconds
            if loop.time() + RETRY_SECONDS > until:
                raise
        await asyncio.sleep(RETRY_SECONDS)
