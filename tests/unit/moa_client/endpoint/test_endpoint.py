"""The endpoint over a socket, asked by OpenAI's library for Python, with answers that tests write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from moa_client.conversation.events import LinkState
from moa_client.endpoint.endpoint import AnswerSlots, EndpointSettings
from moa_shared.errors import (
    MoaError,
    ModelSourceError,
    OverloadedError,
    UnavailableError,
)
from moa_shared.protocol.finish_rule import Finish

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
    script: Script = silence, settings: EndpointSettings | None = None, source: ScriptedSource | None = None
) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedSource]]:
    source = source or ScriptedSource(script)
    async with serving(source, settings) as server, openai_client(server.url) as client:
        yield client, source


async def chat(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**{"model": MODEL, "messages": HI, **more})


async def begun(client: openai.AsyncOpenAI, source: ScriptedSource) -> Any:
    """A stream of which a word has come."""

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
    assert completion.id.startswith("chatcmpl-")
    assert (completion.object, completion.model) == ("chat.completion", MODEL)
    assert (completion.system_fingerprint, completion.moa) == ("fp_scripted", {"seed": 5, "verified": True})
    assert source.rendered == HI
    assert all(answer.closed.is_set() for answer in source.answers)
    assert (text_of(chunks), chunks[0].choices[0].delta.role) == ("Good day.", "assistant")
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert {(chunk.object, chunk.usage) for chunk in chunks} == {("chat.completion.chunk", None)}
    assert len({chunk.id for chunk in chunks}) == 1
    assert (chunks[0].moa, chunks[-1].moa) == ({"seed": 5}, {"verified": True})


class MistralSource(ScriptedSource):
    """What opens its calls is a special token, which the text of an answer does not have."""

    chat_template = "[TOOL_CALLS]{{ message.tool_calls }}{{ tools }}"
    special_tokens = {"</s>": 2, "[TOOL_CALLS]": 5}  # noqa: RUF012
    words = ("[TOOL_CALLS]", '[{"name": "now", ', '"arguments": {}}]')

    def spelled(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[token] for token in tokens)


async def test_special_tokens_that_mark_calls_are_read() -> None:
    async with asking(source=MistralSource(saying_at_once("", *MistralSource.words[1:]))) as (client, _):
        called = await chat(client, tools=[{"type": "function", "function": {"name": "now"}}])
        plain = await chat(client)
    assert called.choices[0].finish_reason == "tool_calls"
    assert plain.choices[0].message.content == "".join(MistralSource.words[1:])


def saying_at_once(*words: str) -> Script:
    async def script(answer: ScriptedAnswer) -> None:
        answer.commit(*words)
        answer.end()

    return script


async def test_the_model_has_its_name_and_another_name_for_all() -> None:
    async with asking() as (client, _):
        assert [model.id for model in (await client.models.list()).data] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "moa"
        assert (await client.models.retrieve("default")).id == MODEL
        with pytest.raises(openai.NotFoundError) as caught:
            await chat(client, model="gpt-4o")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


# ------------------------------------------------------------ errors


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "retry", "kind", "code"),
    [
        (OverloadedError("So.", hint=""), 429, "2", "rate_limit_error", "overloaded"),
        (UnavailableError("So.", hint=""), 503, None, "server_error", "unavailable"),
    ],
)
async def test_a_failure_before_the_first_word_is_a_status(
    error: MoaError, status: int, retry: str | None, kind: str, code: str, is_stream: bool
) -> None:
    async def fail(answer: ScriptedAnswer) -> None:
        answer.fail(error)

    async with asking(fail) as (client, _):
        with pytest.raises(openai.APIStatusError) as caught:
            await chat(client, stream=is_stream)
    response = caught.value.response
    assert (response.status_code, response.headers.get("retry-after")) == (status, retry)
    assert caught.value.body == {"message": "So.", "type": kind, "param": None, "code": code}


async def test_without_a_model_yet_the_reason_is_told() -> None:
    async with asking() as (client, source):
        for error in (UnavailableError("Starting."), ModelSourceError("Bad.")):
            source.absent = error
            with pytest.raises(openai.InternalServerError) as caught:
                await client.models.list()
            assert (caught.value.response.status_code, caught.value.code) == (503, error.code)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f'{{"messages": {"[" * 100_000}', "The body of the request is no JSON: its brackets are nested too deeply."),
        (f'{{"messages": {"[" * 800}{"]" * 800}}}', "messages[0]: expected a JSON object."),
    ],
    ids=["deep", "less deep"],
)
async def test_odd_bodies_are_refused_in_one_sentence(body: str, message: str) -> None:
    async with serving(ScriptedSource()) as server, httpx.AsyncClient(base_url=server.url) as client:
        refused = await client.post("/v1/chat/completions/", content=body)  # a slash at the end is the same path
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, message)
        unknown = await client.post("/v1/moderations", json={})
        assert unknown.status_code == 404
        words = "There is nothing at /v1/moderations. What there is: /v1/models, "
        assert unknown.json()["error"]["message"].startswith(words)


async def test_a_defect_is_logged_and_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    async with asking() as (client, source):
        source.begin = None  # type: ignore[assignment]
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(client, stream=True)
    assert (caught.value.response.status_code, caught.value.code) == (500, "internal")
    assert "The answer has failed" in caplog.text


@pytest.mark.parametrize("by_setting", [True, False])
async def test_or_ends_with_unverified_text_that_is_marked(by_setting: bool) -> None:
    async def lose(answer: ScriptedAnswer) -> None:
        """The link is lost after a word, and the device writes two more."""
        answer.commit("Good")
        answer.link(LinkState.OFFLINE)
        answer.write(" mor", "ning")
        answer.hold_back()

    settings = EndpointSettings(settle_seconds=0.05, unverified="end" if by_setting else "fail")
    extra = {} if by_setting else {"moa": {"unverified": "end"}}
    async with asking(lose, settings) as (client, _):
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

    async def waiting(number: int) -> asyncio.Task[None]:
        task = asyncio.create_task(visit(number))
        await asyncio.sleep(0)
        return task

    async with slots.turn():
        leaver = await waiting(1)
        with pytest.raises(OverloadedError, match="1 requests wait already"):
            await visit(2)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        other = await waiting(3)  # whoever leaves early takes nobody's turn
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
        tools = [{"type": "function", "function": {"name": "now"}}]
        stream = await chat(client, logprobs=True, top_logprobs=1, stream=True, tools=tools)
        choices = [one async for chunk in stream for one in chunk.choices]
        source.script = saying(*WORDS)  # an older server tells none
        with pytest.raises(openai.InternalServerError, match="has not told how likely it finds some tokens"):
            await client.completions.create(**listed)
    told = choice.logprobs
    assert told is not None
    assert (choice.text, told.tokens, told.token_logprobs, told.text_offset) == ("day", ["d", "a"], [-3.0, 0.0], [0, 1])
    assert told.top_logprobs == [{"e": -0.25, "f": -0.5, "d": -3.0}, {"b": -0.25, "c": -0.5, "a": -0.0}]
    sent, content = "", list[dict[str, Any]]()
    for each in choices:
        sent += each.delta.content or ""
        content += [token.model_dump() for token in (each.logprobs.content if each.logprobs is not None else [])]
        assert "".join(token["token"] for token in content) == sent[:2]  # each with its text
    assert (sent, len(content)) == ("day", 2)
    likeliest = [{"token": "e", "bytes": [101], "logprob": -0.25}]
    assert content[0] == {"token": "d", "bytes": [100], "logprob": -3.0, "top_logprobs": likeliest}
