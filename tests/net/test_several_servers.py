"""Several servers of one model, and names with several addresses: an answer goes on where its server is lost."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from moa_client.conversation.events import Ended
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import NoFormsError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, once, slow_device, watch
from tests.net.fleet_servers import GREEDY, SAMPLED, WAITING, Servers, serving_now, told
from tests.net.server_peer import VOCAB, plain_text, until
from tests.support.certificates import Authority
from tests.support.messages import says


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


NAME = "fleet.test"
OPEN = Security(insecure=True)
Say = Callable[..., None]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Says which addresses the name has from now on."""
    held: list[str] = []
    ask = socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **options: Any) -> Any:
        if host != NAME:
            return ask(host, *rest, **options)
        if not held:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in held]

    def say(*addresses: str) -> None:
        held[:] = addresses

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return say


def hosts(link: Fleet) -> list[str]:
    return [each.address.partition(":")[0] for each in link.servers]


async def start_two(servers: Servers, **settings: Any) -> int:
    port = (await servers.start("one", host="127.0.0.1", **settings)).port
    await servers.start("two", host="127.0.0.2", port=port, **settings)
    return port


async def test_an_answer_goes_on_at_another_address_of_the_name(target: Target, servers: Servers, dns: Say) -> None:
    port = await start_two(servers)
    dns("127.0.0.1", "127.0.0.2")
    screen = Screen()
    async with talking_to([Server(f"{NAME}:{port}", 5.0, 20.0, OPEN)], slow_device(target)) as (link, engine):
        assert hosts(link) == ["127.0.0.1", "127.0.0.2"]
        dialer = engine.connection.dialer
        lose = once(screen, lambda: servers.stop("one" if "127.0.0.1" in dialer.server.address else "two"))
        await watch(engine, screen, PROMPT, SAMPLED, lose)
        assert screen.cuts == 1
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        [left] = servers.running
        assert dialer.server.label == f"{NAME} ({'127.0.0.1' if left == 'one' else '127.0.0.2'}:{port})"


async def test_when_servers_are_lost_the_name_is_looked_up_again(target: Target, servers: Servers, dns: Say) -> None:
    """A rolling update: the whole fleet has other addresses afterwards."""
    port = await start_two(servers)
    dns("127.0.0.1", "127.0.0.2")
    screen = Screen()
    async with talking_to([Server(f"{NAME}:{port}", 5.0, 20.0, OPEN)], slow_device(target)) as (link, engine):

        async def replace() -> None:
            await servers.start("three", host="127.0.0.3", port=port)
            dns("127.0.0.3")
            await servers.stop("one")
            await servers.stop("two")

        await watch(engine, screen, PROMPT, SAMPLED, once(screen, replace))
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert servers.sessions("three") == 1
        link.look_names_up(0.0)
        await until(lambda: hosts(link) == ["127.0.0.3"])


async def test_a_certificate_for_the_address_alone_is_refused(servers: Servers, dns: Say, tmp_path: Path) -> None:
    """Whoever answers at an address that DNS gives must be the one that the user named."""
    authority = Authority()
    certificate, key = authority.issue("other.test", ("other.test", "127.0.0.1", "127.0.0.2")).write(tmp_path)
    trusted = authority.write(tmp_path)
    port = await start_two(servers, tls_cert=certificate, tls_key=key)
    dns("127.0.0.1", "127.0.0.2")
    async with connect([Server(f"{NAME}:{port}", 5.0, 20.0, Security(tls=True, authorities=trusted))]) as link:
        with says(
            UnavailableError,
            "The server at fleet.test (127.0.0.1:PORT) cannot be used: its certificate is",
        ):
            await link.describe()


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1",)], ids=["none", "one"])
async def test_a_name_with_one_address_is_one_server(dns: Say, addresses: tuple[str, ...]) -> None:
    dns(*addresses)
    async with connect([Server(f"{NAME}:5", 5.0, 20.0, OPEN)]) as link:
        assert link.home is not None
        assert link.home.label == f"{NAME}:5"
