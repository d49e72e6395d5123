"""Servers that others name, and names that have several addresses: who is followed, where, and with which certificate."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from moa_client.conversation.events import Committed, Event
from moa_client.device.loading import Device
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import UnavailableError
from moa_shared.programs.addresses import MOST_SUCCESSORS
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_talk import PROMPT, Screen, once, slow_device, watch
from tests.net.fleet_servers import SAMPLED, WAITING, Servers
from tests.net.server_peer import VOCAB, plain_text, until
from tests.support.certificates import Authority
from tests.support.messages import says


@asynccontextmanager
async def talking_to(link: Fleet, held: Device) -> AsyncIterator[ClientEngine]:
    engine = ClientEngine(link, held, VOCAB, Codec.INT4, WAITING)
    try:
        yield engine
    finally:
        await engine.close()


async def test_names_are_few_and_lead_to_nobody_s_own_machine() -> None:
    tls = Security(tls=True)
    far = Server("198.51.100.1:5", 1.0, 1.0, tls)
    async with connect([far, Server("198.51.100.2:5", 1.0, 1.0, tls)]) as route:
        route.follow([f"198.51.100.{number}:7" for number in range(20)], far)
        route.follow([f"203.0.113.{number}:7" for number in range(20)], far)
        assert len(route.servers) == 2 + MOST_SUCCESSORS
    far = Server("198.51.100.1:5", 1.0, 1.0, tls)
    async with connect([far, Server("198.51.100.2:5", 1.0, 1.0, tls)]) as route:
        here = ["localhost:1", "127.0.0.1:2", "[::1]:3", "0.0.0.0:4", "a.localhost:5", "[::ffff:127.0.0.1]:6"]
        route.follow([*here, "127.1:1", "no address", "x:0", "x:99999", "http://x:1"], far)
        assert len(route.servers) == 2


async def test_a_key_is_not_sent_in_the_clear_to_whom_a_server_names() -> None:
    near = Server("127.0.0.1:5", 1.0, 1.0, Security(key="secret"))
    async with connect([near, Server("127.0.0.1:6", 1.0, 1.0)]) as route:
        route.follow(["198.51.100.1:7"], near)
        assert [each.address for each in route.servers] == ["127.0.0.1:5", "127.0.0.1:6"]


async def test_a_replica_that_is_named_by_its_number_has_its_server_s_certificate() -> None:
    tls = Security(tls=True)
    named, numbered = Server("gpu.example:5", 1.0, 1.0, tls), Server("198.51.100.1:5", 1.0, 1.0, tls)
    by_number, by_name = named.peer("198.51.100.2:6"), named.peer("two.example:6")
    others = [by_number, by_name, by_number.peer("198.51.100.3:6"), numbered.peer("198.51.100.2:6")]
    names = [each.security.server_name for each in others]
    for each in (named, numbered, *others):
        await each.close()
    assert names == ["gpu.example", "", "gpu.example", ""]


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
    async with connect([Server(f"{NAME}:{port}", 5.0, 20.0, OPEN)]) as link:
        assert hosts(link) == ["127.0.0.1", "127.0.0.2"]
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:
            await watch(
                engine,
                screen,
                PROMPT,
                SAMPLED,
                once(
                    screen,
                    lambda: servers.stop("one" if "127.0.0.1" in engine.connection.dialer.server.address else "two"),
                ),
            )
            assert screen.cuts == 1
            assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
            [left] = servers.running
            assert (
                engine.connection.dialer.server.label
                == f"{NAME} ({'127.0.0.1' if left == 'one' else '127.0.0.2'}:{port})"
            )


async def test_when_servers_are_lost_the_name_is_looked_up_again(target: Target, servers: Servers, dns: Say) -> None:
    """A rolling update: the whole fleet has other addresses afterwards."""
    port = await start_two(servers)
    dns("127.0.0.1", "127.0.0.2")
    screen = Screen()
    async with connect([Server(f"{NAME}:{port}", 5.0, 20.0, OPEN)]) as link:
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:

            async def replace(event: Event) -> None:
                if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                    screen.cuts += 1
                    await servers.start("three", host="127.0.0.3", port=port)
                    dns("127.0.0.3")
                    await servers.stop("one")
                    await servers.stop("two")

            await watch(engine, screen, PROMPT, SAMPLED, replace)
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
