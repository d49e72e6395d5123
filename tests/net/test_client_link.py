"""What a client's link has of gRPC and of names: why a stream ended, links that are cut, servers that are lost, and DNS."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.chat.signals import leaving_on_signals
from moa_client.conversation.events import Event, LinkState
from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_client.link.stream import Stream, StreamTraffic
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import MoaError, NoFormsError, OverloadedError, UnavailableError
from moa_shared.protocol.handshake_checks import error_from_rpc, error_status
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

from netsim import LinkHandle, open_link
from tests.net import client_talk
from tests.net.client_device import device, stepper
from tests.net.server_peer import CONTEXT, PROMPT, make_host, plain_text, serving, until
from tests.support.certificates import Authority
from tests.support.messages import says
from tests.support.tiny_models import HYBRID, tiny_kernel_target, tiny_model

TRIES = 20  # gRPC by itself replaces the status in 19 of 20


async def refuse(frames: AsyncIterator[pb.ClientFrame], context: Any) -> AsyncIterator[bytes]:
    """Refuses a stream at its first frame."""
    async for _ in frames:
        await context.abort(*error_status(OverloadedError("There is no room.")))
        yield b""


async def write_on(stream: Stream) -> MoaError:
    """Writes until the stream ends; why it did."""
    while True:
        try:
            await stream.send(pb.ClientFrame(beat=pb.Beat(stamp=1)))
        except MoaError as error:
            return error


async def reason(status: grpc.RpcError) -> MoaError:
    return error_from_rpc(status)


async def test_a_write_that_meets_the_end_does_not_hide_the_servers_reason() -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(refuse, pb.ClientFrame.FromString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("moa.Test", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.stream_stream(
                "/moa.Test/Refuse", pb.ClientFrame.SerializeToString, pb.ServerFrame.FromString
            )
            for _ in range(TRIES):
                stream = Stream(method(), StreamTraffic(), reason)
                writing = asyncio.create_task(write_on(stream))
                with says(OverloadedError, "There is no room."):
                    await stream.receive()
                assert isinstance(await writing, OverloadedError)
    finally:
        await server.stop(None)


async def test_a_signal_in_an_answer_says_goodbye_first(target: Target, server: RunningServer) -> None:
    async with client_talk.talking(f"127.0.0.1:{server.port}", device(target, "none")) as engine:

        async def converse() -> None:
            async with leaving_on_signals(engine.connection.leave):
                answer = engine.ask(PROMPT, client_talk.SETTINGS)
                await anext(answer)
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()

        with pytest.raises(SystemExit):
            await converse()
        await until(lambda: not len(server.host.services.registry))  # freed, not kept for a while


CUTS: dict[str, Callable[[LinkHandle], Awaitable[object]]] = {
    "cut": lambda link: link.cut("both"),
    "cut towards the device": lambda link: link.cut("down"),
    "reset": lambda link: link.reset(),
    "ended": lambda link: link.fin(),
}


@pytest.mark.parametrize(
    ("how", "name", "family"),
    [("cut", "chain of N = 1", ""), *((how, "tree", "") for how in CUTS), ("cut", "tree", HYBRID)],
)
async def test_a_link_that_is_lost_in_an_answer(target: Target, how: str, name: str, family: str) -> None:
    """The memory of what was verified comes again, and the text is the target's."""
    screen = client_talk.Screen()
    if family:
        target = tiny_kernel_target(tiny_model(family, max_position_embeddings=CONTEXT))
    host = make_host(target, stepper=stepper(target, int(name.endswith("N = 1"))))
    async with (
        serving(host) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        client_talk.talking(link.target, client_talk.slow_device(target, name), client_talk.WAITING) as engine,
    ):

        async def lose_and_heal(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts = 1
                await CUTS[how](link)
            elif screen.cuts == 1 and len(screen.provisional) >= 3:
                screen.cuts = 2
                await link.heal()

        await client_talk.watch(engine, screen, on_event=lose_and_heal)
    assert screen.text == plain_text(target, PROMPT, client_talk.SETTINGS)[0]
    assert screen.cuts
    assert "cut" not in how or LinkState.OFFLINE in screen.states


async def test_connections_that_grow_old_cost_no_word(target: Target) -> None:
    host = make_host(target, stepper=stepper(target, 0), connection_age_seconds=0.5, connection_age_grace_seconds=0.2)
    async with (
        serving(host) as running,
        client_talk.talking(f"127.0.0.1:{running.port}", client_talk.slow_device(target)) as engine,
    ):
        while engine.connection.stream_number < 4:
            screen = client_talk.Screen()
            await client_talk.watch(engine, screen)
            assert screen.text == plain_text(target, PROMPT, client_talk.SETTINGS)[0]
            engine.rewind(0)


FORM = Constraint(ConstraintKind.REGEX, r"([a-z]{3} = [0-9]{4}; ){4}done")
FORMED = AnswerSettings(Sampling(1.0, seed=3, constraint=FORM), max_tokens=90)


@pytest.mark.parametrize("count", [1, 2])
async def test_where_none_has_the_library_the_question_is_refused(
    target: Target, servers: client_talk.Servers, count: int
) -> None:
    for number in range(count):
        await servers.start(str(number))
    async with client_talk.talking_to(servers.links(), device(target, "none")) as (_, engine):
        for _ in range(2):  # before a stream is open, and after
            with says(NoFormsError, "cannot hold answers to a form. Ask for text, or have its operator"):
                await client_talk.watch(engine, client_talk.Screen(), PROMPT, FORMED)
            screen = client_talk.Screen()
            await client_talk.watch(engine, screen, [9, 9, 4], client_talk.GREEDY)  # the conversation goes on
            assert screen.text


NAME = "fleet.test"
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


def named(port: int, security: Security | None = None) -> Server:
    return client_talk.server_at(f"{NAME}:{port}", security or Security(insecure=True))


async def start_two(servers: client_talk.Servers, **settings: Any) -> int:
    port = (await servers.start("one", host="127.0.0.1", **settings)).port
    await servers.start("two", host="127.0.0.2", port=port, **settings)
    return port


@pytest.mark.parametrize("renewed", [False, True], ids=["one is lost", "all have other addresses afterwards"])
async def test_an_answer_goes_on_at_another_address_of_the_name(
    target: Target, servers: client_talk.Servers, dns: Say, renewed: bool
) -> None:
    port = await start_two(servers)
    dns("127.0.0.1", "127.0.0.2")
    screen = client_talk.Screen()
    async with client_talk.talking_to([named(port)], client_talk.slow_device(target)) as (link, engine):
        assert hosts(link) == ["127.0.0.1", "127.0.0.2"]
        dialer = engine.connection.dialer

        async def lose() -> None:
            if not renewed:
                await servers.stop("one" if "127.0.0.1" in dialer.server.address else "two")
                return
            await servers.start("three", host="127.0.0.3", port=port)
            dns("127.0.0.3")
            for name in ("one", "two"):
                await servers.stop(name)

        await client_talk.watch(engine, screen, PROMPT, client_talk.SETTINGS, client_talk.once(screen, lose))
        assert (screen.cuts, screen.text) == (1, plain_text(target, PROMPT, client_talk.SETTINGS)[0])
        [left] = servers.running
        address = f"127.0.0.{1 + ['one', 'two', 'three'].index(left)}"
        assert dialer.server.label == f"{NAME} ({address}:{port})"
        assert not renewed or servers.sessions("three") == 1
        link.look_names_up(0.0)
        await until(lambda: hosts(link) == (["127.0.0.3"] if renewed else ["127.0.0.1", "127.0.0.2"]))


async def test_a_certificate_for_the_address_alone_is_refused(
    servers: client_talk.Servers, dns: Say, tmp_path: Path
) -> None:
    """Whoever answers at an address that DNS gives must be the one that the user named."""
    authority = Authority()
    certificate, key = authority.issue("other.test", ("other.test", "127.0.0.1", "127.0.0.2")).write(tmp_path)
    trusted = authority.write(tmp_path)
    port = await start_two(servers, tls_cert=certificate, tls_key=key)
    dns("127.0.0.1", "127.0.0.2")
    async with connect([named(port, Security(tls=True, authorities=trusted))]) as link:
        with says(UnavailableError, "The server at fleet.test (127.0.0.1:PORT) cannot be used: its certificate is"):
            await link.describe()


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1",)], ids=["none", "one"])
async def test_a_name_with_one_address_is_one_server(dns: Say, addresses: tuple[str, ...]) -> None:
    dns(*addresses)
    async with connect([named(5)]) as link:
        assert link.home is not None
        assert link.home.label == f"{NAME}:5"
