"""Limits, failures, slow clients, health and the end of a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from functools import partial

import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.access.caller import Caller
from moa_server.app import start
from moa_server.engine.stepper import CodedRows, SessionTensors, Stepper, Work
from moa_server.memory.feed import Chunk
from moa_server.memory.row_store import most_nbytes
from moa_server.running.running_server import RunningServer
from moa_server.service import host as host_module
from moa_server.verifier import Target, TargetOutput
from moa_shared.errors import ConfigError, ContextLengthError, InternalError, OverloadedError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc

from tests.net.server_peer import (
    CONTEXT,
    ROW_WIDTH,
    VOCAB,
    Peer,
    channel_to,
    generate,
    make_host,
    plain_text,
    serving,
    toy_source,
    trailer,
    until,
)
from tests.support.messages import raises

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
POISON = [13, 13, 13]


async def finish_answer(peer: Peer) -> Sequence[int]:
    while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.draft([])
        await peer.verdict()
    return peer.tokens


# ---------------------------------------------------------------- limits


def detached(running: RunningServer, count: int) -> bool:
    return running.host.services.registry.detached == count


async def refused(attempt: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt
    return caught.value


async def test_over_the_limit_of_streams_one_is_refused_and_told_when_to_try_again(target: Target) -> None:
    async with serving(make_host(target, max_streams=2)) as running, channel_to(running) as channel:
        peers = [Peer(channel), Peer(channel)]
        for peer in peers:
            await peer.open()
            await peer.ask(PROMPT, GREEDY)
        error = await refused(Peer(channel).open())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(error_from_rpc(error), OverloadedError)
        assert int(trailer(error, "moa-retry-after-ms")) > 0
        assert isinstance(error_from_rpc(await refused(generate(channel, PROMPT, GREEDY))), OverloadedError)
        await peers[0].bye()
        await Peer(channel).open()


async def test_a_server_says_how_much_of_it_is_taken(target: Target) -> None:
    async with serving(make_host(target, max_streams=2)) as running, channel_to(running) as channel:
        stub, peer = moa_pb2_grpc.MoaStub(channel), Peer(channel)
        await peer.open()
        assert (await stub.Describe(pb.DescribeRequest())).load == 0
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        assert (await stub.Describe(pb.DescribeRequest())).load == 0.5
        await finish_answer(peer)
        await until(lambda: running.host.load == 0)
        running.host.lifecycle.drain()
        assert (await stub.Describe(pb.DescribeRequest())).load == 1


async def test_an_idle_stream_makes_room_and_its_session_is_kept(target: Target) -> None:
    async with serving(make_host(target, max_streams=2)) as running, channel_to(running) as channel:
        peers = [Peer(channel), Peer(channel)]
        token = (await peers[0].open(tokens=PROMPT)).resume_token
        await peers[1].open(tokens=PROMPT)
        third = Peer(channel)
        await third.open()
        assert isinstance(error_from_rpc(await refused(peers[0].done())), OverloadedError)
        assert running.host.services.registry.find(token, Caller()) is not None
        await third.bye()
        assert (await Peer(channel).open(tokens=PROMPT, resume_token=token)).resume_token == token


async def test_the_oldest_detached_session_makes_room(target: Target) -> None:
    async with serving(make_host(target, max_sessions=2)) as running, channel_to(running) as channel:
        first, second = Peer(channel), Peer(channel)
        tokens = [(await first.open(tokens=PROMPT)).resume_token, (await second.open(tokens=PROMPT)).resume_token]
        for count, peer in enumerate((first, second), start=1):
            peer.call.cancel()
            await until(partial(detached, running, count))
        third = await Peer(channel).open()
        assert [live.token for live in running.host.services.registry.live_sessions] == [tokens[1], third.resume_token]


async def test_an_open_that_is_refused_takes_nobody_s_place(target: Target) -> None:
    async with serving(make_host(target, max_sessions=1)) as running, channel_to(running) as channel:
        peer = Peer(channel)
        token = (await peer.open(tokens=PROMPT)).resume_token
        peer.call.cancel()
        await until(lambda: running.host.services.registry.detached == 1)
        await refused(Peer(channel).open(tokens=[VOCAB]))
        await refused(Peer(channel).open(memory_from=1))
        assert [live.token for live in running.host.services.registry.live_sessions] == [token]


async def test_the_server_knows_how_many_conversations_fit(target: Target) -> None:
    """As many as can ask; one more is refused."""
    settings = AnswerSettings(max_tokens=CONTEXT - len(PROMPT), ignore_end_of_text=True)
    async with serving(make_host(target, kv_bytes=4_000_000)) as running, channel_to(running) as channel:
        fits = running.host.services.conversations_that_fit(CONTEXT)
        assert fits > 1
        peers = [Peer(channel) for _ in range(fits + 1)]
        for peer in peers:
            await peer.open(reused_state=True)
            await peer.ask(PROMPT, settings)
            if peer is not peers[-1]:
                await peer.verdict()  # one after the other: streams are not served in the order of their questions
        assert isinstance(error_from_rpc(await refused(peers[-1].done())), OverloadedError)


async def test_an_idle_session_loses_its_keys_and_values_and_reads_its_text_again(target: Target) -> None:
    """The budget holds one conversation. Memory comes again as it was, and the text is the same."""
    settings = AnswerSettings(max_tokens=100, ignore_end_of_text=True)
    need = target.new_cache().most_nbytes(CONTEXT) + most_nbytes(ROW_WIDTH, CONTEXT)
    async with serving(make_host(target, kv_bytes=need)) as running, channel_to(running) as channel:
        first, second = Peer(channel), Peer(channel)
        await first.open()
        await first.ask(PROMPT, settings)
        await first.verdict()
        await second.open(run_ahead=True)
        await second.ask(PROMPT, settings)
        error = error_from_rpc(await refused(second.done()))  # the first one's answer is under way
        assert isinstance(error, OverloadedError)
        assert str(error) == snapshot(
            "The 426.0 kB of keys and values of this server are all in use. Try again in a few seconds."
        )
        again = Peer(channel)
        await again.open()
        expected = [*PROMPT, *plain_text(target, PROMPT, settings)[0]]
        assert await finish_answer(first) == expected
        await again.ask(PROMPT, settings)
        assert await finish_answer(again) == expected
        live_sessions = {live.token: live for live in running.host.services.registry.live_sessions}
        assert first.opened is not None
        live = live_sessions[first.opened.resume_token]
        assert (live.session.cached, live.session.tokens) == (0, expected)
        await until(lambda: live.tensors.nbytes == 0)
        seen = len(first.verdicts)
        await first.ask([3], GREEDY)
        while len(first.verdicts) == seen or first.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
            await first.draft([])
            await first.verdict()
        await first.send(credit=pb.Credit(bytes=1 << 20))  # more than is sent at first
        assert first.tokens == [*expected, 3, *plain_text(target, [*expected, 3], GREEDY)[0]]
        await first.rows(len(first.tokens) - 1)


async def test_an_answer_that_can_never_fit_is_refused_in_words(target: Target) -> None:
    async with serving(make_host(target, kv_bytes=1000)) as running, channel_to(running) as channel:
        error = error_from_rpc(await refused(generate(channel, PROMPT, GREEDY)))
        assert isinstance(error, ContextLengthError)
        assert str(error) == snapshot(
            "The answer may take 196.6 kB of keys and values; there are 1.0 kB for all. Ask for fewer tokens, shorten the conversation, or raise the server's --kv-bytes."
        )
        assert len(running.host.services.registry) == 0


async def test_detached_sessions_are_dropped_after_their_time(target: Target) -> None:
    async with serving(make_host(target, detached_seconds=0.01)) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(tokens=PROMPT)
        peer.call.cancel()
        await until(lambda: len(running.host.services.registry) == 0)


async def test_streams_without_an_open_make_room_for_new_ones(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MOST_UNOPENED", 3)
    async with serving(make_host(target, open_seconds=100.0)) as running, channel_to(running) as channel:
        silent = [Peer(channel) for _ in range(10)]
        waiting = {asyncio.create_task(peer.done()): peer for peer in silent}  # they come in any order
        while len(waiting) > 3:
            refused, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in refused:
                error = task.exception()
                assert isinstance(error, grpc.aio.AioRpcError)
                assert isinstance(error_from_rpc(error), OverloadedError)
                del waiting[task]
        await until(lambda: len(running.host.lifecycle._unopened) == 3)  # the last ones are here too
        await Peer(channel).open()  # takes the place of one more
        refused, kept = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (len(refused), len(kept)) == (1, 2)
        for task in kept:
            task.cancel()


async def test_connections_beyond_the_limit_are_not_taken_in(target: Target) -> None:
    async with serving(make_host(target, max_connections=2)) as running:
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
        address = f"127.0.0.1:{running.port}"
        async with (
            grpc.aio.insecure_channel(address, options) as first,
            grpc.aio.insecure_channel(address, options) as second,
            grpc.aio.insecure_channel(address, options) as third,
        ):
            await Peer(first).open()
            await Peer(second).open()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Peer(third).open()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_metadata_has_a_limit(target: Target, channel: grpc.aio.Channel) -> None:
    peer = Peer(channel, metadata=(("x", "y" * 40_000),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.open()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_log_names_sessions_by_number(target: Target, channel: grpc.aio.Channel) -> None:
    peer = Peer(channel)
    with structlog.testing.capture_logs() as events:
        token = (await peer.open()).resume_token
        await peer.bye()
    assert {event["event"] for event in events} >= {"session opened", "session ended"}
    assert token.hex()[:4] not in str(events)
    assert len({event["session"] for event in events if "session" in event}) == 1


async def test_answers_beyond_end_of_text_are_the_operators_to_allow(target: Target) -> None:
    host = make_host(target, allow_ignore_end_of_text=False)
    async with serving(host) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        for refused in (peer.done(), generate(channel, PROMPT, GREEDY)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await refused
            error = error_from_rpc(caught.value)
            assert isinstance(error, ConfigError)
            assert str(error) == snapshot(
                "This server ends answers at end-of-text. Ask without ignore_end_of_text, or start the server with --allow-ignore-end-of-text."
            )
        assert await generate(channel, PROMPT, AnswerSettings(max_tokens=3))


# ---------------------------------------------------------------- failures


class FailingStepper(Stepper):
    """Fails on prompts that hold the poison, in the forward or in the encoding of memory."""

    where = "choose"

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        if self.where == "choose" and any(list(each.plan.feed[: len(POISON)]) == POISON for each in work):
            raise RuntimeError("the device is on fire")
        return super().forward_all(work)

    def _encode(self, chunks: Sequence[tuple[SessionTensors, Chunk]]) -> None:
        if self.where == "code" and any(tensors.cache.length == len(POISON) for tensors, _ in chunks):
            raise RuntimeError("the device is on fire")  # then each session's rows are coded by themselves
        super()._encode(chunks)

    def code(self, tensors: SessionTensors, chunk: Chunk) -> CodedRows:
        if self.where == "code" and tensors.cache.length == len(POISON):
            raise RuntimeError("the device is on fire")
        return super().code(tensors, chunk)


@pytest.mark.parametrize("where", ["choose", "code"])
async def test_a_step_that_fails_ends_its_session_alone(
    target: Target, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stepper = FailingStepper(target, [toy_source(target)])
    stepper.where = where
    async with serving(make_host(target, stepper=stepper)) as running, channel_to(running) as channel:
        good, bad = Peer(channel), Peer(channel)
        await good.open()
        await bad.open()
        await good.ask(PROMPT, GREEDY)
        await bad.ask(POISON, GREEDY)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bad.done()
        error = error_from_rpc(caught.value)
        assert isinstance(error, InternalError)
        assert str(error) == snapshot(
            "The server failed in this session (RuntimeError). This is a defect of moa: please report it with the log."
        )
        assert "on fire" not in error.message  # the log has it
        assert await finish_answer(good) == [*PROMPT, *plain_text(target, PROMPT, GREEDY)[0]]
        assert len(running.host.services.registry) == 1
    assert "the device is on fire" in capsys.readouterr().out


async def test_a_generate_call_whose_step_fails(target: Target) -> None:
    stepper = FailingStepper(target)
    async with serving(make_host(target, stepper=stepper)) as running, channel_to(running) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(channel, POISON, GREEDY)
        assert isinstance(error_from_rpc(caught.value), InternalError)
        assert len(running.host.services.registry) == 0


async def test_a_client_that_does_not_read_holds_up_nobody(target: Target) -> None:
    """Its memory does not fit into the buffers on the way, so that a write to it blocks, and it is detached."""
    prompt = [(7 * index) % VOCAB for index in range(150)]
    settings = AnswerSettings(max_tokens=40, ignore_end_of_text=True)
    host = make_host(target, write_seconds=1.0)  # a busy machine may take some tenths for the other one
    async with (
        serving(host) as running,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{running.port}", [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        ) as deaf_channel,
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
        await good.ask(PROMPT, settings)
        assert await finish_answer(good) == [*PROMPT, *plain_text(target, PROMPT, settings)[0]]
        await until(lambda: running.host.services.registry.detached == 1)


# ---------------------------------------------------------------- health and the end


class HangingStepper(Stepper):
    """Does not come back from a forward before it is let."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.entered, self.release = threading.Event(), threading.Event()

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
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
        stamps: list[int] = []
        while not stamps:
            frame = await peer.receive()
            assert frame is not None
            if frame.WhichOneof("frame") == "beat":
                stamps.append(frame.beat.stamp)
        assert stamps == [2]


async def test_health_says_serving(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "moa.v1.Moa"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


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
        stopping = asyncio.create_task(running.stop(grace_seconds=30.0))
        await idle.done()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert answering.go_away is None
        assert await finish_answer(answering) == [*PROMPT, *plain_text(target, PROMPT, GREEDY)[0]]
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
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Peer(channel).open()
        assert isinstance(error_from_rpc(caught.value), UnavailableError)


async def test_after_the_grace_an_answer_is_ended_and_its_client_told(target: Target) -> None:
    host = make_host(target)
    running = await start(host)
    async with channel_to(running) as channel:
        slow = Peer(channel)  # no draft comes, so its answer waits
        await slow.open()
        await slow.ask(PROMPT, GREEDY)
        await slow.verdict()
        stopping = asyncio.create_task(running.stop(grace_seconds=0.1))
        await slow.done()
        assert slow.verdicts[-1].finish == pb.FINISH_DRAINING
        assert slow.go_away is not None
        await stopping


async def test_a_new_question_in_a_draining_stream_is_sent_away(target: Target) -> None:
    async with serving(make_host(target)) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        running.host.lifecycle.drain()
        await peer.ask([3, 4], GREEDY)
        await peer.done()
        assert peer.go_away is not None
        assert len(peer.verdicts) == 1


async def test_a_draining_server_takes_in_nothing_new(server: RunningServer, channel: grpc.aio.Channel) -> None:
    server.host.lifecycle.drain()
    for attempt in (Peer(channel).open(), generate(channel, PROMPT, GREEDY)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attempt
        assert isinstance(error_from_rpc(caught.value), UnavailableError)


async def test_a_port_in_use_is_refused_in_words(server: RunningServer, target: Target) -> None:
    host = make_host(target, port=server.port)
    with raises(
        ConfigError,
        snapshot(
            "Cannot listen on 127.0.0.1:PORT: it is in use, or no address of this machine. Choose another --host or --port (0: any free port)."
        ),
    ):
        await start(host)


async def test_a_sweep_that_fails_is_logged_and_tried_again(
    target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def expire() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a defect")
        return 0

    monkeypatch.setattr("moa_server.running.running_server.SWEEP_SECONDS", 0.0)
    host = make_host(target)
    monkeypatch.setattr(host.services.registry, "expire", expire)
    async with serving(host):
        await until(lambda: len(calls) > 1)
    assert "sweeping failed" in capsys.readouterr().out


async def test_a_client_that_is_writing_reads_what_a_draining_server_says_last(target: Target) -> None:
    """A call whose write fails gives no more frames, so the server ends it only once its client has."""
    host = make_host(target, peers="one.example:1")
    running = await start(host)
    async with channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(memory=False)
        await running.drain(30.0)
        for _ in range(20):  # crosses with the last word, which has arrived by the end
            await peer.send(ack=pb.Ack(committed=0))
            await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
        closing = asyncio.create_task(running.close())
        await peer.done()
        assert peer.go_away is not None
        assert list(peer.go_away.servers) == ["one.example:1"]
        await closing
