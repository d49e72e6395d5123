"""What a client's link has of gRPC: why a stream ended, attempts that are not waited for, links that are cut."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.chat.signals import leaving_on_signals
from moa_client.conversation.events import Ended, Event, LinkState
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.link.stream import Stream, StreamTraffic
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import MoaError, OverloadedError, UnavailableError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.handshake_checks import error_from_rpc, error_status

from netsim import LinkHandle, open_link
from tests.net.client_device import device, stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, settle, talking, watch
from tests.net.server_peer import make_host, plain_text, serving, silent, until

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
                try:
                    await stream.receive()
                    raise AssertionError("the stream goes on")
                except MoaError as error:
                    reasons = [error, await writing]
                assert [(type(each), each.message) for each in reasons] == [(OverloadedError, "There is no room.")] * 2
    finally:
        await server.stop(None)


FIRST_SECONDS, SECOND_SECONDS = 0.3, 1.5  # less than gRPC waits for an attempt that is not answered


async def test_a_renewed_link_does_not_wait_for_the_attempt_of_the_one_before() -> None:
    """The peer takes connections and says nothing, as one does behind a link that was cut."""
    async with silent() as (port, taken), connect([Server(f"127.0.0.1:{port}", 5.0, 20.0)]) as link:
        for seconds in (FIRST_SECONDS, SECOND_SECONDS):
            with pytest.raises(UnavailableError):
                await link.servers[0].open(pb.Open(), seconds)
            link.servers[0].renew(link.servers[0].channel_number)
        assert len(taken) >= 2


async def test_a_signal_in_an_answer_says_goodbye_first(target: Target, server: RunningServer) -> None:
    async with talking(target, f"127.0.0.1:{server.port}", held=device(target, "none")) as engine:

        async def converse() -> None:
            async with leaving_on_signals(engine.connection.leave):
                answer = engine.ask(PROMPT, SETTINGS)
                await anext(answer)
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()

        with pytest.raises(SystemExit):
            await converse()
        await until(lambda: not len(server.host.services.registry))  # freed, not kept for a while


# The server waits for drafts: else, on a busy machine, it has the whole answer ready before the cut.
WAITING = DraftingSettings(rounds=4, standalone=StandaloneRule(end_ms=60_000.0))
CUTS: dict[str, Callable[[LinkHandle], Awaitable[object]]] = {
    "cut": lambda link: link.cut("both"),
    "cut towards the device": lambda link: link.cut("down"),
    "reset": lambda link: link.reset(),
    "ended": lambda link: link.fin(),
}


@pytest.mark.parametrize(
    ("how", "name"), [("cut", "tree"), ("cut", "chain of N = 1"), *((how, "chain") for how in CUTS)]
)
async def test_a_link_that_is_lost_in_an_answer(target: Target, how: str, name: str) -> None:
    """The memory of what was verified comes again, and the text is the target's."""
    screen = Screen()
    host = make_host(target, stepper=stepper(target, int(name.endswith("N = 1"))))
    async with (
        serving(host) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        talking(target, link.target, WAITING, name=name) as engine,
    ):

        async def lose_and_heal(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts = 1
                await CUTS[how](link)
            elif screen.cuts == 1 and len(screen.provisional) >= 3:
                screen.cuts = 2
                await link.heal()

        await watch(engine, screen, on_event=lose_and_heal)
        await settle(engine, screen)
    assert screen.text == plain_text(target, PROMPT, SETTINGS)[0]
    assert screen.end == Ended(Finish.MAX_TOKENS)
    assert screen.cuts
    assert "cut" not in how or LinkState.OFFLINE in screen.states


async def test_connections_that_grow_old_cost_no_word(target: Target) -> None:
    host = make_host(target, stepper=stepper(target, 0), connection_age_seconds=0.5, connection_age_grace_seconds=0.2)
    async with serving(host) as running, talking(target, f"127.0.0.1:{running.port}") as engine:
        expected, _ = plain_text(target, PROMPT, SETTINGS)
        answers = 0
        while engine.connection.stream_number < 4:
            screen = Screen()
            await watch(engine, screen)
            await settle(engine, screen)
            assert screen.text == expected
            engine.rewind(0)
            answers += 1
        assert answers > 1
