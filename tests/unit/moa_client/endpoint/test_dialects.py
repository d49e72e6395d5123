"""Each API's translator, in and out: what requests become, in which words they are refused, what answers are sent as."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Committed, Ended
from moa_client.conversation.options import API_DEFAULTS
from moa_client.endpoint import anthropic, ollama, openai, responses
from moa_client.endpoint.answer import Answer, Form
from moa_client.endpoint.ask import ChatAsk, Prompt
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.fields import REFUSED, REFUSED_IN_MESSAGES, parsed_request
from moa_client.endpoint.openai_fields import EmbeddingRequest
from moa_client.endpoint.routes import endpoint_routes
from moa_client.tools.formats import Hermes
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import Tool, ToolCall, ToolOffer, ToolResult
from moa_client.tools.turns import ChatMessage
from moa_client.web.access import RequestError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import Constraint, ConstraintKind, WantedChances, choice_of
from starlette.routing import Route

from tests.support.scripted_answers import ScriptedSource, made_answer

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
SAID = ChatMessage("user", "Hi")


def parser(kind: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: ((asked := parsed_request(kind, body)).ask(), asked.form)


KINDS: dict[str, Any] = {
    "chat": openai.ChatRequest,
    "text": openai.TextRequest,
    "responses": responses.ResponseRequest,
    "anthropic": anthropic.MessagesRequest,
    "ollama": ollama.ChatRequest,
    "generate": ollama.TextRequest,
}
PARSERS = {api: parser(kind) for api, kind in KINDS.items()} | {"responses": responses.response_request}
LEAST: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER]},
    "text": {"prompt": "Once"},
    "responses": {"input": "Hi"},
    "anthropic": {"max_tokens": 9, "messages": [USER]},
    "ollama": {"messages": [USER]},
    "generate": {"prompt": "Hi"},
}


def asked(api: str, given: dict[str, Any]) -> ChatAsk:
    ask, _ = PARSERS[api](LEAST[api] | given)
    assert isinstance(ask, ChatAsk)
    return ask


OBJECT = {"type": "object", "properties": {"é": {"type": "integer"}}}
FUNCTION = {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
TOOL, FLAT = {"type": "function", "function": FUNCTION}, {"type": "function", **FUNCTION}
CUSTOM = {"name": "now", "description": "The time.", "input_schema": FUNCTION["parameters"]}
SAMPLED = {"temperature": 0.5, "top_p": 0.9, "top_k": 4}
TUNED = {"min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 1, "frequency_penalty": -0.5}
NAMED, NOW = {"name": "x", "schema": OBJECT, "strict": True}, (Tool("now", "The time."),)


def constrained(kind: ConstraintKind, text: str = "") -> dict[str, Any]:
    return {"constraint": Constraint(kind, text)}


SCHEMA = constrained(ConstraintKind.JSON_SCHEMA, json.dumps(OBJECT, ensure_ascii=False))
JSON, LARK = constrained(ConstraintKind.JSON_OBJECT), constrained(ConstraintKind.LARK, "start:")
ENDED = {"max_tokens": 7, "stop": ("END",)}
OFF = dict.fromkeys(("temperature", "min_p", "repeat_penalty", "repeat_last_n", "constraint", "chances"))
OPEN = {"logit_bias": (), "loop_guard": True, "max_tokens": 0, "stop": (), **OFF, "stream": False, "unverified": None}
ONE, ANY = {"offer": ToolOffer(NOW, True, False)}, {"offer": ToolOffer(NOW)}


def form(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


# An API, what its request has, and what it becomes.
BECOMES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("chat", {}, OPEN),
    ("chat", SAMPLED | TUNED, SAMPLED | TUNED),
    ("chat", {"seed": -1, "max_completion_tokens": 7, "max_tokens": 8}, {"seed": (1 << 64) - 1, "max_tokens": 7}),
    ("chat", {"logit_bias": {"42": -100, "7": 1.5}}, {"logit_bias": ((7, 1.5), (42, -100.0))}),
    ("chat", {"loop_guard": False}, {"loop_guard": False}),
    ("chat", {"logprobs": True, "stream_options": {"include_usage": True}}, {"chances": WantedChances()}),
    ("chat", {"logprobs": True, "top_logprobs": 20, "moa": {"logprobs": "raw"}}, {"chances": WantedChances(20)}),
    ("chat", {"response_format": {"type": "json_object"}}, JSON),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": NAMED}}, SCHEMA),
    ("text", form(json=SCHEMA["constraint"].text), SCHEMA),
    ("text", form(json=OBJECT), SCHEMA),
    ("text", form(regex="a+"), constrained(ConstraintKind.REGEX, "a+")),
    ("text", form(choice=["a", "b"]), {"constraint": choice_of(["a", "b"])}),
    ("text", form(grammar="start:"), LARK),
    ("text", {"prompt": [1, 2]}, {"max_tokens": 16, "text": [1, 2]}),
    ("text", {"logprobs": 0, "moa": {"logprobs": "processed"}}, {"chances": WantedChances(processed=True)}),
    ("responses", SAMPLED | {"max_output_tokens": 7, "stop": "END"}, SAMPLED | ENDED),
    ("responses", {"text": {"format": {"type": "json_schema", **NAMED}}}, SCHEMA),
    ("anthropic", SAMPLED | {"stop_sequences": ["a", "b"]}, SAMPLED | {"max_tokens": 9, "stop": ("a", "b")}),
    ("anthropic", {"output_config": {"format": {"type": "json_schema", "schema": OBJECT}}}, SCHEMA),
    ("anthropic", {"moa": {"unverified": "end"}}, {"unverified": "end", "defaults": API_DEFAULTS}),
    ("ollama", {"options": SAMPLED | TUNED}, SAMPLED | TUNED),
    ("ollama", {"options": {"num_predict": 7, "stop": "END", "num_ctx": 4096}}, ENDED),
    ("ollama", {"options": {"num_predict": -1}, "format": ""}, {"max_tokens": 0, "defaults": ollama.DEFAULTS}),
    ("ollama", {"format": "json", "model": "default:latest"}, {"model": "default", "stream": True, **JSON}),
    ("generate", {"format": OBJECT}, {"messages": [SAID], **SCHEMA}),
    ("generate", {"system": "b"}, {"messages": [ChatMessage("system", "b"), SAID]}),
    ("generate", {"prompt": "a", "raw": True}, {"text": "a"}),
    ("chat", {"tools": [TOOL]}, ANY),
    ("chat", {"tools": [TOOL], "tool_choice": "none"}, {"offer": ToolOffer()}),
    ("chat", {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}, ONE),
    ("chat", {"tools": [TOOL], "tool_choice": TOOL}, ONE),
    ("responses", {"tools": [FLAT], "tool_choice": FLAT}, ONE),
    ("anthropic", {"tools": [CUSTOM], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, ONE),
    ("anthropic", {"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "now"}}, ONE),
]

CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
ITEM = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "1", "name": "now", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "noon"}
USE = {"type": "tool_use", "id": "1", "name": "now", "input": {"zone": "UTC"}}
MADE, ZONED = ToolCall("1", "now", "{}"), ToolCall("1", "now", '{"zone": "UTC"}')
NOON = {"role": "tool", "content": "noon", "tool_call_id": "1", "name": "now"}
PARSED = CALL | {"function": {"name": "now", "arguments": "", "parsed_arguments": {}}, "index": 0}  # by a library


def parts(*texts: str, kind: str = "text") -> list[dict[str, Any]]:
    return [{"type": kind, "text": each, "cache_control": {"type": "ephemeral"}} for each in texts]


def assistant(content: object = None, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": parts("Be ", "kind.")},
    {**USER, "name": "Bob"},
    assistant("Hello", refusal=None, tool_calls=None, reasoning_content="?"),
    {"role": "assistant", "refusal": "No."},
    {"role": "developer", "content": "Be loud."},
    USER,
]
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [*parts("H", kind="input_text"), {"text": "i"}]},  # as kept ones
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
    assistant(parts("See:", kind="output_text"), id="msg_1"),
    ITEM,
    {**ITEM, "call_id": "2"},
    {**OUTPUT, "output": parts("noon", kind="input_text")},
    ITEM,
    assistant([{"type": "refusal", "refusal": "No."}], phase="final_answer"),
    {"role": "system", "content": "Be loud."},
]
NO = {"type": "tool_result", "tool_use_id": "1", "content": parts("no"), "is_error": True}
CLAUDE: dict[str, Any] = {  # as version 2.1.197 of Claude Code sent it in a third request, with shorter texts
    "system": parts("x-billing", "You are"),
    "messages": [
        {"role": "user", "content": parts("<reminder>", "?")},
        {"role": "system", "content": "Available agent types"},
        assistant([{"type": "thinking", "thinking": "Hm", "signature": ""}, *parts("I look."), USE | {"caller": {}}]),
        {"role": "user", "content": [NO]},
    ],
    "metadata": {"user_id": "{}"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
Said = list[ChatMessage | ToolResult]
CHATTED: Said = [
    ChatMessage("system", "Be brief.\n\nBe kind."),
    ChatMessage("user", "Hi", name="Bob"),
    ChatMessage("assistant", "Hello", reasoning="?"),
    ChatMessage("assistant", "No."),
    ChatMessage("system", "Be loud."),
    SAID,
]
ANSWERED: Said = [SAID, ChatMessage("assistant", "", (MADE,)), ToolResult("1", "now", "noon")]
RESPONDED: Said = [
    ChatMessage("system", "Be kind.\n\nBe brief."),
    SAID,
    ChatMessage("assistant", "See:", (MADE, ToolCall("2", "now", "{}"))),
    ToolResult("1", "now", "noon"),
    ChatMessage("assistant", "No.", (MADE,)),
    ChatMessage("system", "Be loud."),
]
LOOKED: Said = [
    ChatMessage("system", "x-billing\n\nYou are"),
    ChatMessage("user", "<reminder>\n\n?\n\nAvailable agent types"),
    ChatMessage("assistant", "I look.", (ZONED,)),
    ToolResult("1", "now", "Error: no"),
]
EXTRA = {"cache_control": {"type": "ephemeral"}, "extra_content": {"google": {}}, "caller": None, "index": 0}


def with_more(value: Any, name: str = "") -> Any:
    """A request with fields that nobody knows, at every depth that it describes itself."""
    if isinstance(value, list):
        return [with_more(each) for each in value]
    if not isinstance(value, dict) or "properties" in value or name in ("arguments", "logit_bias", "metadata", "input"):
        return value  # a program's own
    return {key: with_more(each, key) for key, each in value.items()} | EXTRA


BECOMES += [
    ("chat", {"messages": CHAT}, {"messages": CHATTED}),
    ("chat", {"messages": [USER, assistant(parsed=None, tool_calls=[CALL]), NOON]}, {"messages": ANSWERED}),
    ("chat", {"messages": [USER, assistant(parsed=None, tool_calls=[PARSED]), NOON]}, {"messages": ANSWERED}),
    ("responses", {"instructions": "Be kind.", "input": ITEMS}, {"messages": RESPONDED}),
    ("anthropic", CLAUDE, {"messages": LOOKED}),
]


@pytest.mark.parametrize(("api", "given", "becomes"), BECOMES)
def test_what_a_request_becomes_whatever_else_it_has(api: str, given: dict[str, Any], becomes: dict[str, Any]) -> None:
    ask = asked(api, given)
    found = {name: getattr(ask if hasattr(ask, name) else ask.options, name) for name in becomes}
    assert found == becomes
    seeded = {"options": given.get("options", {}) | {"seed": 1}} if api in ("ollama", "generate") else {"seed": 1}
    body: dict[str, Any] = LEAST[api] | given | seeded
    assert asked(api, with_more(body)) == asked(api, body)


def test_a_result_of_ollamas_finds_its_call_by_id_by_name_or_in_turn() -> None:
    def calling(*names: str, **more: str) -> dict[str, Any]:
        return assistant(tool_calls=[{"function": {"name": name}, **more} for name in names])

    results = [{"tool_name": "then"}, {}, {"name": "now"}, {"tool_call_id": "x"}]
    said = [{"role": "tool", "content": str(number), **each} for number, each in enumerate(results)]
    messages = [USER, calling("now", "then", "now"), *said[:3], calling("now", id="x"), said[3]]
    made = asked("ollama", {"messages": messages}).messages
    first, second, third, last = [call.id for each in made if isinstance(each, ChatMessage) for call in each.calls]
    found = [(each.call_id, each.name) for each in made if isinstance(each, ToolResult)]
    assert found == [(second, "then"), (first, "now"), (third, "now"), (last, "now")]
    assert (last, len({first, second, third, last})) == ("x", 4)


@pytest.mark.parametrize("api", KINDS)
def test_what_would_change_the_answer_is_refused_by_its_name_unless_it_asks_for_nothing(api: str) -> None:
    names = REFUSED.keys() - KINDS[api].names()
    for name in names:
        with pytest.raises(RequestError, match=rf"^{name} is not supported\. ") as caught:
            asked(api, {name: 3})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    for name in REFUSED_IN_MESSAGES if api in ("chat", "ollama") else ():
        with pytest.raises(RequestError, match=rf"^messages\[0\]\.{name} is not supported\. "):
            asked(api, {"messages": [USER | {name: True}]})
    harmless = {name: REFUSED[name][1][0] for name in names if REFUSED[name][1]}
    plain = [asked(api, asks) for asks in ({}, dict.fromkeys(names), harmless)]
    assert plain[0].messages == plain[1].messages == plain[2].messages
    assert len({each.options.seed for each in plain}) > 1  # one is drawn where none is given


def test_the_docs_name_every_field_and_request() -> None:
    page = (Path(__file__).parents[4] / "docs" / "api.md").read_text("utf-8")
    for kind in (*KINDS.values(), EmbeddingRequest, ollama.OptionFields):
        assert [name for name in kind.names() if f"`{name}`" not in page] == []
    assert [name for name in (*REFUSED, *REFUSED_IN_MESSAGES) if f"`{name}`" not in page] == []
    routes = endpoint_routes(ScriptedSource().models, EndpointSettings(), asyncio.Event())
    paths = [route.path.replace("{name:path}", "NAME") for route in routes if isinstance(route, Route)]
    assert [path for path in paths if f"{path}`" not in page] == []


# An API, what its request has, and why that is refused. Names stand for the objects above.
ASSISTANT = {"role": "assistant", "content": "Well"}
NAMES = {name: globals()[name] for name in ("USER", "ASSISTANT", "TOOL", "FLAT", "CUSTOM", "CALL", "OUTPUT", "USE")}
WORDS = """
chat {"tools": [{"type": "function"}]} -> tools[0].function is missing.
chat {"messages": [{"role": "user", "content": ["Hi"]}]} -> messages[0].content: expected a text, or a list of parts of type text.
responses {"text": {"format": {"type": "json_schema", "name": "a"}}} -> text.format.schema is missing.
chat {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "then"}}} -> tool_choice: A call of 'then' is required, which is not among the tools. Offered: now.
chat {"tools": [TOOL], "structured_outputs": {"regex": "a"}} -> structured_outputs: an answer of this form calls no tools: use response_format, or tool_choice: 'none'.
chat {"stop": ""} -> stop: each text must have 1 to 64 characters.
chat {"logit_bias": {"hello": 1}} -> logit_bias names 'hello', expected the id of a token.
chat {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}} -> structured_outputs: give either it or response_format.
chat {"structured_outputs": {"x": 1}} -> structured_outputs: Exactly one of json, regex, choice and grammar is expected, 0 were given.
chat {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]} -> messages[0].content: part 0 is of type image_url: models read text only.
chat {"messages": [{"role": "user", "content": "Hi", "tool_calls": [CALL]}]} -> messages[0].tool_calls: only a message from assistant has calls.
chat {"messages": [USER, {"role": "assistant", "content": null, "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": "2"}]} -> messages[2].tool_call_id: nothing before it made the call '2'.
chat {"messages": [USER, ASSISTANT]} -> messages[1].role: the last message must not be from assistant: answers are not continued.
text {"prompt": ["a", ""]} -> prompt: expected a text that is not empty, or the ids of its tokens, or a list of several of these.
responses {"input": [{"type": "reasoning"}]} -> input: there is no message in it.
responses {"tool_choice": {"type": "web_search"}} -> tool_choice: expected 'auto', 'none', 'required' or {'type': 'function', 'name': ...}.
anthropic {"moa": {"provisional": true}} -> moa.provisional is not supported. Streams have committed text only.
anthropic {"messages": [{"role": "user", "content": [USE]}]} -> messages[0].content[0]: only a message from assistant has calls.
anthropic {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "noon"}]}, USER]} -> messages[1].content[0]: only a message from user answers a call.
ollama {"options": {"mirostat": 2}} -> options.mirostat is not supported. There is no such sampler.
ollama {"options": {"top_p": 2}} -> options: top_p is 2.0, expected more than 0 and at most 1.
ollama {"think": "much"} -> think: expected true, false, low, medium, high, max.
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


OBJECT_CALL = '<tool_call>{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>'
WORDS_OF = ("<think>Hmm</think>", "I look.\n", OBJECT_CALL)
Told = tuple[str, str, list[tuple[str, Any]], str | None]  # reasoning, text, calls, why it has ended
CALLING = Prompt([1] * 7, None, Hermes(), ToolOffer((Tool("now"),)), find_thinking("<think>"))


def form_of(api: str, given: dict[str, Any] | None = None, **more: Any) -> Form:
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


def joined(parts: list[dict[str, Any]], thinking: str, reasons: list[Any]) -> Told:
    """What messages, or what is added to one, say; only the last has a reason."""
    assert not any(reasons[:-1])
    reasoning, text = ("".join(each.get(key) or "" for each in parts) for key in (thinking, "content"))
    calls = [call for each in parts for call in each.get("tool_calls", [])]
    assert [call.get("index", call["function"].get("index", at)) for at, call in enumerate(calls)] == [
        *range(len(calls))
    ]
    values = [(call["id"], call["function"]["arguments"]) for call in calls]
    return reasoning, text, [(id, json.loads(it) if isinstance(it, str) else it) for id, it in values], reasons[-1]


def of_chat(chunks: list[dict[str, Any]]) -> Told:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
    return joined(parts, "reasoning_content", [choice["finish_reason"] for choice in choices])


def of_ollama(chunks: list[dict[str, Any]]) -> Told:
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return joined([chunk["message"] for chunk in chunks], "thinking", [chunk.get("done_reason") for chunk in chunks])


def of_responses(chunks: list[dict[str, Any]]) -> Told:
    whole, texts, calls = chunks[-1].get("response", chunks[-1]), {"reasoning": "", "message": ""}, []
    for item in whole["output"]:
        if item["type"] == "function_call":
            calls.append((item["call_id"], json.loads(item["arguments"])))
        else:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    if chunks != [whole]:  # a stream
        assert [each["sequence_number"] for each in chunks] == list(range(len(chunks)))
        done = [each["item"] for each in chunks if each["type"] == "response.output_item.done"]
        added = [each["item"]["id"] for each in chunks if each["type"] == "response.output_item.added"]
        assert (done, added) == (whole["output"], [each["id"] for each in done])
        for index, item in enumerate(done):
            deltas = "".join(each.get("delta", "") for each in chunks if each.get("output_index") == index)
            assert deltas == item.get("arguments", "".join(part["text"] for part in item.get("content", [])))
    return texts["reasoning"], texts["message"], calls, whole["status"]


def of_anthropic(chunks: list[dict[str, Any]]) -> Told:
    if "content" not in chunks[0]:  # a stream
        content: list[dict[str, Any]] = []
        open_blocks: list[int] = []
        for each in chunks:
            match each["type"], each.get("delta", {}):
                case "content_block_start", _:
                    assert (open_blocks, each["index"]) == ([], len(content))
                    open_blocks.append(each["index"])
                    content.append(each["content_block"])
                case "content_block_delta", {"partial_json": written}:
                    content[-1]["input"] = json.loads(written)
                case "content_block_delta", delta:
                    assert open_blocks == [each["index"]]
                    for key in delta.keys() - {"type"}:
                        content[-1][key] += delta[key]
                case "content_block_stop", _:
                    assert open_blocks.pop() == each["index"]
        assert not open_blocks
        assert [each["type"] for each in chunks[-2:]] == ["message_delta", "message_stop"]
        chunks = [{"content": content, **chunks[-2]["delta"]}]
    (whole,) = chunks
    calls = [(each["id"], each["input"]) for each in whole["content"] if each["type"] == "tool_use"]
    reasoning, text = ("".join(each.get(key, "") for each in whole["content"]) for key in ("thinking", "text"))
    return reasoning, text, calls, whole["stop_reason"]


READERS: dict[str, tuple[Callable[[list[dict[str, Any]]], Told], str]] = {
    "chat": (of_chat, "tool_calls"),
    "responses": (of_responses, "completed"),
    "anthropic": (of_anthropic, "tool_use"),
    "ollama": (of_ollama, "stop"),
}


@pytest.mark.parametrize("api", READERS)
@given(places=st.lists(st.integers(0, 100), max_size=8).map(sorted))
def test_a_stream_adds_up_to_the_whole_answer(api: str, places: list[int]) -> None:
    text = "".join(WORDS_OF)
    ends = [0, *[place for place in places if place < len(text)], len(text)]
    whole, stream = ended(api, [text[start:end] for start, end in pairwise(ends)], prompt=CALLING)
    read, reason = READERS[api]
    told = read([whole])
    assert (told[:2], told[3], [values for _, values in told[2]]) == (("Hmm", "I look."), reason, [{"zone": "UTC"}])
    assert told[2][0][0].startswith("call_")
    assert read(chunks_of(stream)) == told


def test_thinking_may_be_left_out() -> None:
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    for api, wish in (("anthropic", omitted), ("ollama", {"think": False})):
        whole, stream = ended(api, list(WORDS_OF), given=wish, prompt=CALLING)
        assert b"Hmm" not in stream
        assert READERS[api][0]([whole])[0] == ""


def test_an_error_ends_a_stream_in_the_form_of_its_api() -> None:
    error = RequestError(503, "Lost.")
    failed = {api: chunks_of(form_of(api).failed(error))[-1] for api in READERS}
    assert failed["chat"]["error"] == {"message": "Lost.", "type": "server_error", "param": None, "code": None}
    assert failed["responses"]["response"]["error"] == {"code": "server_error", "message": "Lost.", "param": None}
    begun = form_of("responses")
    begun.answer.apply(Update(Committed((1,), text="Good"), 1), 0.0)
    done, last = chunks_of(begun.next() + begun.failed(error))[-2:]
    assert (done["item"]["status"], last["response"]["status"]) == ("incomplete", "failed")
    assert failed["anthropic"] == {"type": "error", "error": {"type": "overloaded_error", "message": "Lost."}}
    assert failed["ollama"] == {"error": "Lost."}
