from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.endpoint.anthropic.messages import conversation
from moa_client.endpoint.anthropic.requests import MessagesRequest, count_request, messages_request
from moa_client.tools.offer import ToolOffer
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import Tool, ToolCall, ToolResult
from moa_client.web.error_form import RequestError
from moa_shared.sampling.constraint import ConstraintKind
from moa_shared.sampling.defaults import SamplingDefaults

ASKED = {"role": "user", "content": "Hi"}
HI: dict[str, Any] = {"max_tokens": 9, "messages": [ASKED]}
CACHED = {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}
CALL = {"type": "tool_use", "id": "1", "name": "now", "input": {"zone": "UTC"}}
SCHEMA = {"type": "json_schema", "schema": {"type": "array"}}


def said(request: MessagesRequest) -> list[ChatMessage | ToolResult]:
    return conversation(request.system, request.messages)


def result_of(content: object, **more: object) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": content, **more}]}


def test_what_claude_code_sends_is_accepted() -> None:
    """The shape of what its version 2.1.197 sent in the third request of a session, with shorter texts."""
    request = messages_request(
        {
            "model": "default",
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "?"}],
                },
                {"role": "system", "content": "Available agent types"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": ""},
                        {"type": "text", "text": "I look."},
                        CALL | {"caller": {"type": "direct"}},
                    ],
                },
                {"role": "user", "content": [result_of("no", is_error=True)["content"][0] | CACHED]},
            ],
            "system": [{"type": "text", "text": "x-billing"}, {"type": "text", "text": "You are"} | CACHED],
            "tools": [TOOL, {"name": "then", "input_schema": {"$schema": "s", "type": "object"}} | CACHED],
            "metadata": {"user_id": "{}"},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        }
    )
    assert said(request) == [
        ChatMessage("system", "x-billing\n\nYou are"),
        ChatMessage("user", "<system-reminder>\n\n?\n\nAvailable agent types"),
        ChatMessage("assistant", "I look.", (ToolCall("1", "now", '{"zone": "UTC"}'),)),
        ToolResult("1", "now", "Error: no"),
    ]
    assert [tool.name for tool in request.offer().tools] == ["now", "then"]
    assert request.stream


def test_options_are_anthropics() -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3, "stop_sequences": ["a", "b"]}
    options = messages_request(HI | given).options()
    assert (options.temperature, options.top_p, options.top_k, options.seed) == (0.5, 0.9, 4, 3)
    assert (options.stop, options.max_tokens) == (("a", "b"), 9)
    options = messages_request(HI).options(SamplingDefaults(top_k=20))
    assert (options.temperature, options.top_p, options.top_k) == (1.0, 1.0, 20)
    options = messages_request(HI | {"output_config": {"format": SCHEMA}}).options()
    assert options.constraint is not None
    assert (options.constraint.kind, options.constraint.text) == (ConstraintKind.JSON_SCHEMA, '{"type": "array"}')
    assert messages_request(HI | {"moa": {"unverified": "end"}}).unverified == "end"


@pytest.mark.parametrize(
    ("choice", "offer"),
    [
        ({}, ToolOffer((Tool("now", "The time."),))),
        ({"type": "none"}, ToolOffer()),
        ({"type": "any"}, ToolOffer((Tool("now", "The time."),), is_forced=True)),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            ToolOffer((Tool("now", "The time."),), is_forced=True, is_parallel=False),
        ),
        ({"type": "tool", "name": "now"}, ToolOffer((Tool("now", "The time."),), is_forced=True, is_parallel=False)),
    ],
)
def test_a_choice_of_tools(choice: dict[str, Any], offer: ToolOffer) -> None:
    given = {"tool_choice": {"type": "auto", **choice}} if choice else {}
    assert messages_request(HI | given | {"tools": [TOOL]}).offer() == offer


def test_a_prompt_is_counted_without_a_limit() -> None:
    assert count_request({"messages": [ASKED]}).messages[0].role == "user"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_tokens": None}, snapshot("max_tokens is missing.")),
        ({"max_tokens": 0}, snapshot("max_tokens: expected at least 1.")),
        ({"messages": []}, snapshot("messages: list should have at least 1 item, not 0.")),
        ({"temperature": -1}, snapshot("temperature is -1.0, expected 0 (greedy) or 0.001 to 100.")),
        ({"stop_sequences": [""]}, snapshot("stop_sequences: each text must have 1 to 64 characters.")),
        ({"thinking": {"type": "enabled"}}, snapshot("thinking.budget_tokens is missing.")),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            snapshot("context_management.edits[0].type: expected 'clear_thinking_20251015'."),
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            snapshot("tools[0].type: expected 'custom'."),
        ),
        ({"tools": [TOOL, TOOL]}, snapshot("tools: Two tools have the name now. Rename one of them.")),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "then"}},
            snapshot("tool_choice: A call of 'then' is required, which is not among the tools. Offered: now."),
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages_request(HI | given).options()
    assert (str(caught.value), caught.value.status) == (message, 400)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image", "source": {}}]}],
            snapshot(
                "messages[0].content[1].type is 'image', which is not supported. What there is: text, tool_use, tool_result, thinking, redacted_thinking."
            ),
        ),
        (
            [ASKED, {"role": "assistant", "content": [CALL]}, result_of([{"type": "document", "source": {}}])],
            snapshot("messages[2].content[0].content: part 0 is of type document: models read text only."),
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], snapshot("messages[0].content[0].text is missing.")),
        (
            [{"role": "user", "content": [{"type": "text", "txt": ""}]}],
            snapshot("messages[0].content[0].text is missing."),
        ),
        ([{"role": "tool", "content": "?"}], snapshot("messages[0].role: expected 'user', 'assistant' or 'system'.")),
        ([{"role": "user", "content": 3}], snapshot("messages[0].content: expected a list.")),
        ([{"role": "user", "content": []}], snapshot("messages[0].content: expected a text, or blocks.")),
        (
            [ASKED, {"role": "assistant", "content": "The answer is ("}],
            snapshot("messages[1].role: the last message must not be from assistant: answers are not continued."),
        ),
        (
            [result_of("noon")],
            snapshot("messages[0].content[0].tool_use_id: no message before it made the call '1'."),
        ),
        (
            [{"role": "user", "content": [CALL]}],
            snapshot("messages[0].content[0]: only a message from assistant has calls."),
        ),
        (
            [ASKED, {**result_of("noon"), "role": "assistant"}, ASKED],
            snapshot("messages[1].content[0]: only a message from user answers a call."),
        ),
    ],
)
def test_a_message_that_cannot_be_used_is_refused_by_its_place(messages: list[Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages_request(HI | {"messages": messages})
    assert str(caught.value) == message
