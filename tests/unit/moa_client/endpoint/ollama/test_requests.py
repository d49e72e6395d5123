from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.endpoint.ollama.messages import conversation
from moa_client.endpoint.ollama.requests import chat_request, text_request
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolResult
from moa_client.web.error_form import RequestError
from moa_shared.sampling.constraint import Constraint, ConstraintKind

from tests.support.scripted_answers import ScriptedSource

ASKED = {"role": "user", "content": "Hi"}
HI: dict[str, Any] = {"messages": [ASKED]}
TOOL = {"type": "function", "function": {"name": "now"}}


def calling(*names: str, **more: str) -> dict[str, Any]:
    calls = [{"function": {"name": name, "arguments": {"zone": "UTC"}}, **more} for name in names]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def test_options_are_ollamas() -> None:
    off: dict[str, Any] = {"min_p": 0.0, "repeat_penalty": 1.1, "repeat_last_n": 64}
    given = {"seed": 3, "num_predict": 7, "stop": "END", "num_ctx": 4096, "num_gpu": 1, "mirostat": 0}
    assert chat_request(HI | {"options": given}).options() == AnswerOptions(0.8, 40, 0.9, 3, 7, ("END",), **off)
    drawn = chat_request(HI | {"options": {"seed": -1, "num_predict": -1, "temperature": 0}}).options()
    assert (drawn.temperature, drawn.max_tokens) == (0.0, 0)
    assert drawn.seed is not None
    assert drawn.seed >= 0


@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        ("", None),
        ("json", Constraint(ConstraintKind.JSON_OBJECT)),
        ({"type": "array"}, Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "array"}')),
    ],
)
def test_a_form(form: object, constraint: Constraint | None) -> None:
    assert text_request({"prompt": "Hi", "format": form}).options().constraint == constraint


def test_a_model_may_have_the_tag_latest() -> None:
    assert chat_request(HI | {"model": "default:latest"}).model == "default"


def test_a_result_finds_its_call_by_id_by_name_or_in_turn() -> None:
    made = conversation(
        chat_request(
            {
                "messages": [
                    ASKED,
                    calling("now", "then", "now"),
                    {"role": "tool", "tool_name": "then", "content": "1"},
                    {"role": "tool", "content": "2"},
                    {"role": "tool", "tool_name": "now", "content": "3"},
                    calling("now", id="x"),
                    {"role": "tool", "tool_call_id": "x", "content": "4"},
                ]
            }
        ).messages
    )
    results = [each for each in made if isinstance(each, ToolResult)]
    assert [(each.name, each.content) for each in results] == [("then", "1"), ("now", "2"), ("now", "3"), ("now", "4")]
    calls = [call for each in made if isinstance(each, ChatMessage) for call in each.calls]
    assert [each.call_id for each in results] == [calls[1].id, calls[0].id, calls[2].id, "x"]
    assert len({call.id for call in calls}) == 4


def test_a_prompt_is_a_chat_of_its_own_unless_it_is_raw() -> None:
    source = ScriptedSource()
    assert text_request({"prompt": "a b", "system": "c"}).prompt(source).tokens == [0, 0, 1]
    assert [message["role"] for message in source.rendered] == ["system", "user"]
    assert text_request({"prompt": "a b", "raw": True}).prompt(source).tokens == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"mirostat": 2}}, snapshot("options.mirostat is not supported. There is no such sampler.")),
        ({"options": {"top_k": "4"}}, snapshot("options.top_k: expected a whole number.")),
        ({"options": {"top_p": 2}}, snapshot("options: top_p is 2.0, expected more than 0 and at most 1.")),
        ({"format": "xml"}, snapshot("format: expected 'json' or a JSON schema.")),
        ({"think": "much"}, snapshot("think: expected true, false, low, medium, high, max.")),
        (
            {"messages": [ASKED, {"role": "tool", "tool_name": "now", "content": "noon"}]},
            snapshot("messages[1]: no message before it made a call 'now' that has no result."),
        ),
        (
            {"messages": [ASKED, {"role": "assistant", "content": "Well"}]},
            snapshot("messages[1].role: the last message must not be from assistant: answers are not continued."),
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_request(HI | given).options()
    assert (str(caught.value), caught.value.status) == (message, 400)
