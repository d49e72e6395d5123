"""Tools over the daemon's endpoint with the default model, whose template knows none: required calls fit their schema."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ChatCompletionToolParam

from tests.support.daemon_home import daemon_home

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target")]
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
PLAIN: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": 120}


@pytest.fixture(scope="module")
def client(exact_server: str) -> Iterator[OpenAI]:
    with daemon_home(dict(os.environ), SERVER=exact_server, STANDALONE="never") as home:
        assert home.run("daemon", "start")[0] == 0
        with OpenAI(base_url=home.status()["url"] + "/v1", api_key="none", max_retries=0) as client:
            yield client


def called(message: ChatCompletionMessage) -> tuple[str, str]:
    """The name and the arguments of the only call."""
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    return call.function.name, call.function.arguments


def test_a_required_call_fits_its_schema_whole_and_as_a_stream(client: OpenAI) -> None:
    one: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(messages=ASKED, **PLAIN, **one).choices[0]
    with client.chat.completions.stream(messages=ASKED, **PLAIN, **one) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        streamed = stream.get_final_completion().choices[0]
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"
    name, arguments = called(whole.message)
    assert (name, arguments) == called(streamed.message) == ("get_weather", "".join(pieces))
    assert len(pieces) == 1  # once the call is whole
    values = json.loads(arguments)
    assert set(values) == {"city", "unit"}
    assert len(values["city"]) <= 20
    assert values["unit"] in ("celsius", "fahrenheit")

    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    after: list[Any] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
    ]
    answer = client.chat.completions.create(messages=after, tools=[WEATHER], tool_choice="none", **PLAIN)
    assert answer.choices[0].message.content


def test_a_call_that_a_limit_cuts_is_text(client: OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    asked: dict[str, Any] = {**PLAIN, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 24}
    answer = client.chat.completions.create(messages=ASKED, **asked).choices[0]
    assert answer.finish_reason == "length"
    assert not answer.message.tool_calls
    assert "get_weather" in (answer.message.content or "")
