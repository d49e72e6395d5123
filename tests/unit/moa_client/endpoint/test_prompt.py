"""What a model is asked where tools are offered, and of its reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.asked import Prompt
from moa_client.endpoint.openai.requests import chat_request
from moa_client.tools.template_input import TemplateInput
from moa_client.web.error_form import RequestError
from moa_shared.sampling.constraint import Constraint, ConstraintKind

from tests.support.scripted_answers import ScriptedSource
from tests.support.thinking_templates import GPT_OSS, QWEN
from tests.support.tool_calls import NOW, WEATHER

TOOLS = [{"type": "function", "function": {**tool.function(), "strict": True}} for tool in (WEATHER, NOW)]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}


class Thinking(ScriptedSource):
    """Its prompts end within reasoning."""

    chat_template = "<tool_call>{{ tools }}{{ tool_calls }}<think>"

    def spelled(self, tokens: Sequence[int]) -> str:
        return "<think>\n"


class Qwen(ScriptedSource):
    """Its answers begin with reasoning unless that is switched off."""

    chat_template = QWEN
    special_tokens: Mapping[str, int] = {"<think>": 900, "</think>": 901}
    arguments: Mapping[str, Any] = {}

    def render(self, given: TemplateInput) -> list[int]:
        self.arguments = given.arguments
        return super().render(given)


class GptOss(Qwen):
    chat_template = GPT_OSS
    special_tokens: Mapping[str, int] = {
        mark: 900 + number
        for number, mark in enumerate(("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"))
    }


class Several(ScriptedSource):
    """It has a template of its own for conversations with tools."""

    def with_tools(self) -> ScriptedSource:
        return Qwen()


def prompt_of(model: ScriptedSource, **given: Any) -> Prompt:
    return chat_request({"messages": ASKED["messages"], **given}).prompt(model)


def test_tools_have_the_template_that_the_model_has_for_them() -> None:
    assert [prompt_of(Several(), tools=tools).markup is None for tools in ([], TOOLS)] == [True, False]
    several = Several()
    prompt_of(several, tools=TOOLS)
    assert not several.rendered  # the other one was


def test_reasoning_is_told_without_tools_too() -> None:
    markup = prompt_of(Qwen()).markup
    assert markup is not None
    parts = AnswerParts(markup, "id")
    parts.push("<think>Hm</think>Hi <tool_call>")
    parts.finish()
    assert (parts.reasoning, parts.text, parts.calls) == ("Hm", "Hi <tool_call>", [])


def test_channels_are_never_text() -> None:
    markup = prompt_of(GptOss()).markup
    assert markup is not None
    assert markup.has_any(GptOss.special_tokens)
    parts, split = AnswerParts(markup, "id"), markup.split()
    assert split is not None
    begun, rest = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>fin", "al<|message|>Hi"
    split.read(begun)
    assert split.ahead(f"{rest} you") == ("", "Hi you")
    split.read(begun + rest)
    assert split.ahead(" you") == ("", " you")
    parts.push(begun + rest)
    parts.finish()
    assert (parts.reasoning, parts.text) == ("Hm", "Hi")


def test_a_template_is_asked_for_what_it_knows() -> None:
    for model, given, arguments in (
        (Qwen(), {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (Qwen(), {"reasoning_effort": "high"}, {"enable_thinking": True}),
        (Qwen(), {"enable_thinking": False}, {"enable_thinking": False}),
        (Qwen(), {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        (GptOss(), {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (ScriptedSource(), {"reasoning_effort": "none"}, {}),
        (ScriptedSource(), {"chat_template_kwargs": {"enable_thinking": False}}, {}),
    ):
        prompt_of(model, **given)
        assert getattr(model, "arguments", {}) == arguments


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (GptOss(), {"reasoning_effort": "none"}, "cannot reason with the effort 'none'"),
        (ScriptedSource(), {"reasoning_effort": "high"}, "does not reason"),
        (ScriptedSource(), {"enable_thinking": True}, "does not reason"),
        (Thinking(), {"reasoning_effort": "low"}, "always reasons"),
        (Qwen(), {"chat_template_kwargs": {"messages": []}}, "messages is set by the request itself"),
        (Qwen(), {"chat_template_kwargs": {"colour": 1}}, "knows no 'colour'"),
        (
            Qwen(),
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"},
            "enable_thinking is set by the request itself",
        ),
        (Thinking(), {"thinking_budget": 3}, "has no token </think>"),
        (Thinking(), {"structured_outputs": {"grammar": 'start: "a"'}}, "A Lark grammar cannot be enforced after"),
    ],
)
def test_what_a_template_cannot_be_asked_is_refused(model: ScriptedSource, given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        prompt_of(model, **given)


def test_a_form_is_of_the_answer_after_its_reasoning() -> None:
    wanted = {"response_format": {"type": "json_object"}}
    assert prompt_of(ScriptedSource(), **wanted).constraint == Constraint(ConstraintKind.JSON_OBJECT)
    assert prompt_of(Qwen(), reasoning_effort="none", **wanted).constraint == Constraint(ConstraintKind.JSON_OBJECT)
    for given, expected in (({}, "</think>"), ({"thinking_token_budget": 7}, "{0,7}")):
        constraint = prompt_of(Qwen(), **wanted, **given).constraint
        assert constraint is not None
        assert expected in constraint.text or "901" in constraint.text
    limited = prompt_of(Qwen(), thinking_token_budget=7).constraint
    assert limited is not None
    assert "{0,7}" in limited.text
    assert prompt_of(ScriptedSource(), thinking_token_budget=7).constraint is None


def test_earlier_reasoning_is_given_to_templates_that_name_it() -> None:
    said = [*ASKED["messages"], {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}, *ASKED["messages"]]
    model = GptOss()
    chat_request({"messages": said}).prompt(model)
    assert model.rendered[1] == {"role": "assistant", "content": "Hi", "thinking": "Hm"}


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
