"""No router brings a conversation back to its replica on Ray: its client does, and finds keys and values there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from moa_client.conversation.events import Committed
from moa_client.device.loading import load_device
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.memory_codec import Codec

from tests.cluster.asking import PROMPT, program, sampled
from tests.cluster.conftest import Fleet
from tests.cluster.watched_server import Opening, WatchedServer
from tests.support.tiny_models import SIZES

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]
EVERY = 50  # tokens after which a stream is cut


async def test_conversations_whose_streams_are_cut_come_back_to_their_replica_and_to_their_kv(fleet: Fleet) -> None:
    addresses = [each["address"] for each in fleet.status()["replicas"]]
    assert len(addresses) == 2
    for seed in range(4):
        openings = await _cut_twice(fleet, addresses, seed)
        assert len(openings) == 3
        assert {each.address for each in openings} == {openings[0].address}
        for number, each in enumerate(openings[1:], 1):
            assert each.cached >= EVERY * number
            assert each.text - each.cached <= 1  # the newest token is read with the next one


async def _cut_twice(fleet: Fleet, addresses: Sequence[str], seed: int) -> list[Opening]:
    """The streams of one answer, two of which are cut."""
    openings: list[Opening] = []
    async with connect([WatchedServer(each, 5.0, 20.0, openings.append) for each in addresses]) as link:
        device = load_device(program(fleet.model), await link.describe(), SilentProgress())
        engine = ClientEngine(link, device, SIZES["vocab_size"], Codec.INT4)
        try:
            async for event in engine.ask(PROMPT, sampled(seed)):
                is_due = isinstance(event, Committed) and len(engine.conversation.answer) > EVERY * len(openings)
                if is_due and len(openings) < 3:
                    await engine.connection.lose()
        finally:
            await engine.close()
    assert len(engine.conversation.answer) == 400
    return openings
