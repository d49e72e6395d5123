"""Responses over the daemon's endpoint with the default model: forms, kept responses, tools in a loop, agents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from openai import NotFoundError, OpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseFunctionToolCall
from pydantic import BaseModel, Field

from tests.support.daemon_home import Home, daemon_home

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target")]
PLAIN: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": 120}
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Fruit(BaseModel):
    name: str = Field(max_length=20)
    is_red: bool


@pytest.fixture(scope="module")
def home(exact_server: str) -> Iterator[Home]:
    with daemon_home(dict(os.environ), SERVER=exact_server, ALONE="never") as home:
        yield home


def started(home: Home) -> str:
    """The address of the endpoint, once the daemon has begun, which it does again if it was ended."""
    assert home.run("daemon", "start")[0] == 0
    return f"{home.status()['url']}/v1"


def client_of(home: Home) -> OpenAI:
    return OpenAI(base_url=started(home), api_key="none", max_retries=0)


def call_of(response: Response) -> ResponseFunctionToolCall:
    """The only call."""
    (call,) = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
    return call


def test_a_form_is_parsed_and_a_kept_response_outlives_the_daemon(home: Home) -> None:
    with client_of(home) as client:
        fruit = client.responses.parse(input="Describe an apple as JSON.", text_format=Fruit, **PLAIN)
        assert fruit.output_parsed is not None
        again = client.responses.parse(input="Describe an apple as JSON.", text_format=Fruit, store=False, **PLAIN)
        assert again.output_text == fruit.output_text
    assert home.run("daemon", "stop")[0] == 0
    with client_of(home) as client:
        assert client.responses.retrieve(fruit.id).output_text == fruit.output_text
        with pytest.raises(NotFoundError):
            client.responses.retrieve(again.id)
        asked: list[Any] = [
            {"role": "user", "content": "Describe an apple as JSON."},
            {"role": "assistant", "content": fruit.output_text},
            {"role": "user", "content": "And a lemon?"},
        ]
        whole = client.responses.create(input=asked, store=False, **PLAIN)
        continued = client.responses.create(input="And a lemon?", previous_response_id=fruit.id, **PLAIN)
        assert continued.output_text == whole.output_text
    code, _, err = home.run("history", "delete", "--all", "--yes")
    assert (code, err) == (0, "0 conversations and 2 responses to programs deleted.\n")


def test_a_call_is_made_answered_and_continued(home: Home) -> None:
    with client_of(home) as client:
        asked: dict[str, Any] = {**PLAIN, "input": "What is the weather in Paris?", "tools": [WEATHER]}
        called = client.responses.create(tool_choice="required", parallel_tool_calls=False, **asked)
        with client.responses.stream(tool_choice="required", parallel_tool_calls=False, **asked) as stream:
            pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            streamed = stream.get_final_response()
        call = call_of(called)
        assert (call.name, set(json.loads(call.arguments))) == ("get_weather", {"city"})
        assert call.arguments == call_of(streamed).arguments == "".join(pieces)
        result: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 degrees"}]
        answer = client.responses.create(**{**PLAIN, "input": result}, previous_response_id=called.id)
    assert answer.output_text
    assert answer.previous_response_id == called.id
