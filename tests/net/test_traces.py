"""Traces of answers over a real server: one tree from the question to the last verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Event
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_server.verifier import Target
from moa_shared.errors import MoaError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.tracing import begin_span, is_traced, use_provider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.net.client_device import stepper
from tests.net.client_talk import PROMPT, Screen, talking_over_a_link, watch
from tests.net.server_peer import Peer, channel_to, generate, make_host, plain_text, serving, until

LONG = AnswerSettings(max_tokens=60, ignore_end_of_text=True)
SHORT = replace(LONG, max_tokens=5)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
    async with talking_over_a_link(target) as (_, engine):
        async for event in engine.ask(PROMPT, LONG, traceparent=question.traceparent):
            screen.take(event)
    question.end()
    assert screen.committed == plain_text(target, PROMPT, LONG)[0]
    root = recorded.one("question")
    answer, served = recorded.one("answer"), recorded.one("serve answer")
    assert {trace_of(span) for span in recorded.spans} == {trace_of(root)}
    assert parent_of(answer) == span_id(root)
    assert parent_of(recorded.one("open stream")) == parent_of(served) == span_id(answer)
    for name in ("queue", "read prompt", "write"):
        assert parent_of(recorded.one(name)) == span_id(served)
    assert recorded.one("queue").end_time == recorded.one("read prompt").start_time
    assert recorded.one("read prompt").end_time == recorded.one("write").start_time
    assert facts_of(served)["moa.written"] == facts_of(answer)["moa.tokens"] == LONG.max_tokens
    assert facts_of(served)["moa.finish"] == facts_of(answer)["moa.finish"] == "max_tokens"
    assert [event.name for event in answer.events] == ["first token"]
    assert all(
        isinstance(value, int | float | bool | str) for span in recorded.spans for value in facts_of(span).values()
    )


async def test_an_answer_over_a_cut_stays_one_tree(target: Target, recorded: Recorded) -> None:
    settings = DraftingSettings(standalone=StandaloneRule(end_ms=60_000.0), run_ahead=False)
    screen = Screen()
    async with talking_over_a_link(target, settings) as (_, engine):

        async def cut(event: Event) -> None:
            if len(screen.committed) > 20 and not screen.cuts:
                screen.cuts += 1
                engine.go_offline()
            elif screen.cuts and len(screen.provisional) >= 2:
                engine.go_online()

        await watch(engine, screen, PROMPT, LONG, cut)
    assert screen.committed == plain_text(target, PROMPT, LONG)[0]
    answer = recorded.one("answer")
    parts = recorded.named("serve answer")
    assert len(parts) == 2
    assert {parent_of(part) for part in parts} == {span_id(answer)}
    assert {trace_of(span) for span in recorded.spans} == {trace_of(answer)}
    assert [facts_of(part)["moa.finish"] for part in parts] == ["detached", "max_tokens"]
    assert not parts[0].status.is_ok
    assert parent_of(recorded.one("without server")) == span_id(answer)
    assert len(recorded.named("open stream")) == 2


async def test_generate_takes_its_parent_from_the_metadata(target: Target, recorded: Recorded) -> None:
    async with serving(make_host(target, stepper=stepper(target, 0))) as running, channel_to(running) as channel:
        await generate(channel, PROMPT, SHORT, metadata=(("traceparent", PARENT),))
    served = recorded.one("serve answer")
    assert f"{trace_of(served):032x}" == PARENT[3:35]
    assert f"{parent_of(served):016x}" == PARENT[36:52]


@pytest.mark.parametrize(
    "text",
    ["x" * 4000, PARENT.upper(), PARENT[:-1], "00-" + "0" * 32 + PARENT[35:], "ff" + PARENT[2:], PARENT + "-00"],
)
async def test_a_parent_that_is_none_is_ignored(target: Target, recorded: Recorded, text: str) -> None:
    async with serving(make_host(target, stepper=stepper(target, 0))) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(run_ahead=True)
        ask = peer.ask_message(PROMPT, SHORT)
        ask.traceparent = text
        await peer.send(ask=ask)
        while not (peer.verdicts and peer.verdicts[-1].finish):
            await peer.receive()
        await until(lambda: bool(recorded.named("serve answer")))
    assert parent_of(recorded.one("serve answer")) is None


async def test_what_the_client_did_not_sample_is_not_recorded(target: Target, recorded: Recorded) -> None:
    async with serving(make_host(target, stepper=stepper(target, 0))) as running, channel_to(running) as channel:
        await generate(channel, PROMPT, SHORT, metadata=(("traceparent", PARENT[:-2] + "00"),))
        await generate(channel, PROMPT, SHORT)
    assert parent_of(recorded.one("serve answer")) is None


async def test_an_answer_that_fails_says_so(target: Target, recorded: Recorded) -> None:
    screen = Screen()
    async with talking_over_a_link(target) as (_, engine):
        with pytest.raises(MoaError):
            await watch(engine, screen, [10_000], LONG)
    answer = recorded.one("answer")
    assert not answer.status.is_ok
    assert answer.status.description


async def test_without_a_tracer_nothing_crosses_the_wire(target: Target) -> None:
    assert not is_traced()
    assert begin_span("question", PARENT).traceparent == ""
    asked = list[pb.Open]()
    async with talking_over_a_link(target) as (_, engine):
        make_open = engine.connection._make_open

        def seen(address: str) -> pb.Open:
            asked.append(make_open(address))
            return asked[-1]

        engine.connection._make_open = seen
        await watch(engine, Screen(), PROMPT, SHORT)
    assert [message.ask.traceparent for message in asked] == [""]
