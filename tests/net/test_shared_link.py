"""Several conversations on one link: each renews its own connection, and harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moa_client.conversation.events import Committed, Ended, Event
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from netsim import open_link
from tests.net.client_device import stepper
from tests.net.client_talk import PROMPT, Screen, slow_device, watch
from tests.net.server_peer import PATIENCE, VOCAB, make_host, plain_text, serving, until

OTHER_PROMPT = [9, 9, 4, 31]
SETTINGS = AnswerSettings(Sampling(0.7, seed=4), max_tokens=80, ignore_end_of_text=True)
# The server waits for drafts: else it would have the whole answer ready before the test does anything.
WAITING = DraftingSettings(run_ahead=False, standalone=StandaloneRule(end_ms=60_000.0))


@asynccontextmanager
async def talking_on(fleet: Fleet, target: Target) -> AsyncIterator[ClientEngine]:
    engine = ClientEngine(fleet, slow_device(target), VOCAB, Codec.INT4, WAITING)
    try:
        yield engine
    finally:
        await engine.close()


async def test_two_conversations_go_through_a_cut_on_one_link(target: Target) -> None:
    """The first one that has noticed the cut renews the connection; the other one uses the new one."""
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as network,
        connect([Server(network.target, 5.0, 20.0)]) as fleet,
        talking_on(fleet, target) as first,
        talking_on(fleet, target) as second,
    ):
        screens = {first: Screen(), second: Screen()}
        is_cut = False

        async def cut(event: Event) -> None:
            nonlocal is_cut
            if not is_cut and all(len(each.committed) > 5 for each in screens.values()):
                is_cut = True
                await network.cut("both")

        async def heal() -> None:
            """When both have given their streams up."""
            await until(lambda: all(engine.connection.stream_number > 1 for engine in screens))
            await network.heal()

        async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
            group.create_task(watch(first, screens[first], PROMPT, SETTINGS, cut))
            group.create_task(watch(second, screens[second], OTHER_PROMPT, SETTINGS, cut))
            group.create_task(heal())
        assert is_cut
        for engine, prompt in ((first, PROMPT), (second, OTHER_PROMPT)):
            assert screens[engine].committed == plain_text(target, prompt, SETTINGS)[0]
            assert screens[engine].end == Ended(Finish.MAX_TOKENS)
        assert fleet.servers[0].channel_number >= 1
        assert all(screen.most_provisional >= 3 for screen in screens.values())


async def test_a_conversation_that_gives_its_stream_up_leaves_the_others_theirs(target: Target) -> None:
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as fleet,
        talking_on(fleet, target) as first,
        talking_on(fleet, target) as second,
    ):
        screens = {first: Screen(), second: Screen()}
        other_began = asyncio.Event()

        async def note(event: Event) -> None:
            if isinstance(event, Committed):
                other_began.set()

        async def give_up(event: Event) -> None:
            screen = screens[first]
            if len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await asyncio.wait_for(other_began.wait(), PATIENCE)
                await first.connection.lose()

        async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
            group.create_task(watch(first, screens[first], PROMPT, SETTINGS, give_up))
            group.create_task(watch(second, screens[second], OTHER_PROMPT, SETTINGS, note))
        for engine, prompt in ((first, PROMPT), (second, OTHER_PROMPT)):
            assert screens[engine].committed == plain_text(target, prompt, SETTINGS)[0]
        assert (first.connection.stream_number, second.connection.stream_number) == (3, 1)
        assert fleet.servers[0].channel_number == 1


async def test_a_channel_is_renewed_once_however_many_have_lost_it(target: Target) -> None:
    async with (
        serving(make_host(target)) as running,
        connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as fleet,
    ):
        await fleet.describe()
        fleet.servers[0].renew(0)
        fleet.servers[0].renew(0)
        assert fleet.servers[0].channel_number == 1
        assert (await fleet.describe()).identity.target_id == "tiny"
        fleet.servers[0].renew(1)
        assert fleet.servers[0].channel_number == 2


async def test_bytes_are_counted_by_conversation(target: Target) -> None:
    short = AnswerSettings(max_tokens=8, ignore_end_of_text=True)
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as fleet,
        talking_on(fleet, target) as first,
        talking_on(fleet, target) as second,
    ):
        await watch(first, Screen(), settings=short)
        assert first.connection.traffic.up_bytes > 0
        assert second.connection.traffic.up_bytes == fleet.servers[0].traffic.up_bytes == 0
        await watch(second, Screen(), settings=short)
        assert second.figures.up_bytes == second.connection.traffic.up_bytes > 0
