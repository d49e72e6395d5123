"""What becomes of an answer that may call tools: the message, and deltas that add up to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.endpoint.answer_parts import AnswerMarkup, AnswerParts
from moa_client.endpoint.openai.forms import delta_fields, message_fields
from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.formats.mistral import Mistral
from moa_client.tools.offer import ToolOffer
from moa_client.tools.thinking import find_thinking

from tests.support.tool_calls import TOOLS

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
PARIS = ("get_weather", '{"city": "Paris"}')
TEXTS = (
    "Hello.",
    CALL,
    f"Let me see.\n{CALL}\n{NOW}",
    f"{CALL[:40]}",
    "<tool_call> is a tag",
    f"<think>\nhm\n</think>{NOW}",
)


def markup(*, is_parallel: bool = True, is_thinking: bool = False) -> AnswerMarkup:
    return AnswerMarkup(Hermes(), ToolOffer(TOOLS, is_parallel=is_parallel), find_thinking("<think>"), is_thinking)


def read(text: str, reason: str = "stop", **how: bool) -> tuple[str | None, list[tuple[str, str]], str]:
    answer = AnswerParts(markup(**how), "chatcmpl-1")
    answer.push(text)
    answer.finish()
    message = message_fields(answer)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["content"], calls, answer.reason(reason)


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("Hello.", "stop", ("Hello.", [], "stop")),
        (CALL, "stop", (None, [PARIS], "tool_calls")),
        (f"Let me see.\n{CALL}\n{NOW}", "stop", ("Let me see.", [PARIS, ("now", "{}")], "tool_calls")),
        (CALL, "length", (None, [PARIS], "length")),
        ("<tool_call> is a tag", "stop", ("<tool_call> is a tag", [], "stop")),
        ("<tool_call>", "length", ("<tool_call>", [], "length")),
    ],
)
def test_a_call_is_no_content(text: str, reason: str, expected: object) -> None:
    assert read(text, reason) == expected


def test_a_call_that_is_cut_has_its_arguments_as_far_as_they_came() -> None:
    cut = CALL[: CALL.index("ris")]
    content, calls, reason = read(cut, "stop")
    assert (content, reason) == (None, "length")
    assert calls[0][0] == "get_weather"
    assert PARIS[1].startswith(calls[0][1])
    assert calls[0][1]


def test_one_call_only_where_several_are_not_wanted() -> None:
    assert read(f"{CALL}\n{NOW}", is_parallel=False) == (None, [PARIS], "tool_calls")


def test_reasoning_is_apart() -> None:
    answer = AnswerParts(markup(is_thinking=True), "chatcmpl-1")
    parts = [*answer.push(f"I call.\n</think>\n{NOW}"), *answer.finish()]
    assert delta_fields(parts[0], answer) == {"reasoning_content": "I call."}
    assert message_fields(answer)["reasoning_content"] == "I call."
    assert answer.reason("stop") == "tool_calls"


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 200), max_size=6).map(sorted), st.booleans())
def test_deltas_add_up_to_the_message(text: str, cuts: list[int], is_parallel: bool) -> None:
    answer = AnswerParts(markup(is_parallel=is_parallel), "chatcmpl-1")
    ends = [0, *cuts, len(text)]
    parts = [part for start, end in pairwise(ends) if start < end for part in answer.push(text[start:end])]
    whole = added([delta_fields(part, answer) for part in [*parts, *answer.finish()]])
    message = message_fields(answer)
    assert whole == {key: message[key] for key in ("content", "reasoning_content", "tool_calls") if message.get(key)}


def added(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What a program makes of the deltas of a stream."""
    whole: dict[str, Any] = {}
    for delta in deltas:
        for key in ("content", "reasoning_content"):
            if key in delta:
                whole[key] = whole.get(key, "") + delta[key]
        for call in delta.get("tool_calls", []):
            calls = whole.setdefault("tool_calls", [])
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return whole


def test_special_tokens_are_needed_where_they_are_marks() -> None:
    assert not markup().has_any({"<|im_end|>": 2})
    assert AnswerMarkup(Mistral(), ToolOffer(TOOLS), None, is_thinking=False).has_any({"</s>": 2, "[TOOL_CALLS]": 5})
