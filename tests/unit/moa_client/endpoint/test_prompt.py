"""What a model is asked where tools are offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from moa_client.endpoint.openai.requests import chat_request
from moa_client.web.error_form import RequestError
from moa_shared.sampling.constraint import ConstraintKind

from tests.support.scripted_answers import ScriptedSource
from tests.support.tool_calls import NOW, WEATHER

TOOLS = [{"type": "function", "function": {**tool.function(), "strict": True}} for tool in (WEATHER, NOW)]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}


class Thinking(ScriptedSource):
    """Its prompts end within reasoning."""

    chat_template = "<tool_call>{{ tools }}{{ tool_calls }}<think>"

    def spelled(self, tokens: Sequence[int]) -> str:
        return "<think>\n"


def test_a_template_without_tools_has_them_in_the_system_prompt() -> None:
    model = ScriptedSource()
    prompt = chat_request(ASKED).prompt(model)
    assert '"name": "get_weather"' in model.rendered[0]["content"]
    assert prompt.markup is not None
    assert (prompt.markup.thinking, prompt.constraint) == (None, None)


def test_tools_that_must_not_be_called_are_not_offered() -> None:
    model = ScriptedSource()
    prompt = chat_request(ASKED | {"tool_choice": "none"}).prompt(model)
    assert model.rendered == [{"role": "user", "content": "Hi"}]
    assert (prompt.markup, prompt.constraint) == (None, None)


def test_a_call_that_is_required_is_enforced_after_reasoning() -> None:
    choice = {"type": "function", "function": {"name": "now"}}
    prompt = chat_request(ASKED | {"tool_choice": choice}).prompt(Thinking())
    assert prompt.markup is not None
    assert prompt.markup.is_thinking
    assert prompt.constraint is not None
    assert prompt.constraint.kind is ConstraintKind.LARK
    assert "</think>" in prompt.constraint.text
    assert "get_weather" not in prompt.constraint.text


@pytest.mark.parametrize(
    ("choice", "form", "has_otherwise"),
    [
        ("auto", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"title": "otherwise"}}}, True),
        ("auto", {"type": "json_object"}, True),
        ("required", {"type": "json_object"}, False),
    ],
)
def test_an_answer_that_calls_nothing_has_the_form_that_is_asked_for(
    choice: str, form: dict[str, Any], has_otherwise: bool
) -> None:
    asked = ASKED | {"tool_choice": choice, "response_format": form}
    prompt = chat_request(asked).prompt(ScriptedSource())
    assert prompt.constraint is not None
    assert prompt.constraint.text.count("%json") == len(TOOLS) + has_otherwise


def test_a_template_that_refuses_is_told() -> None:
    with pytest.raises(RequestError, match="refuses it"):
        chat_request(ASKED | {"messages": [{"role": "user", "content": "REFUSE"}]}).prompt(ScriptedSource())
