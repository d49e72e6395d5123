from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from moa.v1 import moa_pb2 as pb
from moa_client.host.host import FrameTap


async def test_of_a_verdict_it_is_told_who_drafted_its_tokens() -> None:
    crossings = FrameTap()
    observe = crossings.observer("c1")
    verdict = pb.Verdict(tokens=[7, 8, 9, 4], accepted=3, server_accepted=2)
    async with aclosing(cast("Any", crossings.watch())) as watching:
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        observe("down", pb.ServerFrame(verdict=verdict))
        crossing = await first
    assert (crossing.tokens, crossing.accepted, crossing.server_accepted) == (4, 1, 2)
