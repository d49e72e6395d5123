"""What operators see of a server: counts of what clients did, and its health."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moa.v1 import moa_pb2 as pb
from moa.v1.moa_pb2_grpc import MoaStub
from moa_server.access.caller import CallerLimits, Right
from moa_server.access.keys import KeyEntry, changing, hash_of, new_key
from moa_server.engine.observer import AnswerStep
from moa_server.loading import load_host
from moa_server.observing.metrics import Metrics
from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.tracing import use_provider
from opentelemetry.sdk.trace import TracerProvider

from tests.net.fetch_source import make_source
from tests.net.observed import observed, observed_host, page, values
from tests.net.server_peer import Peer, channel_to, generate, make_host, plain_text, until

PROMPT = [5, 17, 3, 80, 41]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def status(channel: grpc.aio.Channel, name: str) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
    return int(answer.status)


async def test_every_call_is_answered_by_a_server_with_everything_on(tmp_path: Path) -> None:
    source, metrics, key = make_source(tmp_path), Metrics(), new_key()
    with changing(tmp_path / "keys.toml") as book:
        book[0] = book[0].with_entry(
            KeyEntry("ada", hash_of(key), frozenset(Right), CallerLimits(4, 1 << 24, 100_000, 1000))
        )
    settings = ServerSettings(
        model=str(source.model), drafter=str(source.drafter), execution="int8", port=0, cache_dir=tmp_path,
        keys_file=tmp_path / "keys.toml", requests_per_minute=1000, tokens_per_minute=100_000, share_prefixes="all",
        metrics_port=0, tracing="otlp",
    )  # fmt: skip
    host = load_host(settings, SilentProgress(), observer=metrics)
    hello = pb.Open(protocol_version=PROTOCOL_VERSION, identity=host.services.served.identity, codecs=[pb.CODEC_INT8])
    asks: dict[str, list[Message]] = {
        "Describe": [pb.DescribeRequest()],
        "Generate": [pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(AnswerSettings(max_tokens=4)))],
        "Embed": [pb.EmbedRequest(tokens=PROMPT)],
        "FetchDrafter": [pb.FetchDrafterRequest()],
        "Converse": [pb.ClientFrame(open=hello), pb.ClientFrame(bye=pb.Bye())],
    }
    before = use_provider(TracerProvider(shutdown_on_exit=False))
    try:
        async with observed_host(host, metrics) as (running, observing), channel_to(running) as channel:
            for method in pb.DESCRIPTOR.services_by_name["Moa"].methods:
                ask = asks[method.name]
                call: Any = getattr(MoaStub(channel), method.name)(
                    iter(ask) if method.client_streaming else ask[0], metadata=[("authorization", f"Bearer {key}")]
                )
                answers = [each async for each in call] if method.server_streaming else [await call]
                assert answers, method.name
            found = await values(observing)
    finally:
        use_provider(before)
    assert {found[f'moa_calls_total{{method="{name}"}}'] for name in asks} == {1}
    assert not any(value for name, value in found.items() if name.startswith("moa_refusals_total"))


async def test_a_defect_of_observing_costs_no_call(target: Target) -> None:
    class Defective(Metrics):
        def on_call(self, method: str) -> None:
            raise KeyError(method)

        def on_step(self, step: AnswerStep) -> None:
            raise ValueError

    metrics = Defective()
    with structlog.testing.capture_logs() as logs:
        async with (
            observed_host(make_host(target, observer=metrics), metrics) as (running, _),
            channel_to(running) as channel,
        ):
            answers = [await generate(channel, PROMPT, GREEDY) for _ in range(2)]
    assert answers == [plain_text(target, PROMPT, GREEDY)] * 2
    assert [each["seen"] for each in logs if each["event"] == "observing failed"] == ["on_call", "on_step"]


async def test_an_answer_is_counted(target: Target) -> None:
    async with observed(target) as (running, observing), channel_to(running) as channel:
        await generate(channel, PROMPT, GREEDY)
        await until(lambda: not len(running.host.services.registry))
        found = await values(observing)
    assert found["moa_tokens_written_total"] == 12
    assert found["moa_tokens_read_total"] == len(PROMPT) - 1
    assert found["moa_answer_steps_total"] == found["moa_forward_answers_sum"] == 12
    assert found["moa_run_ahead_steps_total"] == 0  # there is no device to be ahead of
    assert found['moa_answers_total{finish="max_tokens"}'] == 1
    assert found['moa_calls_total{method="Generate"}'] == 1
    assert found["moa_queue_wait_seconds_count"] == found["moa_forward_answers_count"]
    assert found["moa_ready"] == 1
    assert found["moa_sessions_lost_total"] == sum(
        value for name, value in found.items() if name.startswith("moa_refusals_total")
    )


async def test_drafts_and_their_bytes_are_counted(target: Target) -> None:
    text = plain_text(target, PROMPT, GREEDY)[0]
    async with observed(target) as (running, observing), channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(run_ahead=False)
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        await peer.draft([text[1], text[2], (text[3] + 1) % 90])
        await peer.verdict()
        await peer.rows(len(PROMPT))
        found = await values(observing)
        assert found['moa_sessions{state="answering"}'] == 1
        assert found["moa_kv_running_bytes"] >= found["moa_kv_held_bytes"] > 0
        await peer.bye()
    assert found['moa_drafted_nodes_total{origin="device"}'] == 3
    assert found['moa_accepted_nodes_total{origin="device"}'] == 2
    assert found['moa_drafted_nodes_total{origin="server"}'] == 0
    assert found['moa_frame_bytes_total{direction="sent",plane="memory"}'] > 0
    assert found['moa_frame_bytes_total{direction="received",plane="drafts"}'] > 0


async def test_who_comes_back_is_counted_by_what_it_finds(target: Target) -> None:
    async with observed(target) as (running, observing), channel_to(running) as channel:
        first = Peer(channel)
        token = (await first.open()).resume_token
        await first.ask(PROMPT, GREEDY)
        await first.verdict()
        second = Peer(channel)
        await second.open(tokens=first.tokens, resume_token=token)
        await first.done()
        second.call.cancel()
        await until(lambda: running.host.services.registry.detached == 1)
        await Peer(channel).open(tokens=first.tokens, resume_token=token)
        await Peer(channel).open(tokens=first.tokens, resume_token=b"x" * 16)
        found = await values(observing)
    kinds = ("taken_over", "cached", "unknown", "read_again")
    assert [found[f'moa_resumes_total{{kind="{kind}"}}'] for kind in kinds] == [1, 1, 1, 0]


async def test_refusals_are_counted_by_code(target: Target) -> None:
    async with observed(target) as (running, observing), channel_to(running) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(channel, [1] * 5000, GREEDY)
        peer = Peer(channel)
        await peer.send(beat=pb.Beat(stamp=1))
        with pytest.raises(grpc.aio.AioRpcError):
            await peer.done()
        found = await values(observing)
    assert found['moa_refusals_total{code="context_length"}'] == 1
    assert found['moa_refusals_total{code="protocol"}'] == 1


async def test_health_follows_a_server_to_its_end(target: Target) -> None:
    async with observed(target) as (running, observing), channel_to(running) as channel:
        names = ("", "moa.v1.Moa", "liveness", "startup")
        assert [await status(channel, name) for name in names] == [SERVING] * 4
        assert await page(observing, "/readyz") == (200, "ready\n")
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        draining = asyncio.create_task(running.drain(30.0))
        await until(lambda: running.host.lifecycle.draining)
        assert [await status(channel, name) for name in names] == [NOT_SERVING, NOT_SERVING, SERVING, SERVING]
        assert await page(observing, "/readyz") == (503, "draining: running answers end, no new ones begin\n")
        assert await page(observing, "/livez") == (200, "alive\n")
        await peer.draft([1])
        peer.call.cancel()
        await draining


async def test_a_busy_event_loop_makes_metrics_older_but_not_the_port_silent(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moa_server.observing.observing.LOOK_SECONDS", 0.01)
    async with observed(target) as (_, observing):
        got: list[Any] = []
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=lambda: got.append(asyncio.run(page(observing, "/metrics"))))
        thread.start()
        thread.join(20.0)  # the loop stands still meanwhile
        assert loop.is_running()
        assert got[0][0] == 200
        assert "moa_sessions{" in got[0][1]


async def test_a_hanging_forward_is_told(target: Target) -> None:
    release = threading.Event()
    async with observed(target, hang_seconds=1.0) as (running, observing), channel_to(running) as channel:
        running.host.services.engine._thread.submit(release.wait)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(20.0):
                while await status(channel, "liveness") == SERVING:  # noqa: ASYNC110 (the sweep has no event to wait on)
                    await asyncio.sleep(0.05)
            assert await status(channel, "startup") == SERVING
            code, reason = await page(observing, "/livez")
            assert code == 503
            assert reason.startswith("a forward has been stuck for")
            assert (await values(observing))["moa_hanging"] == 1
        finally:
            release.set()
