"""Embeds texts: each is a call of its own, to a server that has the model, tried again while there is none.

An embedding has no state to resume, so a call that a cut ends is simply made again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, UnavailableError

from moa_client.link.fleet import Fleet
from moa_client.link.server import Server, serves

RETRY_SECONDS = 0.5
AT_ONCE = 4  # calls of one request: more would wait for each other at the server


async def embed(
    fleet: Fleet, needs: pb.Identity, texts: Sequence[Sequence[int]], seconds: float
) -> list[pb.EmbedResponse]:
    """The vectors of some texts.

    Args:
        needs: the target that must compute them.
        texts: their tokens.
        seconds: how long a server may be lost.

    Raises:
        UnavailableError: it is lost for longer.
        MoaError: the server refuses a text.
    """
    calls = asyncio.Semaphore(AT_ONCE)

    async def one(tokens: Sequence[int]) -> pb.EmbedResponse:
        async with calls:
            return await _embed(fleet, needs, tokens, seconds)

    tasks = [asyncio.create_task(one(tokens)) for tokens in texts]
    try:
        return await asyncio.gather(*tasks)
    finally:  # if one has failed, the others are not wanted
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _embed(fleet: Fleet, needs: pb.Identity, tokens: Sequence[int], seconds: float) -> pb.EmbedResponse:
    lost_at: float | None = None
    while True:
        server = fleet.best(fleet.servers, needs)
        try:
            await _check(server, needs)
            return await server.embed(tokens)
        except UnavailableError:
            server.avoid(seconds)
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at + RETRY_SECONDS > seconds:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def _check(server: Server, needs: pb.Identity) -> None:
    """Asks what a server has, unless it was said lately by one that is there.

    Raises:
        MismatchError: another model.
        MoaError: it does not answer.
    """
    served = server.served if server.error is None and server.served is not None else await server.ask()
    if not serves(served, needs):
        raise MismatchError(f"The server at {server.label} serves another model now.", hint="Ask again.")
