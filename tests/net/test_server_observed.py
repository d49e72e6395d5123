"""What operators see of a server, counts, health and traces of answers; and what devices fetch from it, in ranges of files."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.access.keys import KeyEntry, changing, hash_of, new_key
from moa_server.access.limits import CallerLimits, Right
from moa_server.app import RunningServer
from moa_server.loading import load_host
from moa_server.observing import Metrics, Observing
from moa_server.service import fetch
from moa_server.service.host import Host
from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_shared.errors import NotFoundError
from moa_shared.models import resolve
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import CODE_KEY, PROTOCOL_VERSION
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.tracing import begin_span, use_provider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.net.client_device import Source, device, make_source, stepper
from tests.net.client_talk import talking
from tests.net.server_peer import (
    GREEDY,
    PROMPT,
    Peer,
    channel_to,
    generate,
    make_host,
    plain_text,
    serving,
    trailer,
    until,
)


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
    host = load_host(settings, Progress(), observer=metrics)
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
                call: Any = getattr(moa_pb2_grpc.MoaStub(channel), method.name)(
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
    assert (found["moa_tokens_written_total"], found["moa_tokens_read_total"]) == (12, len(PROMPT) - 1)
    assert found["moa_answer_steps_total"] == found["moa_forward_answers_sum"] == 12
    assert found["moa_run_ahead_steps_total"] == 0  # there is no device to be ahead of
    assert (found['moa_answers_total{finish="max_tokens"}'], found['moa_calls_total{method="Generate"}']) == (1, 1)
    assert (found["moa_queue_wait_seconds_count"], found["moa_ready"]) == (found["moa_forward_answers_count"], 1)
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


@pytest.fixture
def recorded() -> Iterator[InMemorySpanExporter]:
    """Holds the spans that have ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = use_provider(provider)
    try:
        yield exporter
    finally:
        use_provider(before)
        provider.shutdown()


def below(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> list[ReadableSpan]:
    """Those of them whose parent that one is, in its trace."""
    assert parent.context is not None
    found = [span for span in spans if span.parent is not None and span.parent.span_id == parent.context.span_id]
    assert all(span.context is not None and span.context.trace_id == parent.context.trace_id for span in found)
    return found


def facts_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_client_s_answer_belongs_to_its_question(target: Target, recorded: InMemorySpanExporter) -> None:
    question, host = begin_span("question"), make_host(target, stepper=stepper(target, 0))
    async with serving(host) as running, talking(f"127.0.0.1:{running.port}", device(target, "chain")) as engine:
        async for _ in engine.ask(PROMPT, GREEDY, traceparent=question.traceparent):
            pass
    question.end()
    *spans, root = recorded.get_finished_spans()
    assert below(spans, root) == [span for span in spans if span.name == "serve answer"] != []


async def test_an_answer_over_a_cut_stays_one_tree(target: Target, recorded: InMemorySpanExporter) -> None:
    question = begin_span("question")
    async with serving(make_host(target)) as running, channel_to(running) as channel:
        first, second = Peer(channel), Peer(channel)
        first.traceparent = second.traceparent = question.traceparent
        token = (await first.open()).resume_token
        await first.ask(PROMPT, GREEDY)
        await first.verdict()
        first.call.cancel()
        await until(lambda: running.host.services.registry.detached == 1)
        await second.resume(first.tokens, GREEDY, len(PROMPT), resume_token=token)
        assert await second.finish(in_rounds=True) == plain_text(target, PROMPT, GREEDY)[0]
        await second.bye()
    question.end()
    *spans, root = recorded.get_finished_spans()
    lost, served = below(spans, root)
    assert [facts_of(part)["moa.finish"] for part in (lost, served)] == ["detached", "max_tokens"]
    assert [facts_of(part)["moa.written"] for part in (lost, served)] == [1, GREEDY.max_tokens - 1]
    assert not lost.status.is_ok
    parts = below(spans, lost)
    assert [part.name for part in parts] == ["queue", "read prompt", "write"]
    assert all(one.end_time == two.start_time for one, two in pairwise(parts))
    assert all(isinstance(value, int | float | bool | str) for span in spans for value in facts_of(span).values())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source", reused_layers=1)


@asynccontextmanager
async def stub(source: Source, cache: Path, **changes: Any) -> AsyncIterator[Any]:
    settings = ServerSettings(
        model=str(source.model), drafter=str(source.drafter), execution="int8", port=0, cache_dir=cache, **changes
    )
    async with serving(load_host(settings, Progress())) as running, channel_to(running) as channel:
        yield moa_pb2_grpc.MoaStub(channel)


async def manifest(client: Any) -> pb.PartManifest:
    [answer] = [part async for part in client.FetchDrafter(pb.FetchDrafterRequest())]
    assert isinstance(answer, pb.FetchDrafterResponse)
    return answer.manifest


async def read(client: Any, entry: pb.PartFile) -> bytes:
    data = b""
    while len(data) < entry.size:
        request = pb.FetchDrafterRequest(name=entry.name, offset=len(data), sha256=entry.sha256)
        async for part in client.FetchDrafter(request):
            assert part.chunk.offset == len(data)
            data += part.chunk.data
    return data


async def test_every_file_of_the_manifest_can_be_read_in_ranges(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RANGE_BYTES", 10_000)
    async with stub(source, tmp_path / "cache") as client:
        told = await manifest(client)
        for entry in told.files:
            data = await read(client, entry)
            assert (len(data), hashlib.sha256(data).digest()) == (entry.size, entry.sha256)
    kinds = [entry.kind for entry in told.files]
    assert kinds.count(pb.PART_DRAFTER) == 1
    assert {kind for precision in fetch.PRECISIONS.values() for kind in precision} < set(kinds)
    assert told.identity.drafter_fingerprint == next(e.sha256 for e in told.files if e.kind == pb.PART_DRAFTER)
    assert told.identity.target_fingerprint.hex() == resolve(str(source.model), tmp_path / "cache").fingerprint


async def test_what_is_made_once_is_used_again_and_what_is_damaged_is_made_again(
    source: Source, tmp_path: Path
) -> None:
    manifests, made = list[pb.PartManifest](), tmp_path / "none"
    for damaged in (False, False, True):
        before = made.stat().st_ino if made.exists() else 0
        if damaged:
            made.write_bytes(b"damaged")
        async with stub(source, tmp_path / "cache") as client:
            manifests.append(await manifest(client))
        [made] = (tmp_path / "cache/served-parts").glob("*/embeddings.bf16.safetensors")
        assert not before or (made.stat().st_ino == before) is not damaged
    assert manifests[0] == manifests[1] == manifests[2]


async def test_what_is_not_for_clients_is_refused(source: Source, tmp_path: Path) -> None:
    async with stub(source, tmp_path / "cache") as client:
        for name, sha256, code in (
            ("../../etc/passwd", b"", "not_found"),
            ("model.safetensors", b"", "not_found"),
            ("config.json", b"another", "mismatch"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.FetchDrafter(pb.FetchDrafterRequest(name=name, sha256=sha256)).read()
            assert trailer(refused.value, CODE_KEY) == code


async def test_several_drafters_and_none(source: Source, tmp_path: Path) -> None:
    files = resolve(str(source.model), tmp_path / "cache")
    second = tmp_path / "second.safetensors"
    second.write_bytes(source.drafter.read_bytes() + b" ")
    told: list[pb.FetchDrafterResponse] = []

    async def send(message: pb.FetchDrafterResponse) -> None:
        told.append(message)

    several = fetch.DrafterFiles(
        files, pb.Identity(), [fetch.DrafterFile(source.drafter, 1), fetch.DrafterFile(second, 2)], tmp_path / "cache"
    )
    with pytest.raises(NotFoundError, match="The server offers no drafter"):
        await several.answer(pb.FetchDrafterRequest(), send, "nobody")
    several.prepare()
    await several.answer(pb.FetchDrafterRequest(), send, "nobody")
    kinds = {entry.name: entry.kind for entry in told[0].manifest.files}
    assert list(kinds.values()).count(pb.PART_DRAFTER) == 2
    assert kinds["layers-2.packed.safetensors"] == pb.PART_LAYERS_PACKED
    without = fetch.DrafterFiles(files, pb.Identity(), [], tmp_path / "cache")
    without.prepare()
    await without.answer(pb.FetchDrafterRequest(), send, "nobody")
    assert {entry.kind for entry in told[1].manifest.files} == {pb.PART_TEXT}
