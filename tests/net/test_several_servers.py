"""Several servers of one model: an answer goes on to the letter when its server is lost, and no other model slips in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from moa_client.conversation.events import Ended
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import NoFormsError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, once, slow_device, watch
from tests.net.fleet_servers import GREEDY, SAMPLED, WAITING, Servers, serving_now, told
from tests.net.server_peer import VOCAB, plain_text


@asynccontextmanager
async def talking_to(
    links: Sequence[Server], held: Device, settings: DraftingSettings = WAITING
) -> AsyncIterator[tuple[Fleet, ClientEngine]]:
    async with connect(links) as route:
        await route.describe()
        engine = ClientEngine(route, held, VOCAB, Codec.INT4, settings)
        try:
            yield route, engine
        finally:
            await engine.close()


async def stop_serving(engine: ClientEngine, servers: Servers) -> None:
    """Ends the server that answers."""
    await servers.stop(await serving_now(engine, servers))


async def test_an_answer_goes_on_at_the_other_server(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        await watch(engine, screen, PROMPT, SAMPLED, once(screen, lambda: stop_serving(engine, servers)))
        assert engine.status.server == route.shown.address == engine.connection.dialer.server.address
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert len(told(screen)) == 1
        left = await serving_now(engine, servers)
        assert told(screen)[0].startswith(f"{left} (127.0.0.1:PORT) answers now instead of ")
        after = Screen()
        await watch(engine, after, [9, 9, 4], SAMPLED)  # it stays where it is
        assert after.committed == plain_text(target, [*PROMPT, *screen.committed, 9, 9, 4], SAMPLED)[0]
        assert not after.notices


FORM = Constraint(ConstraintKind.REGEX, r"([a-z]{3} = [0-9]{4}; ){4}done")
SETTINGS = AnswerSettings(Sampling(1.0, seed=3, constraint=FORM), max_tokens=90)


def near_first(links: Sequence[Server]) -> None:
    for rtt_ms, link in zip((1.0, 10.0, 50.0), links, strict=False):
        link.rtt_ms = rtt_ms


@pytest.mark.parametrize("count", [1, 2])
async def test_where_none_has_the_library_the_question_is_refused(target: Target, servers: Servers, count: int) -> None:
    for number in range(count):
        await servers.start(str(number))
    async with talking_to(servers.links(), device(target, "none")) as (_, engine):
        for asked in range(2):  # before a stream is open, and after
            with pytest.raises(
                NoFormsError, match=r"cannot hold answers to a form\. Ask for text, or have its operator"
            ):
                await watch(engine, Screen(), PROMPT, SETTINGS)
            if not asked:
                await watch(engine, Screen(), PROMPT, GREEDY)
        screen = Screen()
        await watch(engine, screen, [9, 9, 4], GREEDY)  # the conversation goes on
        assert screen.committed
