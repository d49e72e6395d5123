"""Libraries for Python, pointed to the endpoint as docs/api.md says: what each makes of an answer is the same without
drafts and cuts as with them. Calls and schemas are enforced, so a small model's are right too.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field, SecretStr

from tests.e2e.endpoints import KEY, Endpoints

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("endpoints"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # some leave their connections to the collector
]
QUESTION = "What is the weather in Paris?"
ASKED: Any = [{"role": "user", "content": QUESTION}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 120}
FORCED: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=30)
    country: str = Field(max_length=30)
    continent: Literal["Africa", "America", "Asia", "Australia", "Europe"]


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=20)
    unit: Literal["celsius", "fahrenheit"]


TOOL: Any = pydantic_function_tool(Weather, name="get_weather")
Called = tuple[str, Weather, str]  # a tool, its arguments, and the answer after its result


@pytest.fixture(autouse=True)
def _kept_to_this_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No library asks or tells others, and what one has left open warns in its own test."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch a list of prices
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # of those who take the current one, and close none
    yield
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()


def test_openai(endpoints: Endpoints) -> None:
    def parse(url: str) -> object:
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            message = client.chat.completions.parse(model="default", messages=ASKED, response_format=City, **GREEDY)
            return message.choices[0].message.parsed

    def call(url: str) -> Called:
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            asked: dict[str, Any] = {"model": "default", "tools": [TOOL], **GREEDY}
            with client.chat.completions.stream(messages=ASKED, **asked, **FORCED) as stream:
                choice = stream.get_final_completion().choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.tool_calls is not None
            (called,) = choice.message.tool_calls
            result = {"role": "tool", "tool_call_id": called.id, "content": "sunny"}
            after: Any = [*ASKED, choice.message, result]  # with what the library itself has added to the call
            answer = client.chat.completions.create(messages=after, **asked)
        assert isinstance(called.function.parsed_arguments, Weather)
        return called.function.name, called.function.parsed_arguments, answer.choices[0].message.content or ""

    def tell(url: str) -> str:
        """A long text, whose seed is one of many."""
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            how: dict[str, Any] = {"temperature": 0.8, "seed": 10, "max_tokens": 320, "stream": True}
            chunks = client.chat.completions.create(model="default", messages=ASKED, **how)
            return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    assert endpoints.same(parse) is not None
    assert len(endpoints.same(tell)) > 100
    name, _, text = endpoints.same(call)
    assert name == "get_weather"
    assert text


def test_openai_agents(endpoints: Endpoints) -> None:
    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)

    async def act(url: str) -> tuple[list[str], str, list[str]]:
        """The cities that the tool was asked for, the answer, and what has happened before it."""
        cities: list[str] = []

        def get_weather(city: str) -> str:
            """The weather of a city."""
            cities.append(city)
            return "sunny, 21 degrees"

        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            settings = ModelSettings(temperature=0, max_tokens=60, tool_choice="required", parallel_tool_calls=False)
            model = OpenAIResponsesModel("default", client)
            tools = [function_tool(get_weather)]
            agent = Agent("Weather", instructions="Be brief.", model=model, model_settings=settings, tools=tools)
            run = Runner.run_streamed(agent, QUESTION)
            kinds = [event.name async for event in run.stream_events() if event.type == "run_item_stream_event"]
            return cities, str(run.final_output), [str(kind) for kind in kinds]

    cities, answer, kinds = endpoints.same(lambda url: asyncio.run(act(url)))
    assert len(cities) == 1
    assert answer
    assert kinds == ["tool_called", "tool_output", "message_output_created"]


def test_litellm(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm

    monkeypatch.setattr(litellm, "suppress_debug_info", True)

    def to(url: str) -> dict[str, Any]:
        return {"model": "openai/default", "api_base": f"{url}/v1", "api_key": KEY, "max_retries": 0}

    def parse(url: str) -> City:
        answer = litellm.completion(**to(url), messages=ASKED, response_format=City, **GREEDY)
        return City.model_validate_json(answer.choices[0].message.content)

    def call(url: str) -> Called:
        asked = {**to(url), "tools": [TOOL], **GREEDY}
        chunks = list(litellm.completion(messages=ASKED, stream=True, **asked, **FORCED))
        whole: Any = litellm.stream_chunk_builder(chunks)
        assert whole.choices[0].finish_reason == "tool_calls"
        (called,) = whole.choices[0].message.tool_calls
        result = {"role": "tool", "tool_call_id": called.id, "name": called.function.name, "content": "sunny"}
        answer = litellm.completion(messages=[*ASKED, whole.choices[0].message, result], **asked)
        weather = Weather.model_validate_json(called.function.arguments)
        return called.function.name, weather, answer.choices[0].message.content

    def continued(url: str) -> str:
        text: str = litellm.text_completion(**to(url), prompt="Once upon a time", **GREEDY).choices[0].text
        return text

    endpoints.same(parse)
    assert endpoints.same(call)[0] == "get_weather"
    assert endpoints.same(continued)


def test_pydantic_ai(endpoints: Endpoints) -> None:
    from pydantic_ai import Agent, NativeOutput, UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def model(url: str) -> OpenAIChatModel:
        return OpenAIChatModel("default", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))

    def act(url: str, *, is_native: bool) -> tuple[list[Weather], City]:
        """The agent's output is JSON instead of a call, or the arguments of a last call."""
        calls: list[Weather] = []

        def weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
            """The weather of a city."""
            calls.append(Weather(city=city, unit=unit))
            return "sunny"

        agent = Agent(
            model(url),
            output_type=NativeOutput(City) if is_native else City,
            model_settings={"temperature": 0, "max_tokens": 120},
            tools=[weather],
        )
        return calls, agent.run_sync(QUESTION, usage_limits=UsageLimits(request_limit=4)).output

    endpoints.same(partial(act, is_native=True))
    calls, _ = endpoints.same(partial(act, is_native=False))
    assert calls


def test_langchain_openai(endpoints: Endpoints) -> None:
    from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    def model(url: str) -> ChatOpenAI:
        return ChatOpenAI(
            model="default",
            base_url=f"{url}/v1",
            api_key=SecretStr(KEY),
            temperature=0,
            max_completion_tokens=120,
            max_retries=0,
        )

    def parse(url: str) -> list[object]:
        by_schema, by_call = (model(url).with_structured_output(City, method=method) for method in METHODS)
        return [by_schema.invoke(QUESTION), by_call.invoke(QUESTION)]

    def call(url: str) -> Called:
        question = HumanMessage(QUESTION)
        whole = AIMessageChunk(content="")
        for chunk in model(url).bind_tools([TOOL], **FORCED).stream([question]):
            assert isinstance(chunk, AIMessageChunk)
            whole += chunk
        (called,) = whole.tool_calls
        result = ToolMessage("sunny", tool_call_id=called["id"])
        answer = model(url).bind_tools([TOOL]).invoke([question, whole, result])
        return called["name"], Weather.model_validate(called["args"]), answer.text

    assert all(isinstance(city, City) for city in endpoints.same(parse))
    name, _, text = endpoints.same(call)
    assert name == "get_weather"
    assert text


METHODS: tuple[Literal["json_schema"], Literal["function_calling"]] = ("json_schema", "function_calling")
