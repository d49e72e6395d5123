"""Anthropic's and ollama's libraries for Python, pointed to an endpoint whose answers the tests write.

tests/e2e has these and other clients with the default model.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from moa_shared.protocol.messages import Finish
from ollama import AsyncClient

from tests.support.scripted_answers import MODEL, Script, ScriptedAnswer, ScriptedSource, saying, serving, silence

pytestmark = pytest.mark.system
KEY = "0123456789abcdef"
HI: Any = [{"role": "user", "content": "Hi there"}]
TOOLS: Any = [{"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}]
WORDS = ("Good", " day", ".")
CALL = ("I look.", "\n<tool_call>", '{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>')


@asynccontextmanager
async def anthropic(script: Script = silence) -> AsyncIterator[tuple[AsyncAnthropic, ScriptedSource]]:
    source = ScriptedSource(script)
    async with (
        serving(source, key=KEY) as server,
        DefaultAsyncHttpxClient(verify=False) as plain,  # without certificates, which take 20 ms to read
        AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0, http_client=plain) as client,
    ):
        yield client, source


@asynccontextmanager
async def ollama(script: Script = silence) -> AsyncIterator[tuple[AsyncClient, ScriptedSource]]:
    source = ScriptedSource(script)
    async with serving(source) as server, AsyncClient(host=server.url) as client:
        yield client, source


def calling(answers: list[ScriptedSource]) -> Script:
    """Calls a tool in the first answer of a source, and says in the second that it is noon."""

    async def script(answer: ScriptedAnswer) -> None:
        await saying(*(CALL if len(answers[0].answers) == 1 else ("It is noon.",)))(answer)

    return script


async def test_a_message_whole_and_as_a_stream() -> None:
    async with anthropic(saying(*WORDS)) as (client, source):
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


async def test_a_loop_of_tools_with_anthropic() -> None:
    """The library runs the tool, and sends the call and its result back."""

    sources = list[ScriptedSource]()
    async with anthropic(calling(sources)) as (client, source):
        sources.append(source)
        messages = HI
        for _ in range(2):
            async with client.messages.stream(model=MODEL, max_tokens=50, messages=messages, tools=TOOLS) as stream:
                message = await stream.get_final_message()
            calls = [block for block in message.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "noon"} for call in calls]
            said: Any = [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
            messages = [*messages, *said]
            if calls:
                assert (calls[0].name, calls[0].input, message.stop_reason) == ("now", {"zone": "UTC"}, "tool_use")
    assert [block.type for block in messages[1]["content"]] == ["text", "tool_use"]
    assert message.content[0].to_dict()["text"] == "It is noon."
    told = "".join(each["content"] for each in source.rendered)
    assert all(words in told for words in ("I look.", "<tool_response>", "noon"))


async def test_a_chat_whole_and_as_a_stream() -> None:
    async with ollama(saying(*WORDS, finish=Finish.MAX_TOKENS)) as (client, source):
        whole = await client.chat("default", messages=HI, options={"num_predict": 3})
        parts = [part async for part in await client.chat(f"{MODEL}:latest", messages=HI, stream=True)]
    assert (whole.message.content, [part.message.content for part in parts]) == ("Good day.", [*WORDS, ""])
    assert [part.done for part in parts] == [False] * 3 + [True]
    for last in (whole, parts[-1]):
        assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("length", 2, 3)
        assert last.total_duration is not None
        assert last.total_duration >= (last.eval_duration or 0) > 0
    assert source.answers[0].options.max_tokens == 3


async def test_a_loop_of_tools_with_ollama() -> None:
    """The library makes a tool of a function; the call comes whole, and its result is sent back."""

    def now(zone: str) -> str:
        """The time. `zone`: where."""
        return f"noon {zone}"

    sources = list[ScriptedSource]()
    async with ollama(calling(sources)) as (client, source):
        sources.append(source)
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
    async with ollama(saying(*WORDS)) as (client, source):
        whole = await client.generate(MODEL, "Hi there", format="json")
        parts = [part async for part in await client.generate(MODEL, "Hi", raw=True, stream=True)]
        loaded = await client.generate(MODEL)
    assert whole.response == "".join(part.response or "" for part in parts) == "Good day."
    assert (loaded.response, loaded.done_reason, len(source.answers)) == ("", "load", 2)


async def test_the_model_is_listed_and_described_to_ollama() -> None:
    async with ollama() as (client, _):
        listed, loaded = await client.list(), await client.ps()
        shown = await client.show("default:latest")
    assert [model.model for model in listed.models] == [MODEL]
    assert [(model.name, model.context_length) for model in loaded.models] == [(MODEL, 100)]
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 100
