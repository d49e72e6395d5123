"""ollama's library for Python, pointed to the endpoint."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from moa_client.endpoint.endpoint import EndpointSettings
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_answers import MODEL, Script, ScriptedAnswer, ScriptedSource, saying, serving, silence
from tests.support.skipping import needs_package

needs_package("ollama")
from ollama import AsyncClient, ResponseError  # noqa: E402

pytestmark = pytest.mark.system
HI = [{"role": "user", "content": "Hi there"}]
WORDS = ("Good", " day", ".")


@asynccontextmanager
async def asking(
    script: Script = silence, settings: EndpointSettings | None = None, key: str = ""
) -> AsyncIterator[tuple[AsyncClient, ScriptedSource]]:
    source = ScriptedSource(script)
    async with serving(source, settings, key=key) as server, AsyncClient(host=server.url) as client:
        yield client, source


async def test_a_chat_whole_and_as_a_stream() -> None:
    async with asking(saying(*WORDS, finish=Finish.MAX_TOKENS)) as (client, source):
        whole = await client.chat("default", messages=HI, options={"num_predict": 3})
        parts = [part async for part in await client.chat(f"{MODEL}:latest", messages=HI, stream=True)]
    assert whole.message.content == "Good day."
    assert [part.message.content for part in parts] == [*WORDS, ""]
    assert [part.done for part in parts] == [False] * 3 + [True]
    for last in (whole, parts[-1]):
        assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("length", 2, 3)
        assert last.total_duration is not None
        assert last.total_duration >= (last.eval_duration or 0) > 0
    assert source.answers[0].options.max_tokens == 3


async def test_a_loop_of_tools() -> None:
    """The library makes a tool of a function; the call comes whole, and its result is sent back."""

    def now(zone: str) -> str:
        """The time. `zone`: where."""
        return f"noon {zone}"

    async def script(answer: ScriptedAnswer) -> None:
        if len(source.answers) == 1:
            await saying("I look.", "\n<tool_call>", '{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>')(
                answer
            )
        else:
            await saying("It is noon.")(answer)

    async with asking(script) as (client, source):
        messages: list[Any] = [*HI]
        stream = await client.chat(MODEL, messages=messages, tools=[now], stream=True)
        calls = [call for part in [each async for each in stream] for call in part.message.tool_calls or ()]
        assert [(call.function.name, call.function.arguments) for call in calls] == [("now", {"zone": "UTC"})]
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": calls})
        messages.append({"role": "tool", "tool_name": "now", "content": now(**calls[0].function.arguments)})
        answer = await client.chat(MODEL, messages=messages, tools=[now])
    assert answer.message.content == "It is noon."
    assert "noon UTC" in "".join(each["content"] for each in source.rendered)


async def test_a_prompt_is_answered() -> None:
    async with asking(saying(*WORDS)) as (client, source):
        whole = await client.generate(MODEL, "Hi there", format="json")
        parts = [part async for part in await client.generate(MODEL, "Hi", raw=True, stream=True)]
        loaded = await client.generate(MODEL)
    assert whole.response == "".join(part.response or "" for part in parts) == "Good day."
    assert (loaded.response, loaded.done_reason) == ("", "load")
    assert len(source.answers) == 2


async def test_the_model_is_listed_and_described() -> None:
    async with asking() as (client, _):
        listed, loaded = await client.list(), await client.ps()
        shown = await client.show("default:latest")
    assert [model.model for model in listed.models] == [MODEL]
    assert [(model.name, model.context_length) for model in loaded.models] == [(MODEL, 100)]
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 100


async def test_failures_are_texts() -> None:
    async def fail(answer: ScriptedAnswer) -> None:
        if len(source.answers) > 1:
            answer.commit("Good")
        answer.fail(UnavailableError("The server is away."))

    async with asking(fail) as (client, source), asking(key="k" * 16) as (stranger, _):
        for asked, status in (
            (client.chat(MODEL, messages=HI), 503),
            (client.chat("other", messages=HI), 404),
            (client.chat(MODEL, messages=[{"role": "user", "content": "Hi", "images": [b"x"]}]), 400),
            (client.embed(MODEL, "Hi"), 404),
            (stranger.chat(MODEL, messages=HI), 401),
        ):
            with pytest.raises(ResponseError) as caught:
                await asked
            assert caught.value.status_code == status
            with pytest.raises(json.JSONDecodeError):
                json.loads(caught.value.error)  # the library has found the text in it
        with pytest.raises(ResponseError, match="The server is away"):
            [part async for part in await client.chat(MODEL, messages=HI, stream=True)]
