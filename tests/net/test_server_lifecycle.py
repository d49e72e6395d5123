"""Limits, failures, slow clients, health and the end of a server."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.app import serve, start
from moa_server.cluster import server_thread
from moa_server.cluster.rules import Consumption, FleetView, Report, State
from moa_server.cluster.server_thread import ServerThread
from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.stepper import Stepper, Work
from moa_server.service import host as host_module
from moa_server.service.host import Host
from moa_server.session.memory_feed import most_nbytes
from moa_server.verifier import Target, TargetOutput
from moa_shared.errors import ConfigError, OverloadedError, UnavailableError
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.messages import AnswerSettings

from tests.net.server_peer import (
    CONTEXT,
    GREEDY,
    OWN,
    PROMPT,
    ROW_WIDTH,
    VOCAB,
    Peer,
    channel_to,
    generate,
    make_host,
    plain_text,
    serving,
    trailer,
    until,
)

# ---------------------------------------------------------------- limits


async def refused(attempt: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt
    return caught.value


async def test_a_server_says_how_much_of_it_is_taken_and_refuses_one_over_the_limit(target: Target) -> None:
    async with serving(make_host(target, max_streams=2)) as running, channel_to(running) as channel:
        peers = [Peer(channel), Peer(channel)]
        for peer in peers:
            await peer.open()
            before = running.host.load
            await peer.ask(PROMPT, GREEDY)
            await peer.verdict()
            assert running.host.load == before + 0.5
        error = await refused(Peer(channel).open())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(error_from_rpc(error), OverloadedError)
        assert int(trailer(error, "moa-retry-after-ms")) > 0
        assert isinstance(error_from_rpc(await refused(generate(channel, PROMPT, GREEDY))), OverloadedError)
        await peers[0].bye()
        await Peer(channel).open()
        running.host.lifecycle.drain()
        described: pb.DescribeResponse = await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
        assert described.load == 1


async def test_an_idle_session_loses_its_keys_and_values_and_reads_its_text_again(target: Target) -> None:
    """The budget holds one conversation. Memory comes again as it was, and the text is the same."""
    settings = AnswerSettings(max_tokens=100, ignore_end_of_text=True)
    need = target.new_cache().most_nbytes(CONTEXT) + most_nbytes(ROW_WIDTH, CONTEXT)
    async with serving(make_host(target, kv_bytes=need)) as running, channel_to(running) as channel:
        first, second, third = Peer(channel), Peer(channel), Peer(channel)
        token = (await first.open()).resume_token
        await first.ask(PROMPT, settings)
        await first.verdict()
        await second.open(run_ahead=True)
        await second.ask(PROMPT, settings)
        error = error_from_rpc(await refused(second.done()))  # the first one's answer is under way
        assert isinstance(error, OverloadedError)
        assert str(error) == snapshot(
            "The 426.0 kB of keys and values of this server are all in use. Try again in a few seconds."
        )
        expected = plain_text(target, PROMPT, settings)[0]
        assert await first.finish(in_rounds=True) == expected
        await third.open()
        assert await third.answer(PROMPT, settings, in_rounds=True) == expected
        [live] = [live for live in running.host.services.registry.live_sessions if live.token == token]
        assert (live.session.cached, live.session.tokens) == (0, first.tokens)
        await until(lambda: live.tensors.nbytes == 0)
        again = plain_text(target, [*first.tokens, 3], GREEDY)[0]
        assert await first.answer([3], GREEDY, in_rounds=True) == again
        await first.send(credit=pb.Credit(bytes=1 << 20))  # more than is sent at first
        await first.rows(len(first.tokens) - 1)


async def test_streams_without_an_open_make_room_for_new_ones(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MOST_UNOPENED", 3)
    async with serving(make_host(target)) as running, channel_to(running) as channel:
        silent = [Peer(channel) for _ in range(10)]
        waiting = {asyncio.create_task(peer.done()): peer for peer in silent}  # they come in any order
        while len(waiting) > 3:
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                error = task.exception()
                assert isinstance(error, grpc.aio.AioRpcError)
                assert isinstance(error_from_rpc(error), OverloadedError)
                del waiting[task]
        await until(lambda: len(running.host.lifecycle._unopened) == 3)  # the last ones are here too
        await Peer(channel).open()  # takes the place of one more
        ended, kept = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (len(ended), len(kept)) == (1, 2)
        for task in kept:
            task.cancel()


async def test_connections_beyond_the_limit_are_not_taken_in(target: Target) -> None:
    async with (
        serving(make_host(target, max_connections=2)) as running,
        channel_to(running, OWN) as first,
        channel_to(running, OWN) as second,
        channel_to(running, OWN) as third,
    ):
        await Peer(first).open()
        await Peer(second).open()
        assert (await refused(Peer(third).open())).code() is grpc.StatusCode.UNAVAILABLE


async def test_answers_beyond_end_of_text_are_the_operators_to_allow(target: Target) -> None:
    host = make_host(target, allow_ignore_end_of_text=False)
    async with serving(host) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        for attempt in (peer.done(), generate(channel, PROMPT, GREEDY)):
            error = error_from_rpc(await refused(attempt))
            assert isinstance(error, ConfigError)
            assert str(error) == snapshot(
                "This server ends answers at end-of-text. Ask without ignore_end_of_text, or start the server with --allow-ignore-end-of-text."
            )
        assert await generate(channel, PROMPT, AnswerSettings(max_tokens=3))


async def test_a_client_that_does_not_read_holds_up_nobody(target: Target) -> None:
    """Its memory does not fit into the buffers on the way, so that a write to it blocks, and it is detached."""
    prompt = [(7 * index) % VOCAB for index in range(150)]
    settings = AnswerSettings(max_tokens=40, ignore_end_of_text=True)
    async with (
        serving(make_host(target, write_seconds=2.0)) as running,
        channel_to(running, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)) as deaf_channel,
        channel_to(running) as channel,
    ):
        deaf = Peer(deaf_channel)
        await deaf.open(credit_bytes=1 << 30, reused_state=True)
        for number in range(200):  # each question sends the prompt's rows again
            how = pb.Sampling(max_tokens=1 + number)
            ask = pb.Ask(id=1 + number, base=0, tokens=prompt, answer_start=len(prompt), sampling=how)
            await deaf.send(ask=ask)
        good = Peer(channel)
        await good.open()
        assert await good.answer(PROMPT, settings, in_rounds=True) == plain_text(target, PROMPT, settings)[0]
        await until(lambda: running.host.services.registry.detached == 1)


class HangingStepper(Stepper):
    """Does not come back from a forward before it is let."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.entered, self.release = threading.Event(), threading.Event()

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        self.thread = threading.current_thread()
        self.entered.set()
        assert self.release.wait(60)
        return super().forward_all(work)


async def test_a_forward_that_hangs_ends_health_and_beats(target: Target) -> None:
    stepper = HangingStepper(target)
    host = make_host(target, stepper=stepper, hang_seconds=0.01)
    async with serving(host) as running, channel_to(running) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="moa.v1.Moa"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        peer = Peer(channel)
        await peer.open(memory=False)
        await peer.ask(PROMPT, GREEDY)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert stepper.entered.is_set()
        await peer.send(beat=pb.Beat(stamp=1))
        error = error_from_rpc(await refused(Peer(channel).open(memory=False)))
        assert str(error) == snapshot("The server's model does not answer. Restart the server.")
        stepper.release.set()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await peer.send(beat=pb.Beat(stamp=2))
        while (frame := await peer.receive()) is not None and frame.WhichOneof("frame") != "beat":
            pass
        assert frame is not None
        assert frame.beat.stamp == 2


async def test_draining_lets_running_answers_end_and_tells_every_client(target: Target) -> None:
    host = make_host(target)
    running = await start(host)
    async with channel_to(running) as channel:
        answering, idle = Peer(channel), Peer(channel)
        token = (await answering.open()).resume_token
        await idle.open()
        await answering.ask(PROMPT, GREEDY)
        await answering.verdict()
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="moa.v1.Moa"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        plain = asyncio.create_task(generate(channel, PROMPT, AnswerSettings(ignore_end_of_text=True)))
        await until(lambda: len(host.services.registry) == 3 or plain.done())
        stopping = asyncio.create_task(running.stop(grace_seconds=100.0))
        await idle.done()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert answering.go_away is None
        assert await answering.finish(in_rounds=True) == plain_text(target, PROMPT, GREEDY)[0]
        await answering.done()
        assert idle.verdicts == []
        for peer in (answering, idle):
            assert peer.go_away is not None
            assert "shutting down" in peer.go_away.reason
        assert answering.go_away is not None
        assert answering.go_away.resume_token == token
        expected = plain_text(target, PROMPT, AnswerSettings(ignore_end_of_text=True))
        assert await plain == expected
        await stopping
        assert isinstance(error_from_rpc(await refused(Peer(channel).open())), UnavailableError)


async def test_a_client_that_is_writing_reads_what_a_draining_server_says_last(target: Target) -> None:
    """A call whose write fails gives no more frames, so the server ends it only once its client has."""
    host = make_host(target, peers="one.example:1")
    running = await start(host)
    async with channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(memory=False)
        await running.drain(100.0)
        for _ in range(20):  # crosses with the last word, which has arrived by the end
            await peer.send(ack=pb.Ack(committed=0))
            await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
        closing = asyncio.create_task(running.close())
        await peer.done()
        assert peer.go_away is not None
        assert list(peer.go_away.servers) == ["one.example:1"]
        await closing


FOREVER = 600.0  # a grace that no test waits for


@asynccontextmanager
async def serving_until_signalled(host: Host) -> AsyncIterator[tuple[grpc.aio.Channel, asyncio.Task[None]]]:
    """The whole life of a server, in this process, which takes its signals."""
    announced: asyncio.Queue[str] = asyncio.Queue()
    life = asyncio.create_task(serve(host, lambda where, _: announced.put_nowait(where)))
    try:
        where = asyncio.create_task(announced.get())
        await asyncio.wait((life, where), return_when=asyncio.FIRST_COMPLETED)
        async with grpc.aio.insecure_channel(await where) as channel:
            yield channel, life
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_reload_ends_nothing_and_a_second_sigterm_ends_the_grace(target: Target) -> None:
    host = make_host(target, grace_seconds=FOREVER, peers="one.example:1,[2001:db8::1]:2")
    async with serving_until_signalled(host) as (channel, life):
        waiting = Peer(channel)  # no draft comes, so its answer waits
        await waiting.open()
        await waiting.ask(PROMPT, GREEDY)
        await waiting.verdict()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: host.lifecycle.draining)
        os.kill(os.getpid(), signal.SIGHUP)
        refusal = error_from_rpc(await refused(Peer(channel).open()))
        assert isinstance(refusal, UnavailableError)
        assert refusal.servers == ("[2001:db8::1]:2", "one.example:1")
        assert waiting.go_away is None
        assert not life.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await waiting.done()
        assert waiting.verdicts[-1].finish == pb.FINISH_DRAINING
        assert waiting.go_away is not None
        assert list(waiting.go_away.servers) == ["one.example:1", "[2001:db8::1]:2"]  # others go elsewhere
        await life


async def test_a_forward_that_hangs_does_not_hold_up_the_end(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InferenceThread.stop, "__defaults__", (0.0,))  # else it is waited for
    stepper = HangingStepper(target)
    try:
        async with serving_until_signalled(make_host(target, stepper=stepper, grace_seconds=0.0)) as (channel, life):
            peer = Peer(channel)
            await peer.open(memory=False)
            await peer.ask(PROMPT, GREEDY)
            await until(stepper.entered.is_set)
            os.kill(os.getpid(), signal.SIGTERM)
            await peer.done()
            assert peer.go_away is not None
            await life
    finally:
        stepper.release.set()
        await asyncio.to_thread(stepper.thread.join)  # while there is a loop that it can report to


async def test_clients_are_told_of_a_replica_that_has_come_since_the_last_beat(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an update Ray ends a replica at the moment at which its successor has started."""
    monkeypatch.setattr(server_thread, "BEAT_SECONDS", 60.0)
    others: tuple[str, ...] = ()
    reports: list[Report] = []

    async def tell(report: Report, taken: Mapping[str, Consumption]) -> FleetView:
        reports.append(report)
        return FleetView(others)

    replica = ServerThread(lambda: make_host(target), "r1", "127.0.0.1", [0], tell)
    await asyncio.to_thread(replica.start)
    async with grpc.aio.insecure_channel(reports[0].address) as channel:
        peer = Peer(channel)
        assert not (await peer.open()).servers
        others = ("successor.example:1",)
        ending = asyncio.create_task(asyncio.to_thread(replica.end, 100.0))
        await peer.done()
        await ending
    assert peer.go_away is not None
    assert tuple(peer.go_away.servers) == others
    assert [report.state for report in reports] == [State.SERVES, State.SERVES, State.DRAINS]
