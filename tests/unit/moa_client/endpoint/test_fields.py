"""What is common to the requests of all APIs: unknown fields are ignored at every depth, but for those refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moa_client.endpoint.anthropic.requests import MessagesRequest, messages_request
from moa_client.endpoint.fields import RequestFields
from moa_client.endpoint.ollama import requests as ollama
from moa_client.endpoint.openai.embeddings import EmbeddingRequest
from moa_client.endpoint.openai.requests import ChatRequest, TextRequest, chat_request
from moa_client.endpoint.refusals import REFUSED, REFUSED_IN_MESSAGES
from moa_client.endpoint.responses.requests import ResponseRequest, response_request
from moa_client.web.error_form import RequestError

OPAQUE = ("parameters", "input_schema", "schema", "arguments", "logit_bias", "metadata")  # JSON of the program's own
FUNCTION = {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"name": "a", "schema": {"type": "object"}}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
CHAT = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "When?"}], "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    "stream": True,
    "stream_options": {"include_usage": True},
    "seed": 1,
    "moa": {"unverified": "end"},
}
RESPONSE = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "When?"}]},
        {"type": "reasoning", "id": "rs_1"},
        {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "noon"}]},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "text": {"format": {"type": "json_schema", **SCHEMA}},
    "reasoning": {"effort": "low"},
    "seed": 1,
}
MESSAGES = {
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "now", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "Well?"},
            ],
        },
    ],
    "tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "seed": 1,
}
OLLAMA = {
    "messages": [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": {}}}]},
        {"role": "tool", "name": "now", "content": "noon"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "options": {"seed": 1},
}
CASES: list[tuple[Callable[[dict[str, Any]], RequestFields], dict[str, Any]]] = [
    (chat_request, CHAT),
    (response_request, RESPONSE),
    (messages_request, MESSAGES),
    (ollama.chat_request, OLLAMA),
]


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects that a request describes itself."""
    if isinstance(value, dict):
        yield value
        for name, each in value.items():
            if name not in OPAQUE and not (name == "input" and isinstance(each, dict)):
                yield from objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from objects(each)


@pytest.mark.parametrize(("parse", "body"), CASES)
def test_unknown_fields_are_ignored_at_every_depth(parse: Callable[..., RequestFields], body: dict[str, Any]) -> None:
    more = json.loads(json.dumps(body))
    found = list(objects(more))
    for each in found:
        each |= {"cache_control": {"type": "ephemeral"}, "extra_content": {"google": {}}, "caller": None, "index": 0}
    assert len(found) > 6
    assert parse(more) == parse(body)


@pytest.mark.parametrize(("parse", "body"), CASES)
def test_what_would_change_the_answer_is_refused_by_its_name(
    parse: Callable[..., RequestFields], body: dict[str, Any]
) -> None:
    for name in REFUSED.keys() - type(parse(body)).names():
        with pytest.raises(RequestError, match=rf"^{name} is not supported\. ") as caught:
            parse(body | {name: 3})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    if "messages" in body and parse is not messages_request:
        for name in REFUSED_IN_MESSAGES:
            with pytest.raises(RequestError, match=rf"^messages\[0\]\.{name} is not supported\. "):
                parse(body | {"messages": [body["messages"][0] | {name: True}]})


def test_the_docs_name_every_field() -> None:
    page = (Path(__file__).parents[4] / "docs" / "api.md").read_text("utf-8")
    kinds = (ChatRequest, TextRequest, ResponseRequest, EmbeddingRequest, MessagesRequest)
    for kind in (*kinds, ollama.ChatRequest, ollama.TextRequest, ollama.OptionFields):
        assert [name for name in kind.names() if f"`{name}`" not in page] == []
