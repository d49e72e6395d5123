"""Anthropic's library for Python, pointed to the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from moa_client.endpoint.endpoint import EndpointSettings
from moa_shared.errors import OverloadedError

from tests.support.scripted_answers import MODEL, Script, ScriptedAnswer, ScriptedSource, saying, serving, silence
from tests.support.skipping import needs_package

needs_package("anthropic")
from anthropic import APIError, APIStatusError, AsyncAnthropic, DefaultAsyncHttpxClient  # noqa: E402

pytestmark = pytest.mark.system
KEY = "0123456789abcdef"
HI: Any = [{"role": "user", "content": "Hi there"}]
TOOLS: Any = [{"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}]
WORDS = ("Good", " day", ".")


@asynccontextmanager
async def asking(
    script: Script = silence, settings: EndpointSettings | None = None, key: str = KEY
) -> AsyncIterator[tuple[AsyncAnthropic, ScriptedSource]]:
    source = ScriptedSource(script)
    async with (
        serving(source, settings, key=KEY) as server,
        DefaultAsyncHttpxClient(verify=False) as plain,  # without certificates, which take 20 ms to read
        AsyncAnthropic(base_url=server.url, api_key=key, max_retries=0, http_client=plain) as client,
    ):
        yield client, source


async def test_a_message_whole_and_as_a_stream() -> None:
    async with asking(saying(*WORDS)) as (client, source):
        whole = await client.messages.create(model=MODEL, max_tokens=9, messages=HI, system="Be brief.")
        greedy = {"temperature": 0}
        async with client.messages.stream(model="default", max_tokens=9, messages=HI, extra_body=greedy) as stream:
            text = [piece async for piece in stream.text_stream]
            streamed = await stream.get_final_message()
    assert text == list(WORDS)
    for message in (whole, streamed):
        assert [block.to_dict()["text"] for block in message.content] == ["Good day."]
        assert (message.model, message.role, message.stop_reason) == (MODEL, "assistant", "end_turn")
        assert message.usage.output_tokens == 3
    assert (whole.usage.input_tokens, streamed.usage.input_tokens) == (4, 2)
    assert [(each.options.max_tokens, each.options.temperature) for each in source.answers] == [(9, 1.0), (9, 0.0)]


async def test_a_loop_of_tools() -> None:
    """The library runs the tool, and sends the call and its result back."""

    async def script(answer: ScriptedAnswer) -> None:
        if len(source.answers) == 1:
            call = '<tool_call>{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>'
            await saying("I look.", "\n", call[:20], call[20:])(answer)
        else:
            await saying("It is noon.")(answer)

    async with asking(script) as (client, source):
        messages = HI
        for _ in range(2):
            async with client.messages.stream(model=MODEL, max_tokens=50, messages=messages, tools=TOOLS) as stream:
                message = await stream.get_final_message()
            calls = [block for block in message.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "noon"} for call in calls]
            messages = [
                *messages,
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": results},
            ]
            if calls:
                assert (calls[0].name, calls[0].input, message.stop_reason) == ("now", {"zone": "UTC"}, "tool_use")
    assert [block.type for block in messages[1]["content"]] == ["text", "tool_use"]
    assert message.content[0].to_dict()["text"] == "It is noon."
    told = "".join(each["content"] for each in source.rendered)
    assert "I look." in told
    assert "<tool_response>" in told
    assert "noon" in told


async def test_tokens_are_counted_and_the_model_is_listed() -> None:
    async with asking() as (client, source):
        count = await client.messages.count_tokens(model=MODEL, messages=HI, system="Be brief.")
        models = [model async for model in client.models.list()]
        one = await client.models.retrieve("default")
    assert count.input_tokens == 4
    assert [(model.id, model.type, model.max_input_tokens) for model in models] == [(MODEL, "model", 100)]
    assert one.id == MODEL
    assert not source.answers


async def test_a_failure_is_a_status_before_a_stream_and_an_event_in_it() -> None:
    error = OverloadedError("Too many.")

    async def fail(answer: ScriptedAnswer) -> None:
        if len(source.answers) > 1:
            answer.commit("Good")
            await asyncio.sleep(0.05)
        answer.fail(error)

    async with asking(fail) as (client, source):
        for status in (429, None):
            with pytest.raises(APIError) as caught:
                async with client.messages.stream(model=MODEL, max_tokens=9, messages=HI) as stream:
                    await stream.get_final_message()
            body: Any = caught.value.body
            assert (body["error"]["type"], error.message in body["error"]["message"]) == ("rate_limit_error", True)
            if status is not None:
                assert isinstance(caught.value, APIStatusError)
                assert caught.value.status_code == status
