"""Requests for responses: what their items become, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.endpoint.refusals import REFUSED
from moa_client.endpoint.responses.items import conversation
from moa_client.endpoint.responses.requests import ResponseRequest, response_request
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult
from moa_client.web.error_form import RequestError

HI = {"input": "Hi"}
TOOL = {"type": "function", "name": "now"}
CALL = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "1", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "noon"}
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "object"}}


def messages(asked: ResponseRequest) -> list[ChatMessage | ToolResult]:
    return conversation((), asked.input, asked.instructions)


def test_a_text_is_the_users() -> None:
    assert messages(response_request(HI)) == [ChatMessage("user", "Hi")]


def test_items_become_what_templates_know() -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "See:", "annotations": [], "logprobs": []}],
        },
        CALL,
        {**CALL, "call_id": "2"},
        RESULT,
        {**RESULT, "call_id": "2", "output": [{"type": "input_text", "text": "one"}]},
        CALL,
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": "final_answer"},
        {"role": "system", "content": "Be loud."},
    ]
    calls = (ToolCall("1", "now", "{}"), ToolCall("2", "now", "{}"))
    assert messages(response_request({"input": items, "instructions": "Be kind."})) == [
        ChatMessage("system", "Be kind.\n\nBe brief."),
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", "See:", calls),
        ToolResult("1", "now", "noon"),
        ToolResult("2", "now", "one"),
        ChatMessage("assistant", "No.", calls[:1]),
        ChatMessage("system", "Be loud."),
    ]


def test_every_used_parameter_has_its_effect() -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7, "seed": 3, "stop": "END", "top_k": 4}
    options = response_request(HI | given).options()
    found = (options.temperature, options.top_p, options.max_tokens, options.seed, options.stop, options.top_k)
    assert found == (0.5, 0.9, 7, 3, ("END",), 4)
    offer = response_request(HI | {"tools": [TOOL], "tool_choice": {"type": "function", "name": "now"}}).offer()
    assert ([tool.name for tool in offer.tools], offer.is_forced, offer.is_parallel) == (["now"], True, False)
    assert response_request(HI | {"text": {"format": SCHEMA}}).constraint() is not None


def test_what_asks_for_nothing_special_is_accepted() -> None:
    names = REFUSED.keys() - ResponseRequest.names()
    harmless = {name: REFUSED[name].harmless[0] for name in names if REFUSED[name].harmless}
    assert {"background", "n", "top_logprobs"} <= set(harmless)
    tool = {**TOOL, "strict": None, "defer_loading": True, "description": None}
    response_request(HI | dict.fromkeys(names) | {"tools": [tool], "parallel_tool_calls": True})
    response_request(HI | harmless | {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "store": False})
    extra = {"reasoning": {"summary": "auto"}, "include": ["x"], "truncation": "auto", "anything": {"new": 1}}
    assert response_request(HI | extra).reasoning.effort is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, snapshot("input | missing_required_parameter | input is missing.")),
        ({"input": []}, snapshot("input | invalid_value | input: list should have at least 1 item, not 0.")),
        ({"input": [{"type": "reasoning"}]}, snapshot("input | invalid_value | input: there is no message in it.")),
        (
            {"input": [{"type": "web_search_call"}]},
            snapshot(
                "input[0].type | unsupported_parameter | input[0].type is 'web_search_call', which is not supported. What there is: message, function_call, function_call_output, reasoning."
            ),
        ),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            snapshot(
                "input[0].type | unsupported_parameter | input[0].type is 'item_reference', which is not supported. What there is: message, function_call, function_call_output, reasoning."
            ),
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            snapshot(
                "input[0].content | invalid_value | input[0].content: part 0 is of type input_image: models read text only."
            ),
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            snapshot(
                "input[0].content | invalid_value | input[0].content: part 0 is of type input_file: models read text only."
            ),
        ),
        (
            {"input": [{"role": "tool", "content": "x"}]},
            snapshot(
                "input[0].role | invalid_value | input[0].role: expected 'system', 'developer', 'user' or 'assistant'."
            ),
        ),
        (
            {"input": [USER, {"role": "assistant", "content": "Hello"}]},
            snapshot(
                "input | invalid_value | input: the last item must not be a message from assistant, or a call: answers are not continued."
            ),
        ),
        (
            {"input": [USER, CALL]},
            snapshot(
                "input | invalid_value | input: the last item must not be a message from assistant, or a call: answers are not continued."
            ),
        ),
        (
            {"input": [USER, RESULT]},
            snapshot("input[1].call_id | invalid_value | input[1].call_id: no item before it made the call '1'."),
        ),
        (
            {"input": [USER, {**CALL, "arguments": "{"}, RESULT]},
            snapshot(
                "input[1] | invalid_value | input[1]: The arguments of the call '1' are not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). Send calls back as the model made them, and none that was cut."
            ),
        ),
        (
            HI | {"tools": [{"type": "web_search"}]},
            snapshot("tools[0].type | invalid_value | tools[0].type: expected 'function'."),
        ),
        (
            HI | {"tools": [{"type": "function"}]},
            snapshot("tools[0].name | missing_required_parameter | tools[0].name is missing."),
        ),
        (
            HI | {"tools": [{**TOOL, "name": "a b"}]},
            snapshot(
                "tools[0] | invalid_value | tools[0]: The tool's name 'a b' cannot be used. Use 1 to 128 of the characters a-z, A-Z, 0-9, _ and -."
            ),
        ),
        (
            HI | {"tools": [TOOL], "structured_outputs": {"choice": ["a"]}},
            snapshot(
                "structured_outputs | invalid_value | structured_outputs: an answer of this form calls no tools: use text.format."
            ),
        ),
        (
            HI | {"tool_choice": "required"},
            snapshot(
                "tool_choice | invalid_value | tool_choice: A call is required, but no tool is offered. Offer one, or require none."
            ),
        ),
        (
            HI | {"tool_choice": {"type": "web_search"}},
            snapshot(
                "tool_choice | invalid_value | tool_choice: expected 'auto', 'none', 'required' or {'type': 'function', 'name': ...}."
            ),
        ),
        (
            HI | {"text": {"format": {"type": "json_schema", "name": "a"}}},
            snapshot("text.format.schema | missing_required_parameter | text.format.schema is missing."),
        ),
        (
            HI | {"text": {"format": SCHEMA}, "structured_outputs": {"regex": "a"}},
            snapshot("structured_outputs | invalid_value | structured_outputs: give either it or text.format."),
        ),
        (
            HI | {"text": {"verbosity": "low"}},
            snapshot(
                "text.verbosity | unsupported_parameter | text.verbosity is not supported. Models answer as their chat template has it."
            ),
        ),
        (HI | {"metadata": {"a": 1}}, snapshot("metadata.a | invalid_value | metadata.a: expected text.")),
        (
            HI | {"moa": {"provisional": True}, "stream": True},
            snapshot(
                "moa.provisional | invalid_value | moa.provisional: only streams of /v1/chat/completions and /v1/completions have it."
            ),
        ),
        (
            HI | {"stream": True, "stream_options": {"include_usage": True}},
            snapshot(
                "stream_options.include_usage | invalid_value | stream_options.include_usage: a response says how many tokens there were in any case."
            ),
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_parameter(given: dict[str, Any], message: object) -> None:
    with pytest.raises(RequestError) as caught:
        response_request(given).options()
    assert f"{caught.value.param} | {caught.value.code} | {caught.value}" == message
