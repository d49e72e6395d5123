"""Limits, failures, slow clients, health and the end of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moa.v1 import moa_pb2 as pb
from moa_server.app import RunningServer, start
from moa_server.feed import Chunk
from moa_server.session import Judgement, Work
from moa_server.stepper import CodedRows, Holdings, Stepper
from moa_server.target import Target
from moa_shared.answer import AnswerSettings, Finish
from moa_shared.errors import ConfigError, InternalError, OverloadedError, UnavailableError
from moa_shared.wire import error_from_rpc

from tests.net.server_peer import VOCAB, Peer, generate, make_host, plain_text, serving, toy_source, until

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
POISON = [13, 13, 13]


def channel_to(running: RunningServer) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{running.port}")


async def finish_answer(peer: Peer) -> Sequence[int]:
    while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.draft([])
        await peer.verdict()
    return peer.tokens


# ---------------------------------------------------------------- limits


async def test_over_the_limit_a_session_is_refused(target: Target) -> None:
    async with serving(make_host(target, max_sessions=2)) as running, channel_to(running) as channel:
        peers = [Peer(channel), Peer(channel)]
        for peer in peers:
            await peer.open()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Peer(channel).open()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(error_from_rpc(caught.value), OverloadedError)
        trailing = dict(caught.value.trailing_metadata() or ())
        assert int(trailing["moa-retry-after-ms"]) > 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(channel, PROMPT, GREEDY)
        assert isinstance(error_from_rpc(caught.value), OverloadedError)
        await peers[0].bye()
        await Peer(channel).open()


async def test_the_oldest_detached_session_makes_room(target: Target) -> None:
    async with serving(make_host(target, max_sessions=2)) as running, channel_to(running) as channel:
        first, second = Peer(channel), Peer(channel)
        tokens = [(await first.open()).resume_token, (await second.open()).resume_token]
        for count, peer in enumerate((first, second), start=1):
            peer.call.cancel()
            await until(lambda count=count: running.host.registry.detached == count)
        third = await Peer(channel).open()
        assert [slot.token for slot in running.host.registry.slots] == [tokens[1], third.resume_token]


async def test_detached_sessions_are_dropped_after_their_time(target: Target) -> None:
    async with serving(make_host(target, detached_seconds=0.01)) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open()
        peer.call.cancel()
        await until(lambda: len(running.host.registry) == 0)


# ---------------------------------------------------------------- failures


class FailingStepper(Stepper):
    """Fails on prompts that hold the poison, in the forward or in the encoding of memory."""

    where = "choose"

    def choose(self, holdings: Holdings, work: Work) -> Judgement | None:
        if self.where == "choose" and list(work.feed[: len(POISON)]) == POISON:
            raise RuntimeError("the device is on fire")
        return super().choose(holdings, work)

    def code(self, holdings: Holdings, chunk: Chunk) -> CodedRows:
        if self.where == "code" and holdings.cache.length == len(POISON):
            raise RuntimeError("the device is on fire")
        return super().code(holdings, chunk)


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
        assert "RuntimeError" in error.message
        assert "on fire" not in error.message  # the log has it
        assert await finish_answer(good) == [*PROMPT, *plain_text(target, PROMPT, GREEDY)[0]]
        assert len(running.host.registry) == 1
    assert "the device is on fire" in capsys.readouterr().out


async def test_a_generate_call_whose_step_fails(target: Target) -> None:
    stepper = FailingStepper(target)
    async with serving(make_host(target, stepper=stepper)) as running, channel_to(running) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(channel, POISON, GREEDY)
        assert isinstance(error_from_rpc(caught.value), InternalError)
        assert len(running.host.registry) == 0


async def test_a_client_that_does_not_read_holds_up_nobody(target: Target) -> None:
    """Its memory does not fit into the buffers on the way, so that a write to it blocks, and it is detached."""
    prompt = [(7 * index) % VOCAB for index in range(150)]
    settings = AnswerSettings(max_tokens=40, ignore_end_of_text=True)
    host = make_host(target, write_seconds=0.2)
    async with (
        serving(host) as running,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{running.port}", [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        ) as deaf_channel,
        channel_to(running) as channel,
    ):
        deaf = Peer(deaf_channel)
        await deaf.open(credit_bytes=1 << 30, reused_state=True)
        for _ in range(200):  # the same turn again and again: each sends the prompt's rows anew
            ask = pb.Ask(base=0, tokens=prompt, answer_start=len(prompt))
            await deaf.send(ask=ask)
        good = Peer(channel)
        await good.open()
        await good.ask(PROMPT, settings)
        assert await finish_answer(good) == [*PROMPT, *plain_text(target, PROMPT, settings)[0]]
        await until(lambda: running.host.registry.detached == 1)


# ---------------------------------------------------------------- health and the end


async def test_health_says_serving(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "moa.v1.Moa"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_draining_tells_every_client_and_ends(target: Target) -> None:
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
        await until(lambda: len(host.registry) == 3)
        stopping = asyncio.create_task(running.stop(grace_seconds=1.0))
        await answering.done()
        await idle.done()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert answering.verdicts[-1].finish == pb.FINISH_DRAINING
        assert idle.verdicts == []
        for peer in (answering, idle):
            assert peer.go_away is not None
            assert "shutting down" in peer.go_away.reason
        assert answering.go_away is not None
        assert answering.go_away.resume_token == token
        tokens, finish = await plain
        assert finish is Finish.DRAINING
        expected, _ = plain_text(target, PROMPT, AnswerSettings(ignore_end_of_text=True))
        assert tokens == expected[: len(tokens)]
        await stopping
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Peer(channel).open()
        assert isinstance(error_from_rpc(caught.value), UnavailableError)


async def test_a_draining_server_takes_in_nothing_new(server: RunningServer, channel: grpc.aio.Channel) -> None:
    server.host.drain()
    for attempt in (Peer(channel).open(), generate(channel, PROMPT, GREEDY)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attempt
        assert isinstance(error_from_rpc(caught.value), UnavailableError)


async def test_a_port_in_use_is_refused_in_words(server: RunningServer, target: Target) -> None:
    host = make_host(target, port=server.port)
    with pytest.raises(ConfigError, match=rf"Cannot listen on 127\.0\.0\.1:{server.port}"):
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

    monkeypatch.setattr("moa_server.app.SWEEP_SECONDS", 0.0)
    host = make_host(target)
    monkeypatch.setattr(host.registry, "expire", expire)
    async with serving(host):
        await until(lambda: len(calls) > 1)
    assert "sweeping failed" in capsys.readouterr().out
