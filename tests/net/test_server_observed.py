"""What operators see of a server: counts of what clients did, its health, and traces of answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa.v1.moa_pb2_grpc import MoaStub
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_server.access.keys import KeyEntry, changing, hash_of, new_key
from moa_server.access.limits import CallerLimits, Right
from moa_server.app import RunningServer
from moa_server.loading import load_host
from moa_server.observing import Metrics, Observing
from moa_server.service.host import Host
from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.tracing import begin_span, use_provider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.net.client_device import stepper
from tests.net.client_talk import Screen, talking
from tests.net.fetch_source import make_source
from tests.net.server_peer import Peer, channel_to, generate, make_host, plain_text, serving, until


@asynccontextmanager
async def observed(target: Target, **settings: Any) -> AsyncIterator[tuple[RunningServer, Observing]]:
    """The server, and what operators see of it."""
    metrics = Metrics()
    async with observed_host(make_host(target, observer=metrics, **settings), metrics) as both:
        yield both


@asynccontextmanager
async def observed_host(host: Host, metrics: Metrics) -> AsyncIterator[tuple[RunningServer, Observing]]:
    """The same with any host, which tells `metrics` what happens."""
    observing = Observing(metrics, "127.0.0.1", 0, host.services.settings.hang_seconds)
    try:
        async with serving(host) as running:
            observing.follow(host, running.tls)
            yield running, observing
    finally:
        observing.stop()


async def values(observing: Observing) -> dict[str, float]:
    """All samples by name with labels, made now."""
    from prometheus_client.exposition import generate_latest

    text = (await asyncio.to_thread(generate_latest, observing.registry)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


PROMPT = [5, 17, 3, 80, 41]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)


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


LONG = AnswerSettings(max_tokens=60, ignore_end_of_text=True)


class Recorded:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = use_provider(provider)
    try:
        yield Recorded(exporter)
    finally:
        use_provider(before)
        provider.shutdown()


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def facts_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_one_tree_from_the_question_to_the_last_verdict(target: Target, recorded: Recorded) -> None:
    question = begin_span("question")
    screen = Screen()
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        talking(target, f"127.0.0.1:{running.port}") as engine,
    ):
        async for event in engine.ask(PROMPT, LONG, traceparent=question.traceparent):
            screen.take(event)
    question.end()
    assert screen.committed == plain_text(target, PROMPT, LONG)[0]
    root, served = recorded.one("question"), recorded.one("serve answer")
    assert {trace_of(span) for span in recorded.spans} == {trace_of(root)}
    assert parent_of(served) == span_id(root)
    for name in ("queue", "read prompt", "write"):
        assert parent_of(recorded.one(name)) == span_id(served)
    assert recorded.one("queue").end_time == recorded.one("read prompt").start_time
    assert recorded.one("read prompt").end_time == recorded.one("write").start_time
    assert (facts_of(served)["moa.written"], facts_of(served)["moa.finish"]) == (LONG.max_tokens, "max_tokens")
    assert all(
        isinstance(value, int | float | bool | str) for span in recorded.spans for value in facts_of(span).values()
    )


async def test_an_answer_over_a_cut_stays_one_tree(target: Target, recorded: Recorded) -> None:
    settings = DraftingSettings(rounds=4, standalone=StandaloneRule(end_ms=60_000.0))
    screen, question = Screen(), begin_span("question")
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        talking(target, f"127.0.0.1:{running.port}", settings) as engine,
    ):
        async for event in engine.ask(PROMPT, LONG, traceparent=question.traceparent):
            screen.take(event)
            if len(screen.committed) > 20 and not screen.cuts:
                screen.cuts += 1
                engine.go_offline()
            elif screen.cuts and len(screen.provisional) >= 2:
                engine.go_online()
    question.end()
    assert screen.committed == plain_text(target, PROMPT, LONG)[0]
    parts = recorded.named("serve answer")
    assert {parent_of(part) for part in parts} == {span_id(recorded.one("question"))}
    assert [facts_of(part)["moa.finish"] for part in parts] == ["detached", "max_tokens"]
    assert not parts[0].status.is_ok
