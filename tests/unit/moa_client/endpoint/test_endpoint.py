"""The endpoint over a socket, asked by OpenAI's library for Python, with answers that tests write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from moa_client.conversation.events import LinkState
from moa_client.endpoint.endpoint import AnswerSlots, EndpointSettings
from moa_client.endpoint.routes import FRESH_SECONDS, Health, health_route
from moa_client.history.database import KeptResponse
from moa_client.history.store import HistoryStore
from moa_client.web.access import Access
from moa_client.web.server import make_app
from moa_shared.errors import DiskFullError, OverloadedError, UnavailableError
from moa_shared.protocol.messages import Finish
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from tests.support.scripted_answers import (
    MODEL,
    Script,
    ScriptedAnswer,
    ScriptedSource,
    openai_client,
    saying,
    serving,
    silence,
)

HI: Any = [{"role": "user", "content": "Hi there"}]
WORDS = ("Good", " day", ".")


@asynccontextmanager
async def asking(
    script: Script = silence, settings: EndpointSettings | None = None, history: HistoryStore | None = None
) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedSource]]:
    source = ScriptedSource(script)
    async with serving(source, settings, history=history) as server, openai_client(server.url) as client:
        yield client, source


async def chat(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**{"model": MODEL, "messages": HI, **more})


async def begun(client: openai.AsyncOpenAI, source: ScriptedSource) -> Any:
    async def commit() -> None:
        (await source.answer()).commit("Good")

    return (await asyncio.gather(chat(client, stream=True), commit()))[0]


def text_of(chunks: Sequence[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


# ------------------------------------------------------------ answers


async def test_a_chat_gets_an_answer_whole_and_as_a_stream() -> None:
    async with asking(saying(*WORDS)) as (client, source):
        completion = await chat(client, seed=5, temperature=0)
        chunks = [chunk async for chunk in await chat(client, model="default", stream=True, seed=5)]
    choice, usage = completion.choices[0], completion.usage
    assert (choice.message.content, choice.message.role, choice.finish_reason) == ("Good day.", "assistant", "stop")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 3, 5)
    assert (completion.object, completion.model, completion.id[:9]) == ("chat.completion", MODEL, "chatcmpl-")
    assert (completion.system_fingerprint, completion.moa) == ("fp_scripted", {"seed": 5, "verified": True})
    assert (source.rendered, [answer.closed.is_set() for answer in source.answers]) == (HI, [True, True])
    assert (text_of(chunks), chunks[0].choices[0].delta.role) == ("Good day.", "assistant")
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert len({(chunk.id, chunk.object, chunk.usage) for chunk in chunks}) == 1
    assert (chunks[0].moa, chunks[-1].moa) == ({"seed": 5}, {"verified": True})


async def test_special_tokens_that_mark_calls_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What opens Mistral's calls is a special token, which the text of an answer does not have."""
    words = ("[TOOL_CALLS]", '[{"name": "now", ', '"arguments": {}}]')
    monkeypatch.setattr(ScriptedSource, "chat_template", "[TOOL_CALLS]{{ message.tool_calls }}{{ tools }}")
    monkeypatch.setattr(ScriptedSource, "special_tokens", {"</s>": 2, words[0]: 5})
    monkeypatch.setattr(ScriptedSource, "spelled", lambda _, tokens: "".join(words[token] for token in tokens))

    async def speak(answer: ScriptedAnswer) -> None:
        answer.commit("", *words[1:])
        answer.end()

    async with asking(speak) as (client, _):
        called = await chat(client, tools=[{"type": "function", "function": {"name": "now"}}])
        plain = await chat(client)
    assert called.choices[0].finish_reason == "tool_calls"
    assert plain.choices[0].message.content == "".join(words[1:])


# ------------------------------------------------------------ errors


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_failure_before_the_first_word_is_a_status(is_stream: bool) -> None:
    async def fail(answer: ScriptedAnswer) -> None:
        answer.fail(OverloadedError("So.", hint=""))

    async with asking(fail) as (client, source):
        with pytest.raises(openai.APIStatusError) as caught:
            await chat(client, stream=is_stream)
        source.absent = UnavailableError("Starting.")  # without a model yet
        with pytest.raises(openai.InternalServerError, match="Starting"):
            await client.models.list()
    response = caught.value.response
    assert (response.status_code, response.headers.get("retry-after")) == (429, "2")
    assert caught.value.body == {"message": "So.", "type": "rate_limit_error", "param": None, "code": "overloaded"}


async def test_or_ends_with_unverified_text_that_is_marked() -> None:
    async def lose(answer: ScriptedAnswer) -> None:
        """The link is lost after a word, and the device writes two more."""
        answer.commit("Good")
        answer.link(LinkState.OFFLINE)
        answer.write(" mor", "ning")
        answer.hold_back()

    extra = {"moa": {"unverified": "end"}}
    async with asking(lose, EndpointSettings(settle_seconds=0.05, unverified="fail")) as (client, _):
        whole = await chat(client, seed=1, extra_body=extra)
        stream = await chat(client, stream=True, extra_body=extra, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Good morning", "length")
    assert whole.moa == {"seed": 1, "verified": False, "verified_characters": 4}
    assert text_of(chunks) == "Good morning"
    assert chunks[-2].moa == {"verified": False, "verified_characters": 4}
    assert chunks[-1].usage.completion_tokens == 3


# ------------------------------------------------------------ clients


async def test_the_answer_of_a_client_that_leaves_is_stopped() -> None:
    async with asking() as (client, source):
        await (await begun(client, source)).close()
        await source.answers[0].closed.wait()
        asked = asyncio.create_task(chat(client))
        answer = await source.answer(2)
        asked.cancel()
        await answer.closed.wait()


async def test_a_stream_that_has_nothing_to_say_says_so() -> None:
    async with serving(ScriptedSource(), EndpointSettings(keep_alive_seconds=0.01)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        content = json.dumps({"messages": HI, "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost:{server.port}\r\ncontent-length: {len(content)}"
        writer.write(f"{head}\r\n\r\n{content}".encode())
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b": waiting\n\n")
        await reader.readuntil(b": waiting\n\n")
        writer.transport.abort()
        with pytest.raises(ConnectionError):
            await writer.drain()


async def test_a_client_that_reads_slowly_holds_up_nobody() -> None:
    word, words = "x" * 100_000, 200  # twenty megabytes
    done = asyncio.Event()

    async def talk(answer: ScriptedAnswer) -> None:
        for _ in range(words):
            answer.commit(word)
            await asyncio.sleep(0)
        answer.end()
        done.set()

    async with asking(talk) as (client, source):
        chunks = (await chat(client, stream=True)).__aiter__()
        await anext(chunks)
        await done.wait()  # although nobody reads
        await source.answers[0].closed.wait()
        source.script = saying(*WORDS)
        assert (await chat(client)).choices[0].message.content == "Good day."
        assert len(text_of([chunk async for chunk in chunks])) == words * len(word)


async def test_streams_that_are_open_when_the_server_closes_say_why_they_end() -> None:
    source = ScriptedSource()
    async with serving(source) as server, openai_client(server.url) as client:
        stream = await begun(client, source)
        closing = asyncio.create_task(server.close())
        with pytest.raises(openai.APIError, match="The program that serves this endpoint ends"):
            [chunk async for chunk in stream]
        await closing
    assert source.answers[0].closed.is_set()


async def test_one_too_many_is_refused_until_there_is_room() -> None:
    slots, order = AnswerSlots(1, waiting=1), list[int]()

    async def visit(number: int) -> None:
        async with slots.turn():
            order.append(number)

    async with slots.turn():
        leaver = asyncio.create_task(visit(1))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="1 requests wait already"):
            await visit(2)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        other = asyncio.create_task(visit(3))  # whoever leaves early takes nobody's turn
        await asyncio.sleep(0)
        assert order == []
    await other
    await visit(4)
    assert order == [3, 4]


async def test_chances_are_told_with_each_text_and_none_of_text_of_this_device() -> None:
    async def speak(answer: ScriptedAnswer) -> None:
        answer.commit_tokens(3, 0)  # d, a
        answer.write("y")
        answer.link(LinkState.OFFLINE)
        answer.end(Finish.END_OF_TEXT, provisional=True)

    listed: dict[str, Any] = {"model": MODEL, "prompt": [7, 8], "logprobs": 2}
    async with asking(speak, EndpointSettings(settle_seconds=0.01, unverified="end")) as (client, source):
        choice = (await client.completions.create(**listed)).choices[0]
        stream = await chat(client, logprobs=True, top_logprobs=1, stream=True)
        choices = [one async for chunk in stream for one in chunk.choices]
        source.script = saying(*WORDS)  # an older server tells none
        with pytest.raises(openai.InternalServerError, match="has not told how likely it finds some tokens"):
            await client.completions.create(**listed)
    told = choice.logprobs
    assert told is not None
    assert (choice.text, told.tokens, told.token_logprobs, told.text_offset) == ("day", ["d", "a"], [-3.0, 0.0], [0, 1])
    assert told.top_logprobs == [{"e": -0.25, "f": -0.5, "d": -3.0}, {"b": -0.25, "c": -0.5, "a": -0.0}]
    content = [token.model_dump() for each in choices if each.logprobs is not None for token in each.logprobs.content]
    assert ("".join(each.delta.content or "" for each in choices), len(content)) == ("day", 2)
    likeliest = [{"token": "e", "bytes": [101], "logprob": -0.25}]
    assert content[0] == {"token": "d", "bytes": [100], "logprob": -3.0, "top_logprobs": likeliest}


# ------------------------------------------------------------ responses, and which of them are kept

ASKED: dict[str, Any] = {"model": MODEL, "input": "Hi there", "extra_body": {"seed": 5}}
NOW: FunctionToolParam = {"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": True}
CALLING = ("Let me see.", '\n<tool_call>\n{"name": "now", "arguments": {"zo', 'ne": "UTC"}}\n</tool_call>')


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[HistoryStore]:
    made = HistoryStore(tmp_path / "history")
    yield made
    made.close()


async def created(client: openai.AsyncOpenAI, **more: Any) -> Any:
    """A response that is not streamed; `store`: whether it is kept."""
    return await client.responses.create(**{**ASKED, **more})


async def test_a_response_continues_kept_ones_without_their_instructions(store: HistoryStore) -> None:
    async with asking(saying(*CALLING), history=store) as (client, source):
        first = await created(client, instructions="Be kind.", tools=[NOW])
        source.script = saying("Noon", ".")
        (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
        result = [{"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}]
        second = await created(client, input=result, previous_response_id=first.id)
        third = await created(client, input="Thanks.", previous_response_id=second.id, store=False)
    assert (first.store, second.previous_response_id, third.store) == (True, first.id, False)
    assert [message["role"] for message in source.rendered] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in source.rendered][3:] == ["Noon.", "Thanks."]
    assert store.responses.count() == 2


async def test_a_kept_response_is_read_and_deleted(store: HistoryStore) -> None:
    async with asking(saying(*WORDS), history=store) as (client, source):
        made = await created(client)
        assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
        await created(client, previous_response_id=made.id)
        assert len(source.rendered) == 3
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await created(client, previous_response_id=made.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


async def test_what_cannot_be_kept_says_so_and_what_fails_or_whose_client_leaves_is_not(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(_: KeptResponse) -> None:
        raise DiskFullError("The disk is full.", hint="Free some space.")

    async with asking(history=store) as (client, source):
        asked = asyncio.create_task(client.responses.create(**ASKED, stream=True))
        (await source.answer()).commit("Good")
        await (await asked).close()
        await source.answers[0].closed.wait()
        refused = asyncio.create_task(created(client))
        (await source.answer(2)).fail(UnavailableError("Nobody there.", hint=""))
        with pytest.raises(openai.InternalServerError):
            await refused
        assert store.responses.count() == 0
        monkeypatch.setattr(store.responses, "keep", fill)
        source.script = saying(*WORDS)
        made = await created(client)
    assert (made.output_text, made.store) == ("Good day.", False)
    assert "The disk is full" in caplog.text


# ------------------------------------------------------------ health

AWAY = UnavailableError("Nothing answers at gpu:50051.", hint="Start it.")


async def test_health_needs_no_key_and_asks_the_server_once_for_many() -> None:
    status: dict[str, Any] = {"state": "good", "target": "tiny", "rtt_ms": 12.0, "conversations": 3}
    status |= {"phase": "ready", "wants_online": True}
    asked, failures, now = 0, list[UnavailableError](), 100.0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if failures:
            raise failures[-1]

    app = make_app([health_route(Health(lambda: status, ask, lambda: now))], Access("127.0.0.1", 8674, key="k" * 16))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8674") as client:

        async def health() -> tuple[int, str, int]:
            response = await client.get("/health")
            return response.status_code, response.json().get("reason", ""), asked

        fields = {"status": "ok", "link": "good", "model": "tiny", "rtt_ms": 12.0}  # nothing of conversations
        assert (await client.get("/health")).json() == fields
        assert set(await asyncio.gather(*(health() for _ in range(5)))) == {(200, "", 1)}
        failures.append(AWAY)
        assert await health() == (200, "", 1)
        now += FRESH_SECONDS
        assert await health() == (503, AWAY.message, 2)
        for more, reason in (
            ({"phase": "loading the drafter"}, "The daemon is not ready: loading the drafter"),
            ({"phase": "ready", "wants_online": False}, "The daemon is offline, as its user wants it."),
        ):
            status |= more
            assert await health() == (503, reason, 2)
