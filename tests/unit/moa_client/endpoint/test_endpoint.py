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
from moa_client.endpoint.endpoint import EndpointSettings
from moa_shared.errors import (
    ContextLengthError,
    MismatchError,
    MoaError,
    ModelSourceError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolParam

from tests.support.openai_client import openai_client
from tests.support.scripted_answers import MODEL, Script, ScriptedAnswer, ScriptedSource, saying, serving, silence

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi there"}]
WORDS = ("Good", " day", ".")


@asynccontextmanager
async def asking(
    script: Script = silence, settings: EndpointSettings | None = None
) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedSource]]:
    source = ScriptedSource(script)
    async with serving(source, settings) as server, openai_client(server.url) as client:
        yield client, source


def moa_of(chunk: object) -> dict[str, Any]:
    """What only this endpoint has."""
    extra = getattr(chunk, "moa", None)
    return extra if isinstance(extra, dict) else {}


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def stream_text(stream: openai.AsyncStream[ChatCompletionChunk]) -> str:
    return text_of([chunk async for chunk in stream])


# ------------------------------------------------------------ answers


async def test_a_chat_gets_an_answer() -> None:
    async with asking(saying(*WORDS)) as (client, source):
        completion = await client.chat.completions.create(model=MODEL, messages=HI, seed=5, temperature=0)
    choice, usage = completion.choices[0], completion.usage
    assert (choice.message.content, choice.message.role, choice.finish_reason) == ("Good day.", "assistant", "stop")
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 3, 5)
    assert completion.id.startswith("chatcmpl-")
    assert (completion.object, completion.model, completion.system_fingerprint) == (
        "chat.completion",
        MODEL,
        "fp_scripted",
    )
    assert moa_of(completion) == {"seed": 5, "verified": True}
    assert source.rendered == [{"role": "user", "content": "Hi there"}]
    assert source.answers[0].closed.is_set()


async def test_a_chat_streams_its_answer() -> None:
    async with asking(saying(*WORDS)) as (client, _):
        stream = await client.chat.completions.create(model="default", messages=HI, stream=True, seed=5)
        chunks = [chunk async for chunk in stream]
    assert text_of(chunks) == "Good day."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert (moa_of(chunks[0]), moa_of(chunks[-1])) == ({"seed": 5}, {"verified": True})
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_chat_calls_tools_whole_and_as_a_stream() -> None:
    tools: list[ChatCompletionToolParam] = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
    words = (
        "Let",
        " me see.",
        "\n<tool",
        '_call>\n{"name": "now",',
        ' "arguments": {"zone"',
        ': "UTC"}}\n</tool_call>',
    )
    async with asking(saying(*words)) as (client, source):
        whole = await client.chat.completions.create(model=MODEL, messages=HI, tools=tools)
        stream = client.chat.completions.stream(model=MODEL, messages=HI, tools=tools, tool_choice="required")
        async with stream as events:
            streamed = await events.get_final_completion()
    for choice in (whole.choices[0], streamed.choices[0]):
        assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
        assert choice.message.tool_calls is not None
        call = choice.message.tool_calls[0]
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("now", '{"zone": "UTC"}')
        assert call.id.startswith("call_")
    assert [answer.options.constraint is not None for answer in source.answers] == [False, True]


class MistralSource(ScriptedSource):
    """What opens its calls is a special token, which the text of an answer does not have."""

    chat_template = "[TOOL_CALLS]{{ message.tool_calls }}{{ tools }}"
    special_tokens = {"</s>": 2, "[TOOL_CALLS]": 5}  # noqa: RUF012
    words = ("[TOOL_CALLS]", '[{"name": "now", ', '"arguments": {}}]')

    def spelled(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[token] for token in tokens)


async def test_special_tokens_that_mark_calls_are_read() -> None:
    async def script(answer: ScriptedAnswer) -> None:
        answer.commit("", *MistralSource.words[1:])
        answer.end()

    tools: list[ChatCompletionToolParam] = [{"type": "function", "function": {"name": "now"}}]
    async with serving(MistralSource(script)) as server, openai_client(server.url) as client:
        called = await client.chat.completions.create(model=MODEL, messages=HI, tools=tools)
        plain = await client.chat.completions.create(model=MODEL, messages=HI)
    assert called.choices[0].finish_reason == "tool_calls"
    assert plain.choices[0].message.content == "".join(MistralSource.words[1:])


async def test_a_text_is_continued_whole_and_as_a_stream() -> None:
    async with asking(saying(*WORDS)) as (client, source):
        completion = await client.completions.create(model=MODEL, prompt="Once upon a time")
        stream = await client.completions.create(model=MODEL, prompt=[5, 6, 7], stream=True, max_tokens=9)
        parts = [chunk async for chunk in stream]
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("Good day.", "stop")
    assert completion.id.startswith("cmpl-")
    assert "".join(part.choices[0].text for part in parts) == "Good day."
    assert [(answer.prompt, answer.options.max_tokens) for answer in source.answers] == [
        ((0, 1, 2, 3), 16),
        ((5, 6, 7), 9),
    ]


async def test_the_model_has_its_name_and_another_name_for_all() -> None:
    async with asking() as (client, _):
        models = await client.models.list()
        assert [model.id for model in models.data] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "moa"
        assert (await client.models.retrieve("default")).id == MODEL
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt-4o", messages=HI)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


# ------------------------------------------------------------ errors


async def test_a_prompt_that_fills_the_context_is_a_bad_request() -> None:
    async with asking() as (client, _):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=MODEL, prompt="word " * 100)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", None)
        with pytest.raises(openai.BadRequestError, match="expected ids of tokens from 0 to 999") as caught:
            await client.completions.create(model=MODEL, prompt=[1, 1000])
        assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("error", "status", "retry", "kind", "code"),
    [
        (ContextLengthError("So.", hint=""), 400, None, "invalid_request_error", "context_length_exceeded"),
        (OverloadedError("So.", hint=""), 429, "2", "rate_limit_error", "overloaded"),
        (UnavailableError("So.", hint=""), 503, None, "server_error", "unavailable"),
        (MismatchError("So.", hint=""), 503, None, "server_error", "mismatch"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_failure_before_the_first_word_is_a_status(
    error: MoaError, status: int, retry: str | None, kind: str, code: str, is_stream: bool
) -> None:
    async def fail(answer: ScriptedAnswer) -> None:
        answer.fail(error)

    async with asking(fail) as (client, _):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HI, stream=is_stream)
    response = caught.value.response
    assert (response.status_code, response.headers.get("retry-after")) == (status, retry)
    assert caught.value.body == {"message": "So.", "type": kind, "param": None, "code": code}


@pytest.mark.parametrize(
    "error", [UnavailableError("The daemon is still starting."), NotFoundError("No drafter."), ModelSourceError("Bad.")]
)
async def test_without_a_model_yet_the_reason_is_told(error: MoaError) -> None:
    async with asking() as (client, source):
        source.absent = error
        with pytest.raises(openai.InternalServerError) as caught:
            await client.models.list()
    assert (caught.value.response.status_code, caught.value.code) == (503, error.code)


async def test_a_slash_at_the_end_is_the_same_path() -> None:
    source = ScriptedSource(saying(*WORDS))
    async with serving(source) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/v1/models/")).json()["object"] == "list"
        assert (await client.get(f"/v1/models/{MODEL}/")).json()["id"] == MODEL
        answer = await client.post("/v1/chat/completions/", json={"messages": HI})
        assert answer.json()["choices"][0]["message"]["content"] == "Good day."
        text = await client.post("/v1/completions/", json={"prompt": "Hi"})
        assert text.json()["choices"][0]["text"] == "Good day."
        unknown = await client.post("/v1/moderations", json={})
        assert unknown.status_code == 404
        message = unknown.json()["error"]["message"]
        assert message.startswith("There is nothing at /v1/moderations. What there is: /v1/models, ")
        assert "/v1/embeddings" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f'{{"messages": {"[" * 100_000}', "The body of the request is no JSON: its brackets are nested too deeply."),
        (f'{{"messages": {"[" * 800}{"]" * 800}}}', "messages[0]: expected a JSON object."),
        (
            f'{{"messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 1{"0" * 30}}}',
            "max_tokens: expected less than 2147483648.",
        ),
    ],
    ids=["deep", "less deep", "huge"],
)
async def test_odd_bodies_are_refused_in_one_sentence(body: str, message: str) -> None:
    source = ScriptedSource(saying(*WORDS))
    async with serving(source) as server, httpx.AsyncClient(base_url=server.url) as client:
        refused = await client.post("/v1/chat/completions", content=body)
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, message)


async def test_a_defect_is_logged_and_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    async with asking() as (client, source):
        source.begin = None  # type: ignore[assignment]
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    assert (caught.value.response.status_code, caught.value.code) == (500, "internal")
    assert "The answer has failed" in caplog.text


async def commit_to(source: ScriptedSource, *words: str) -> None:
    (await source.answer()).commit(*words)


# ------------------------------------------------------------ without the server


LOST = EndpointSettings(settle_seconds=0.05)


async def lose(answer: ScriptedAnswer) -> None:
    """The link is lost after a word, and the device writes two more."""
    answer.commit("Good")
    answer.link(LinkState.OFFLINE)
    answer.write(" mor", "ning")
    answer.hold_back()


@pytest.mark.parametrize("by_setting", [True, False])
async def test_or_ends_with_unverified_text_that_is_marked(by_setting: bool) -> None:
    settings = EndpointSettings(settle_seconds=0.05, unverified="end" if by_setting else "fail")
    extra = {} if by_setting else {"moa": {"unverified": "end"}}
    async with asking(lose, settings) as (client, _):
        whole = await client.chat.completions.create(model=MODEL, messages=HI, seed=1, extra_body=extra)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, extra_body=extra, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Good morning", "length")
    assert moa_of(whole) == {"seed": 1, "verified": False, "verified_characters": 4}
    assert text_of(chunks) == "Good morning"
    assert moa_of(chunks[-2]) == {"verified": False, "verified_characters": 4}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


# ------------------------------------------------------------ clients


async def test_the_answer_of_a_client_that_leaves_is_stopped() -> None:
    async with asking() as (client, source):
        stream = (
            await asyncio.gather(
                client.chat.completions.create(model=MODEL, messages=HI, stream=True), commit_to(source, "Good")
            )
        )[0]
        await stream.close()
        await source.answers[0].closed.wait()
        asked = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=HI))
        answer = await source.answer(2)
        asked.cancel()
        await answer.closed.wait()


async def test_a_stream_that_has_nothing_to_say_says_so() -> None:
    async with serving(ScriptedSource(), EndpointSettings(keep_alive_seconds=0.01)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        content = json.dumps({"messages": HI, "stream": True}).encode()
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost:{server.port}\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
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
        slow = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
        chunks = slow.__aiter__()
        await anext(chunks)
        await done.wait()  # although nobody reads
        await source.answers[0].closed.wait()
        source.script = saying(*WORDS)
        quick = await client.chat.completions.create(model=MODEL, messages=HI)
        assert quick.choices[0].message.content == "Good day."
        length = 0
        async for chunk in chunks:
            length += len(chunk.choices[0].delta.content or "")
    assert length == words * len(word)


async def test_one_request_too_many_is_told_when_to_come_back() -> None:
    settings = EndpointSettings(max_requests=1, most_waiting=2)
    async with asking(silence, settings) as (client, source):

        async def ask() -> object:
            return (await client.chat.completions.create(model=MODEL, messages=HI)).choices[0].message.content

        first = asyncio.create_task(ask())
        await source.answer()
        others = [asyncio.create_task(ask()) for _ in range(3)]
        done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(openai.RateLimitError) as caught:
            done.pop().result()
        assert (caught.value.response.headers["retry-after"], caught.value.code) == ("2", "overloaded")
        source.script = saying(*WORDS)
        source.answers[0].commit("Bye")
        source.answers[0].end()
        texts = await asyncio.gather(first, *others, return_exceptions=True)
    assert sorted(text for text in texts if isinstance(text, str)) == ["Bye", "Good day.", "Good day."]


async def test_streams_that_are_open_when_the_server_closes_say_why_they_end() -> None:
    source = ScriptedSource()
    async with serving(source) as server, openai_client(server.url) as client:
        stream = (
            await asyncio.gather(
                client.chat.completions.create(model=MODEL, messages=HI, stream=True), commit_to(source, "Good")
            )
        )[0]
        closing = asyncio.create_task(server.close())
        with pytest.raises(openai.APIError) as caught:
            await stream_text(stream)
        await closing
    assert "The program that serves this endpoint ends" in caught.value.message
    assert source.answers[0].closed.is_set()
