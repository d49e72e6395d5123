"""Each API's translator, in and out: what requests become, in which words they are refused, what answers are sent as."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Committed, Ended, ExecutionChanged
from moa_client.endpoint import anthropic, ollama, openai, responses
from moa_client.endpoint.answer import Answer, Form
from moa_client.endpoint.ask import ChatAsk, Prompt
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.fields import REFUSED, REFUSED_IN_MESSAGES, parsed_request
from moa_client.endpoint.openai_fields import EmbeddingRequest
from moa_client.endpoint.routes import endpoint_routes
from moa_client.tools.formats.json_calls import Hermes
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import Tool, ToolCall, ToolOffer, ToolResult
from moa_client.tools.turns import ChatMessage
from moa_client.web.error_form import RequestError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import Constraint, ConstraintKind, WantedChances, choice_of
from starlette.routing import Route

from tests.support.scripted_answers import ScriptedSource, made_answer

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
SAID = ChatMessage("user", "Hi")


def parser(kind: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: ((asked := parsed_request(kind, body)).ask(), asked.form)


PARSERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": parser(openai.ChatRequest),
    "text": parser(openai.TextRequest),
    "responses": responses.response_request,
    "anthropic": parser(anthropic.MessagesRequest),
    "ollama": parser(ollama.ChatRequest),
    "generate": parser(ollama.TextRequest),
}
LEAST: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER]},
    "text": {"prompt": "Once"},
    "responses": {"input": "Hi"},
    "anthropic": {"max_tokens": 9, "messages": [USER]},
    "ollama": {"messages": [USER]},
    "generate": {"prompt": "Hi"},
}


def asked(api: str, given: dict[str, Any]) -> ChatAsk:
    """What a request asks that has no more than it must, and this."""
    ask, _ = PARSERS[api](LEAST[api] | given)
    assert isinstance(ask, ChatAsk)
    return ask


# ------------------------------------------------------------ requests

OBJECT = {"type": "object", "properties": {"é": {"type": "integer"}}}
JSON, TEXT = Constraint(ConstraintKind.JSON_OBJECT), json.dumps(OBJECT, ensure_ascii=False)
SCHEMA = Constraint(ConstraintKind.JSON_SCHEMA, TEXT)
NAMED = {"name": "x", "schema": OBJECT, "strict": True}
OFF = {"min_p": None, "repeat_penalty": None, "repeat_last_n": None, "logit_bias": (), "loop_guard": True}
SAMPLED = {"temperature": 0.5, "top_p": 0.9, "top_k": 4}
TUNED = {"min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 1, "frequency_penalty": -0.5}


OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("chat", {}, {"temperature": None, "max_tokens": 0, "stop": (), "constraint": None, "chances": None, **OFF}),
    ("chat", SAMPLED | TUNED, SAMPLED | TUNED),
    ("chat", {"seed": -1, "max_completion_tokens": 7}, {"seed": (1 << 64) - 1, "max_tokens": 7}),
    ("chat", {"max_tokens": 7, "stop": "END"}, {"max_tokens": 7, "stop": ("END",)}),
    ("chat", {"logit_bias": {"42": -100, "7": 1.5}}, {"logit_bias": ((7, 1.5), (42, -100.0))}),
    ("chat", {"loop_guard": False, "stop": ["a", "b"]}, {"loop_guard": False, "stop": ("a", "b")}),
    (
        "chat",
        {"logprobs": True, "stream": True, "stream_options": {"include_usage": True}},
        {"chances": WantedChances()},
    ),
    ("chat", {"logprobs": True, "top_logprobs": 20, "moa": {"logprobs": "raw"}}, {"chances": WantedChances(20)}),
    ("chat", {"logprobs": False, "temperature": None, "user": "x", "n": 1}, {"chances": None}),
    ("chat", {"response_format": {"type": "text"}}, {"constraint": None}),
    ("chat", {"response_format": {"type": "json_object"}}, {"constraint": JSON}),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": NAMED}}, {"constraint": SCHEMA}),
    ("chat", {"structured_outputs": {"json": OBJECT}}, {"constraint": SCHEMA}),
    ("text", {"structured_outputs": {"json": TEXT}}, {"constraint": SCHEMA}),
    ("text", {"structured_outputs": {"regex": "a+"}}, {"constraint": Constraint(ConstraintKind.REGEX, "a+")}),
    ("text", {"structured_outputs": {"choice": ["a", "b"]}}, {"constraint": choice_of(["a", "b"])}),
    (
        "text",
        {"structured_outputs": {"grammar": "start:"}},
        {"constraint": Constraint(ConstraintKind.LARK, "start:")},
    ),
    ("text", {}, {"max_tokens": 16}),
    ("text", {"max_tokens": 3, "logprobs": False}, {"max_tokens": 3, "chances": None}),
    ("text", {"logprobs": 0, "moa": {"logprobs": "processed"}}, {"chances": WantedChances(processed=True)}),
    ("responses", SAMPLED | {"max_output_tokens": 7, "stop": "END"}, SAMPLED | {"max_tokens": 7, "stop": ("END",)}),
    ("responses", {"text": {"format": {"type": "json_schema", **NAMED}}}, {"constraint": SCHEMA}),
    ("responses", {"text": {"format": {"type": "json_object"}, "verbosity": "medium"}}, {"constraint": JSON}),
    ("anthropic", SAMPLED | {"stop_sequences": ["a", "b"]}, SAMPLED | {"max_tokens": 9, "stop": ("a", "b")}),
    ("anthropic", {"output_config": {"format": {"type": "json_schema", "schema": OBJECT}}}, {"constraint": SCHEMA}),
    ("ollama", {"options": SAMPLED | TUNED}, SAMPLED | TUNED),
    (
        "ollama",
        {"options": {"num_predict": 7, "stop": "END", "num_ctx": 4096}},
        {"max_tokens": 7, "stop": ("END",)},
    ),
    ("ollama", {"options": {"seed": 3, "num_predict": -1}, "format": ""}, {"seed": 3, "max_tokens": 0}),
    ("ollama", {"format": "json"}, {"constraint": JSON}),
    ("generate", {"format": OBJECT}, {"constraint": SCHEMA}),
]


@pytest.mark.parametrize(("api", "given", "options"), OPTIONS)
def test_how_an_answer_is_chosen(api: str, given: dict[str, Any], options: dict[str, Any]) -> None:
    found = asked(api, given).options
    assert {name: getattr(found, name) for name in options} == options


def test_what_is_left_open_is_the_apis() -> None:
    assert all(len({asked(api, {}).options.seed for _ in range(5)}) > 1 for api in PARSERS)
    assert {api: asked(api, {}).defaults.temperature for api in ("chat", "anthropic", "ollama")} == {
        "chat": 1.0,
        "anthropic": 1.0,
        "ollama": 0.8,
    }
    assert [asked(api, {}).stream for api in PARSERS] == [False, False, False, False, True, True]
    assert [asked(api, {"moa": {"unverified": "end"}}).unverified for api in ("chat", "anthropic")] == ["end", "end"]
    assert asked("ollama", {"model": "default:latest"}).model == "default"


@pytest.mark.parametrize("prompt", ["Once", [1, 2]])
def test_a_prompt_is_a_text_or_its_tokens_which_may_be_in_a_list(prompt: Any) -> None:
    assert asked("text", {"prompt": prompt}).text == asked("text", {"prompt": [prompt]}).text == prompt
    assert asked("generate", {"prompt": "a", "raw": True}).text == "a"
    assert asked("generate", {"prompt": "a", "system": "b"}).messages == [
        ChatMessage("system", "b"),
        ChatMessage("user", "a"),
    ]


FUNCTION = {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
TOOL, FLAT = {"type": "function", "function": FUNCTION}, {"type": "function", **FUNCTION}
CUSTOM = {"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}
NOW = (Tool("now", "The time."),)


OFFERS: list[tuple[str, dict[str, Any], ToolOffer]] = [
    ("chat", {"tools": [TOOL]}, ToolOffer(NOW)),
    ("chat", {"tools": [TOOL], "tool_choice": "none"}, ToolOffer()),
    (
        "chat",
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        ToolOffer(NOW, True, False),
    ),
    ("chat", {"tools": [TOOL], "tool_choice": TOOL}, ToolOffer(NOW, True, False)),
    ("responses", {"tools": [FLAT], "tool_choice": "auto"}, ToolOffer(NOW)),
    ("responses", {"tools": [FLAT], "tool_choice": FLAT}, ToolOffer(NOW, True, False)),
    ("anthropic", {"tools": [CUSTOM]}, ToolOffer(NOW)),
    ("anthropic", {"tools": [CUSTOM], "tool_choice": {"type": "none"}}, ToolOffer()),
    ("anthropic", {"tools": [CUSTOM], "tool_choice": {"type": "any"}}, ToolOffer(NOW, True)),
    (
        "anthropic",
        {"tools": [CUSTOM], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ToolOffer(NOW, False, False),
    ),
    ("anthropic", {"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "now"}}, ToolOffer(NOW, True, False)),
    ("ollama", {"tools": [TOOL]}, ToolOffer(NOW)),
]


@pytest.mark.parametrize(("api", "given", "offer"), OFFERS)
def test_which_tools_an_answer_may_call(api: str, given: dict[str, Any], offer: ToolOffer) -> None:
    assert asked(api, given).offer == offer


CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
ITEM = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "1", "name": "now", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "noon"}
USE = {"type": "tool_use", "id": "1", "name": "now", "input": {"zone": "UTC"}}
MADE, ZONED = ToolCall("1", "now", "{}"), ToolCall("1", "now", '{"zone": "UTC"}')


def result(content: object = "noon", **more: object) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": content, **more}]}


Case = tuple[str, dict[str, Any], list[ChatMessage | ToolResult]]


def calling(call: dict[str, Any]) -> Case:
    """A call as libraries send it back, and its result."""
    called = {"role": "assistant", "content": None, "parsed": None, "tool_calls": [call]}
    noon = {"role": "tool", "content": "noon", "tool_call_id": "1", "name": "now"}
    made: list[ChatMessage | ToolResult] = [SAID, ChatMessage("assistant", "", (MADE,))]
    made.append(ToolResult("1", "now", "noon"))
    return "chat", {"messages": [USER, called, noon]}, made


CONVERSATIONS: list[Case] = [
    (
        "chat",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
                {**USER, "name": "Bob"},
                {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "tool_calls": None,
                    "reasoning_content": "?",
                },
                {"role": "assistant", "refusal": "No."},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "Not now."}]},
                {"role": "developer", "content": "Be loud."},
                USER,
            ]
        },
        [
            ChatMessage("system", "Be brief.\n\nBe kind."),
            ChatMessage("user", "Hi", name="Bob"),
            ChatMessage("assistant", "Hello", reasoning="?"),
            ChatMessage("assistant", "No."),
            ChatMessage("assistant", "Not now."),
            ChatMessage("system", "Be loud."),
            SAID,
        ],
    ),
    *[
        calling(call)
        for call in (CALL, CALL | {"function": {"name": "now", "arguments": "", "parsed_arguments": {}}, "index": 0})
    ],
    (
        "responses",
        {
            "instructions": "Be kind.",
            "input": [
                {"role": "developer", "content": "Be brief."},
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "H"}, {"text": "i"}],
                },  # kept ones have no type
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
                {
                    "id": "msg_1",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "See:", "logprobs": []}],
                },
                ITEM,
                {**ITEM, "call_id": "2"},
                OUTPUT,
                {**OUTPUT, "call_id": "2", "output": [{"type": "input_text", "text": "one"}]},
                ITEM,
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": "final_answer"},
                {"role": "system", "content": "Be loud."},
            ],
        },
        [
            ChatMessage("system", "Be kind.\n\nBe brief."),
            SAID,
            ChatMessage("assistant", "See:", (MADE, ToolCall("2", "now", "{}"))),
            ToolResult("1", "now", "noon"),
            ToolResult("2", "now", "one"),
            ChatMessage("assistant", "No.", (MADE,)),
            ChatMessage("system", "Be loud."),
        ],
    ),
    (  # as version 2.1.197 of Claude Code sent it in the third request of a session, with shorter texts
        "anthropic",
        {
            "system": [{"type": "text", "text": "x-billing"}, {"type": "text", "text": "You are"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<reminder>"}, {"type": "text", "text": "?"}]},
                {"role": "system", "content": "Available agent types"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": ""},
                        {"type": "text", "text": "I look."},
                        USE | {"caller": {"type": "direct"}},
                    ],
                },
                result([{"type": "text", "text": "no"}], is_error=True),
            ],
            "metadata": {"user_id": "{}"},
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
        },
        [
            ChatMessage("system", "x-billing\n\nYou are"),
            ChatMessage("user", "<reminder>\n\n?\n\nAvailable agent types"),
            ChatMessage("assistant", "I look.", (ZONED,)),
            ToolResult("1", "now", "Error: no"),
        ],
    ),
]


@pytest.mark.parametrize(("api", "given", "messages"), CONVERSATIONS)
def test_messages_become_what_templates_know(api: str, given: dict[str, Any], messages: list[Any]) -> None:
    assert asked(api, given).messages == messages


def test_a_result_of_ollamas_finds_its_call_by_id_by_name_or_in_turn() -> None:
    def calling(*names: str, **more: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": name}, **more} for name in names]}

    messages = [
        USER,
        calling("now", "then", "now"),
        {"role": "tool", "tool_name": "then", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "name": "now", "content": "3"},
        calling("now", id="x"),
        {"role": "tool", "tool_call_id": "x", "content": "4"},
    ]
    made = asked("ollama", {"messages": messages}).messages
    results = [each for each in made if isinstance(each, ToolResult)]
    assert [(each.name, each.content) for each in results] == [("then", "1"), ("now", "2"), ("now", "3"), ("now", "4")]
    calls = [call.id for each in made if isinstance(each, ChatMessage) for call in each.calls]
    assert [each.call_id for each in results] == [calls[1], calls[0], calls[2], "x"]
    assert len(set(calls)) == 4


# ------------------------------------------------------------ what is ignored, and what is refused

OPAQUE = ("arguments", "logit_bias", "metadata")  # JSON of the program's own


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects that a request describes itself; schemas are the program's."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    elif isinstance(value, dict) and "properties" not in value:
        yield value
    else:
        return
    for name, each in value.items():
        if name not in OPAQUE and not (name == "input" and isinstance(each, dict)):
            yield from objects(each)


@pytest.mark.parametrize(("api", "given"), [case[:2] for case in (*OPTIONS, *OFFERS, *CONVERSATIONS)])
def test_unknown_fields_are_ignored_at_every_depth(api: str, given: dict[str, Any]) -> None:
    seeded = {"options": given.get("options", {}) | {"seed": 1}} if api in ("ollama", "generate") else {"seed": 1}
    body = json.loads(json.dumps(LEAST[api] | given | seeded))
    more = json.loads(json.dumps(body))
    for each in list(objects(more)):
        each |= {"cache_control": {"type": "ephemeral"}, "extra_content": {"google": {}}, "caller": None, "index": 0}
    assert asked(api, more) == asked(api, body)


@pytest.mark.parametrize(("api", "kind"), [("chat", openai.ChatRequest), ("responses", responses.ResponseRequest)])
def test_what_asks_for_nothing_special_is_accepted(api: str, kind: Any) -> None:
    names = REFUSED.keys() - kind.names()
    harmless = {name: REFUSED[name].harmless[0] for name in names if REFUSED[name].harmless}
    assert {"suffix", "mirostat", "min_tokens"} <= set(harmless)
    assert asked(api, dict.fromkeys(names)).messages == asked(api, harmless).messages == [SAID]


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("chat", openai.ChatRequest),
        ("text", openai.TextRequest),
        ("responses", responses.ResponseRequest),
        ("anthropic", anthropic.MessagesRequest),
        ("ollama", ollama.ChatRequest),
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_name(api: str, kind: Any) -> None:
    for name in REFUSED.keys() - kind.names():
        with pytest.raises(RequestError, match=rf"^{name} is not supported\. ") as caught:
            asked(api, {name: 3})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    for name in REFUSED_IN_MESSAGES if api in ("chat", "ollama") else ():
        with pytest.raises(RequestError, match=rf"^messages\[0\]\.{name} is not supported\. "):
            asked(api, {"messages": [USER | {name: True}]})


def test_the_docs_name_every_field_and_request() -> None:
    page = (Path(__file__).parents[4] / "docs" / "api.md").read_text("utf-8")
    kinds = (openai.ChatRequest, openai.TextRequest, responses.ResponseRequest, EmbeddingRequest)
    for kind in (*kinds, anthropic.MessagesRequest, ollama.ChatRequest, ollama.TextRequest, ollama.OptionFields):
        assert [name for name in kind.names() if f"`{name}`" not in page] == []
    assert [name for name in (*REFUSED, *REFUSED_IN_MESSAGES) if f"`{name}`" not in page] == []
    routes = endpoint_routes(ScriptedSource().model, EndpointSettings(), asyncio.Event())
    paths = [route.path.replace("{name:path}", "NAME") for route in routes if isinstance(route, Route)]
    assert [path for path in paths if f"{path}`" not in page] == []


# An API, what its request has, and why that is refused. Names stand for the objects above.
ASSISTANT = {"role": "assistant", "content": "Well"}
NAMES = {
    "USER": USER,
    "ASSISTANT": ASSISTANT,
    "TOOL": TOOL,
    "FLAT": FLAT,
    "CUSTOM": CUSTOM,
    "CALL": CALL,
    "ITEM": ITEM,
    "OUTPUT": OUTPUT,
    "USE": USE,
}
WORDS = """
chat {"logprobs": true, "top_logprobs": 21} -> top_logprobs: expected at most 20.
chat {"tools": [{"type": "function"}]} -> tools[0].function is missing.
chat {"tools": [{"type": "web_search"}]} -> tools[0].type: expected 'function'.
chat {"tools": [{"type": "function", "function": {"name": "a b"}}]} -> tools[0].function: The tool's name 'a b' cannot be used. Use 1 to 128 of the characters a-z, A-Z, 0-9, _ and -.
chat {"tools": [TOOL, TOOL]} -> tools: Two tools have the name now. Rename one of them.
chat {"tool_choice": "required"} -> tool_choice: A call is required, but no tool is offered. Offer one, or require none.
chat {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "then"}}} -> tool_choice: A call of 'then' is required, which is not among the tools. Offered: now.
chat {"tools": [TOOL], "tool_choice": "must"} -> tool_choice: expected 'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}.
chat {"tools": [TOOL], "structured_outputs": {"regex": "a"}} -> structured_outputs: an answer of this form calls no tools: use response_format, or tool_choice: 'none'.
chat {"temperature": -1} -> temperature is -1.0, expected 0 (greedy) or 0.001 to 100.
chat {"temperature": NaN} -> temperature: expected a finite number.
chat {"logit_bias": {"hello": 1}} -> logit_bias names 'hello', expected the id of a token.
chat {"max_tokens": 0} -> max_tokens: expected at least 1.
chat {"stop": ""} -> stop: each text must have 1 to 64 characters.
chat {"stop": ["a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"]} -> stop: list should have at most 16 items, not 17.
chat {"response_format": {"type": "xml"}} -> response_format.type: expected 'text', 'json_object' or 'json_schema'.
chat {"response_format": {"type": "json_schema", "json_schema": {}}} -> response_format.json_schema.schema is missing.
chat {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}} -> structured_outputs: give either it or response_format.
chat {"structured_outputs": {"x": 1}} -> structured_outputs: Exactly one of json, regex, choice and grammar is expected, 0 were given.
chat {"structured_outputs": {"choice": []}} -> structured_outputs: The choice is of 0 texts, expected 1 to 1000.
chat {"messages": null} -> messages is missing.
chat {"messages": [{"role": "robot", "content": "Hi"}]} -> messages[0].role: expected 'system', 'developer', 'user', 'assistant' or 'tool'.
chat {"messages": [{"role": "user", "content": ["Hi"]}]} -> messages[0].content: expected a text, or a list of parts of type text.
chat {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]} -> messages[0].content: part 0 is of type image_url: models read text only.
chat {"messages": [{"role": "user", "content": "Hi", "tool_calls": [CALL]}]} -> messages[0].tool_calls: only a message from assistant has calls.
chat {"messages": [{"role": "assistant", "content": "Well", "tool_calls": [{"id": "1"}]}]} -> messages[0].tool_calls[0].function is missing.
chat {"messages": [USER, {"role": "assistant", "content": null, "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": 5}]} -> messages[2].tool_call_id: expected text.
chat {"messages": [USER, {"role": "assistant", "content": null, "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": "2"}]} -> messages[2].tool_call_id: nothing before it made the call '2'.
chat {"messages": [{"role": "assistant", "content": "Well", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{"}}]}, USER]} -> messages[0].tool_calls[0]: The arguments of the call '1' are not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). Send calls back as the model made them, and none that was cut.
chat {"messages": [USER, ASSISTANT]} -> messages[1].role: the last message must not be from assistant: answers are not continued.
text {"prompt": ["a", ""]} -> prompt: expected a text that is not empty, or the ids of its tokens, or a list of several of these.
text {"prompt": [[1], [2]]} -> prompt: list should have at most 1 item, not 2.
responses {"input": [{"type": "reasoning"}]} -> input: there is no message in it.
responses {"input": [{"type": "item_reference"}]} -> input[0].type is 'item_reference', which is not supported. What there is: message, function_call, function_call_output, reasoning.
responses {"input": [USER, ASSISTANT]} -> input: the last item must not be a message from assistant, or a call: answers are not continued.
responses {"input": [USER, OUTPUT]} -> input[1].call_id: nothing before it made the call '1'.
responses {"tool_choice": {"type": "web_search"}} -> tool_choice: expected 'auto', 'none', 'required' or {'type': 'function', 'name': ...}.
responses {"tools": [FLAT], "structured_outputs": {"choice": ["a"]}} -> structured_outputs: an answer of this form calls no tools: use text.format.
responses {"text": {"format": {"type": "json_schema", "name": "a"}}} -> text.format.schema is missing.
responses {"store": true} -> store: nothing is kept here (--no-history): send false.
anthropic {"moa": {"provisional": true}} -> moa.provisional is not supported. Streams have committed text only.
anthropic {"max_tokens": null} -> max_tokens is missing.
anthropic {"stop_sequences": [""]} -> stop_sequences: each text must have 1 to 64 characters.
anthropic {"tools": [{"type": "web_search_20250305", "name": "web_search"}]} -> tools[0].type: expected 'custom'.
anthropic {"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "then"}} -> tool_choice: A call of 'then' is required, which is not among the tools. Offered: now.
anthropic {"messages": [{"role": "user", "content": [{"type": "image"}]}]} -> messages[0].content[0].type is 'image', which is not supported. What there is: text, tool_use, tool_result, thinking, redacted_thinking.
anthropic {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document"}]}]}]} -> messages[0].content[0].content: part 0 is of type document: models read text only.
anthropic {"messages": [{"role": "user", "content": []}]} -> messages[0].content: expected a text, or blocks.
anthropic {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "noon"}]}]} -> messages[0].content[0].tool_use_id: nothing before it made the call '1'.
anthropic {"messages": [{"role": "user", "content": [USE]}]} -> messages[0].content[0]: only a message from assistant has calls.
anthropic {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "noon"}]}, USER]} -> messages[1].content[0]: only a message from user answers a call.
ollama {"options": {"mirostat": 2}} -> options.mirostat is not supported. There is no such sampler.
ollama {"options": {"top_p": 2}} -> options: top_p is 2.0, expected more than 0 and at most 1.
ollama {"format": "xml"} -> format: expected 'json' or a JSON schema.
ollama {"think": "much"} -> think: expected true, false, low, medium, high, max.
ollama {"messages": [USER, {"role": "tool", "tool_name": "now"}]} -> messages[1].tool_call_id: nothing before it made the call 'now'.
generate {"raw": true, "system": "a"} -> system: raw uses no template: write it into the prompt.
""".strip().split("\n")


@pytest.mark.parametrize("case", WORDS)
def test_what_cannot_be_used_is_refused_by_its_name(case: str) -> None:
    asks, words = case.split(" -> ")
    api, _, fields = asks.partition(" ")
    body = json.loads(re.sub("|".join(rf"\b{name}\b" for name in NAMES), lambda it: json.dumps(NAMES[it[0]]), fields))
    with pytest.raises(RequestError) as caught:
        asked(api, body)
    assert (str(caught.value), caught.value.status) == (words, 400)
    code = "missing_required_parameter" if words.endswith(" is missing.") else "invalid_value"
    assert caught.value.code == ("unsupported_parameter" if "not supported." in words else code)
    assert caught.value.param
    assert words.startswith(caught.value.param) or caught.value.param in body


def test_long_requests_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 1000 items"):
        asked("chat", {"messages": [USER] * 1001})


# ------------------------------------------------------------ answers


OBJECT_CALL = '<tool_call>{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>'
WORDS_OF = ("<think>Hmm</think>", "I look.\n", OBJECT_CALL)
Told = tuple[str, str, list[tuple[str, Any]], str | None]  # reasoning, text, calls, why it has ended
Read = Callable[[dict[str, Any]], Told]
CALLING = Prompt([1] * 7, None, Hermes(), ToolOffer((Tool("now"),)), find_thinking("<think>"))


def form_of(api: str, given: dict[str, Any] | None = None, **more: Any) -> Form:
    """What an answer is sent as that has not begun."""
    make: Callable[[Answer], Form] = PARSERS[api](LEAST[api] | {"stream": True} | (given or {}))[1]
    return make(made_answer(**more))


def ended(api: str, words: list[str], finish: Finish = Finish.END_OF_TEXT, **more: Any) -> tuple[Any, bytes]:
    """A whole answer, and the stream of it that has come in these words."""
    whole, streamed, stream = form_of(api, **more), form_of(api, **more), b""
    for number, word in enumerate(words):
        for form in (whole, streamed):
            form.answer.apply(Update(Committed((number,), text=word), 1), 0.0)
        stream += (b"" if stream else streamed.first()) + streamed.next()
    for form in (whole, streamed):
        form.answer.apply(Update(Ended(finish), 1), 0.0)
    return whole.whole(), stream + streamed.last()


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n")]
    return [json.loads(line) for line in lines if line.startswith("{")]


def read_chat(fields: dict[str, Any]) -> Told:
    (choice,) = fields["choices"]
    message = choice["message"]
    calls = [(each["id"], json.loads(each["function"]["arguments"])) for each in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message["content"] or "", calls, choice["finish_reason"]


def added_chat(chunks: list[dict[str, Any]]) -> Told:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls: list[list[Any]] = []
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        if "id" in call:
            assert call["index"] == len(calls)
            calls.append([call["id"], ""])
        calls[call["index"]][1] += call["function"]["arguments"]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert not any(reasons[:-1])
    said = ["".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning_content", "content")]
    return said[0], said[1], [(each[0], json.loads(each[1])) for each in calls], reasons[-1]


def read_responses(fields: dict[str, Any]) -> Told:
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in fields["output"]:
        if item["type"] == "function_call":
            calls.append((item["call_id"], json.loads(item["arguments"])))
        else:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return texts["reasoning"], texts["message"], calls, fields["status"]


def added_responses(chunks: list[dict[str, Any]]) -> Told:
    assert [each["sequence_number"] for each in chunks] == list(range(len(chunks)))
    done = [each["item"] for each in chunks if each["type"] == "response.output_item.done"]
    added = [each["item"] for each in chunks if each["type"] == "response.output_item.added"]
    last = chunks[-1]["response"]
    assert done == last["output"]
    assert [each["id"] for each in added] == [each["id"] for each in done]
    for index, item in enumerate(done):
        deltas = "".join(each.get("delta", "") for each in chunks if each.get("output_index") == index)
        assert deltas == item.get("arguments", "".join(part["text"] for part in item.get("content", [])))
    return read_responses(last)


def read_anthropic(fields: dict[str, Any]) -> Told:
    calls = [(each["id"], each["input"]) for each in fields["content"] if each["type"] == "tool_use"]
    reasoning = "".join(each.get("thinking", "") for each in fields["content"])
    return reasoning, "".join(each.get("text", "") for each in fields["content"]), calls, fields["stop_reason"]


def added_anthropic(chunks: list[dict[str, Any]]) -> Told:
    content: list[dict[str, Any]] = []
    open_blocks: list[int] = []
    for each in chunks:
        match each["type"]:
            case "content_block_start":
                assert (open_blocks, each["index"]) == ([], len(content))
                open_blocks.append(each["index"])
                content.append(each["content_block"])
            case "content_block_delta":
                assert open_blocks == [each["index"]]
                delta = each["delta"]
                for key in ("text", "thinking"):
                    if key in delta:
                        content[-1][key] += delta[key]
                if "partial_json" in delta:
                    content[-1]["input"] = json.loads(delta["partial_json"])
            case "content_block_stop":
                assert open_blocks.pop() == each["index"]
    assert not open_blocks
    assert [each["type"] for each in chunks[-2:]] == ["message_delta", "message_stop"]
    return read_anthropic({"content": content, **chunks[-2]["delta"]})


def read_ollama(fields: dict[str, Any]) -> Told:
    message = fields["message"]
    calls = [(each["id"], each["function"]["arguments"]) for each in message.get("tool_calls", [])]
    return message.get("thinking", ""), message["content"], calls, fields.get("done_reason")


def added_ollama(chunks: list[dict[str, Any]]) -> Told:
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    reasoning, texts, calls, reasons = zip(*map(read_ollama, chunks), strict=True)
    return "".join(reasoning), "".join(texts), [call for each in calls for call in each], reasons[-1]


READERS: dict[str, tuple[Read, Callable[[list[dict[str, Any]]], Told]]] = {
    "chat": (read_chat, added_chat),
    "responses": (read_responses, added_responses),
    "anthropic": (read_anthropic, added_anthropic),
    "ollama": (read_ollama, added_ollama),
}
REASONS = {"chat": "tool_calls", "responses": "completed", "anthropic": "tool_use", "ollama": "stop"}


@pytest.mark.parametrize("api", READERS)
@given(places=st.lists(st.integers(0, 100), max_size=8).map(sorted))
def test_a_stream_adds_up_to_the_whole_answer(api: str, places: list[int]) -> None:
    text = "".join(WORDS_OF)
    ends = [0, *[place for place in places if place < len(text)], len(text)]
    whole, stream = ended(api, [text[start:end] for start, end in pairwise(ends)], prompt=CALLING)
    read, added = READERS[api]
    reasoning, said, calls, reason = read(whole)
    assert (reasoning, said, reason) == ("Hmm", "I look.", REASONS[api])
    assert [(id[:5], values) for id, values in calls] == [("call_", {"zone": "UTC"})]
    assert added(chunks_of(stream)) == (reasoning, said, calls, reason)
    assert whole["moa"]["seed"] == 5


@pytest.mark.parametrize(
    ("finish", "stops", "reason"),
    [
        (Finish.END_OF_TEXT, ("END",), ("end_turn", None)),
        (Finish.STOP, ("END",), ("stop_sequence", "END")),
        (Finish.STOP, ("STOP", "END"), ("stop_sequence", None)),
        (Finish.MAX_TOKENS, (), ("max_tokens", None)),
        (Finish.LOOP, (), ("max_tokens", None)),
        (Finish.CONTEXT, (), ("model_context_window_exceeded", None)),
    ],
)
def test_why_an_answer_has_ended_as_anthropic_has_it(finish: Finish, stops: Any, reason: tuple[str, Any]) -> None:
    whole, _ = ended("anthropic", ["Good day "], finish, stops=stops)
    assert (whole["stop_reason"], whole["stop_sequence"]) == reason


def test_thinking_may_be_left_out() -> None:
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    for api, wish in (("anthropic", omitted), ("ollama", {"think": False})):
        whole, stream = ended(api, list(WORDS_OF), given=wish, prompt=CALLING)
        assert b"Hmm" not in stream
        assert READERS[api][0](whole)[0] == ""


def test_an_error_ends_a_stream_in_the_form_of_its_api() -> None:
    error = RequestError(503, "Lost.")
    failed = {api: chunks_of(form_of(api).failed(error))[-1] for api in READERS}
    assert failed["chat"]["error"] == {"message": "Lost.", "type": "server_error", "param": None, "code": None}
    assert failed["responses"]["response"]["error"] == {"code": "server_error", "message": "Lost.", "param": None}
    assert failed["anthropic"] == {"type": "error", "error": {"type": "overloaded_error", "message": "Lost."}}
    assert failed["ollama"] == {"error": "Lost."}


def test_white_space_and_nothing_are_messages_of_responses_only_alone() -> None:
    for words, texts in (([], [""]), ([" \n"], [" \n"]), ([f"\n{OBJECT_CALL}\n"], [])):
        whole, _ = ended("responses", list(words), prompt=CALLING)
        said = [item["content"][0]["text"] for item in whole["output"] if item["type"] == "message"]
        assert said == texts


def test_a_program_learns_that_another_level_continues_its_answer() -> None:
    def told(form: Form, data: bytes) -> dict[str, Any]:
        (chunk,) = chunks_of(data)
        assert chunk["system_fingerprint"] == form.answer.fingerprint
        return chunk.get("moa", {})  # type: ignore[no-any-return]

    form, changed = form_of("chat"), ExecutionChanged("float32", exact=False, fingerprint="fp_float32")
    answer = form.answer
    assert told(form, form.first()) == {"seed": 5}
    answer.apply(Update(Committed((1,), text="He"), 1), 0.0)
    assert told(form, form.next()) == {}
    for event in (changed, Committed((2,), text="y")):
        answer.apply(Update(event, 1), 0.0)
    assert told(form, form.next()) == {"execution": "float32"}
    assert answer.fingerprint not in ("fp", "fp_float32")
    answer.apply(Update(Ended(Finish.END_OF_TEXT), 1), 0.0)
    assert told(form, form.last()) == {"verified": True}
    form = form_of("chat")
    for each in (changed, Committed((1,), text="Hey"), Ended(Finish.END_OF_TEXT)):
        form.answer.apply(Update(each, 1), 0.0)
    whole = form.whole()
    assert (whole["system_fingerprint"], whole["moa"]["execution"]) == ("fp_float32", "float32")  # all of it
