"""One link of a client: shared by conversations, renewed after silence, and honest about why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Ended, Event
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.server import Server
from moa_client.link.stream import Stream, StreamTraffic
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import InternalError, MoaError, OverloadedError, UnavailableError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.handshake_checks import error_status
from moa_shared.protocol.memory_codec import Codec

from netsim import open_link
from tests.net.client_device import device, stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, slow_device, talking, watch
from tests.net.server_peer import PATIENCE, VOCAB, make_host, plain_text, serving, silent, until
from tests.support.messages import says

OTHER_PROMPT = [9, 9, 4, 31]
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
                stream = Stream(method(), StreamTraffic())
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


async def fail(*_: Any, **__: Any) -> None:
    raise ValueError("a defect")


@pytest.mark.parametrize("place", [(Server, "open"), (Stream, "receive")], ids=["opening", "reading"])
async def test_a_defect_before_the_answer_ends_it(
    target: Target,
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: tuple[type, str],
) -> None:
    monkeypatch.setattr(*place, fail)
    async with (
        asyncio.timeout(PATIENCE),
        talking(target, f"127.0.0.1:{server.port}", held=device(target, "none")) as engine,
    ):
        with says(
            InternalError,
            "The connection has failed (ValueError)",
        ):
            await watch(engine, Screen())
    assert "Traceback" in caplog.text
    assert "ValueError: a defect" in caplog.text


async def test_a_defect_of_the_writer_in_the_answer_ends_it(
    target: Target, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()

    async def break_it(event: Event) -> None:
        if isinstance(event, Committed):
            monkeypatch.setattr(Stream, "send", fail)
            engine.connection.queue_frame(pb.ClientFrame(draft=pb.Draft()))
            await until(lambda: not engine.connection.is_up)

    address, held = f"127.0.0.1:{server.port}", device(target, "none")
    async with asyncio.timeout(PATIENCE), talking(target, address, WAITING, held=held) as engine:
        with says(
            InternalError,
            "The connection has failed (ValueError)",
        ):
            await watch(engine, screen, PROMPT, SETTINGS, break_it)
