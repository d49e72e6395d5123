"""Two servers, one of which has read a text: conversations that begin so go there, unless it has no room."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Ended
from moa_server.access import keys as keys_module
from moa_server.access.limits import Caller
from moa_server.engine.schedule import Schedule
from moa_server.service.host import Host
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.net.client_device import device
from tests.net.client_talk import Screen, watch
from tests.net.fleet_servers import Servers, serving_now
from tests.net.server_peer import CONTEXT, Peer, channel_to, make_host, plain_text, until
from tests.net.test_server_prefixes import PAGE, SHORT, TEXT, answer
from tests.net.test_several_servers import talking_to
from tests.support.tiny_models import tiny_kernel_target, tiny_model

LONG = AnswerSettings(max_tokens=30, ignore_end_of_text=True)
READ_MS = 5.0  # as of a larger model: the tiny one reads a page faster than a round trip varies


class PagedServers(Servers):
    """Servers of a target that has pages to share."""

    def make(self, **settings: Any) -> Host:
        return make_host(self._target, **settings)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


@pytest.fixture
async def servers(target: Target, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    monkeypatch.setattr(Schedule, "read_ms", READ_MS)
    async with PagedServers(target) as made:
        yield made


async def ask_at(servers: Servers, name: str, text: Sequence[int], settings: AnswerSettings = SHORT) -> list[int]:
    """Asks one server, and says goodbye to it."""
    async with channel_to(servers.running[name]) as channel:
        peer = Peer(channel)
        got = await answer(peer, text, settings, reused_state=False)
        await peer.bye()
    return got


async def served_at(servers: Servers, target: Target, text: Sequence[int]) -> str:
    """Where a client goes that has never been here, if all are equally far away."""
    async with talking_to(servers.links(), device(target, "none")) as (route, engine):
        for server in route.servers:
            server.rtt_ms = 1.0
        screen = Screen()
        await watch(engine, screen, text, SHORT)
        assert screen.committed == plain_text(target, text, SHORT)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        return await serving_now(engine, servers)


async def test_a_conversation_goes_where_its_text_is_and_elsewhere_if_there_is_no_room(
    target: Target, servers: Servers
) -> None:
    await servers.start("one")
    two = await servers.start("two", max_streams=1)
    assert await served_at(servers, target, [7] * 20) == "one"  # the order of the list, where nothing else counts
    said = await ask_at(servers, "two", TEXT)
    assert await served_at(servers, target, [*TEXT, *said, 5, 6]) == "two"  # the next turn
    assert await served_at(servers, target, [*TEXT[:PAGE], 9, 9, 4]) == "two"  # another one with this beginning
    async with channel_to(two) as channel:
        busy = Peer(channel)
        await busy.open()  # it waits for drafts, so that the answer does not end
        await busy.ask([5, 17, 42], LONG)
        await busy.verdict()
        assert two.host.load == 1
        assert await served_at(servers, target, [*TEXT[:PAGE], 4, 4, 9]) == "one"
        await busy.bye()
    await until(lambda: two.host.load == 0)


async def describe(channel: grpc.aio.Channel, hashes: Sequence[int]) -> pb.DescribeResponse:
    stub: Any = moa_pb2_grpc.MoaStub(channel)
    response: pb.DescribeResponse = await stub.Describe(pb.DescribeRequest(prefix_hashes=hashes))
    return response


@pytest.mark.parametrize(
    ("share_prefixes", "own", "others"), [("client", 2 * PAGE, 0), ("all", 2 * PAGE, 2 * PAGE), ("off", 0, 0)]
)
async def test_an_asker_learns_nothing_of_what_it_does_not_share(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, share_prefixes: str, own: int, others: int
) -> None:
    one = await servers.start("one", share_prefixes=share_prefixes)
    await ask_at(servers, "one", TEXT)
    hashes = PrefixHashes(TEXT).named()
    async with channel_to(one) as channel:
        described = await describe(channel, hashes)
        assert (described.cached_tokens, described.read_ms) == (own, READ_MS)
        assert (await describe(channel, hashes[1:])).cached_tokens == 0  # the second page, without the first
        assert (await describe(channel, [*hashes, *range(10_000)])).cached_tokens == own
        assert (await describe(channel, [])).cached_tokens == 0
        monkeypatch.setattr(keys_module.Gate, "admit", lambda *_: Caller("another", "ipv4:127.0.0.1:9"))
        assert (await describe(channel, hashes)).cached_tokens == others
