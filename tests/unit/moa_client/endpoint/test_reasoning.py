"""Reasoning and forms as each API asks for them, with a model that reasons and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from moa_client.endpoint.anthropic.requests import messages_request
from moa_client.endpoint.asked import Prompt
from moa_client.endpoint.ollama.requests import chat_request as ollama_request
from moa_client.endpoint.responses.requests import response_request
from moa_client.web.error_form import RequestError
from moa_shared.sampling.constraint import ConstraintKind

from tests.support.scripted_answers import ScriptedSource
from tests.support.thinking_templates import QWEN
from tests.unit.moa_client.endpoint.test_prompt import Qwen

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FLAT = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
Ask = Callable[[ScriptedSource, Mapping[str, Any]], Prompt]


def anthropic(model: ScriptedSource, given: Mapping[str, Any]) -> Prompt:
    return messages_request({"max_tokens": 9, "messages": HI, **given}).prompt(model)


def ollama(model: ScriptedSource, given: Mapping[str, Any]) -> Prompt:
    return ollama_request({"messages": HI, **given}).prompt(model)


def responses(model: ScriptedSource, given: Mapping[str, Any]) -> Prompt:
    return response_request({"input": HI, **given}).prompt_after((), model)


@pytest.mark.parametrize(
    ("ask", "given", "is_on"),
    [
        (anthropic, {"thinking": {"type": "disabled"}}, False),
        (anthropic, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        (ollama, {"think": False}, False),
        (ollama, {"think": "high"}, True),
        (responses, {"reasoning": {"effort": "none"}}, False),
    ],
)
def test_each_api_asks_the_template(ask: Ask, given: Mapping[str, Any], is_on: bool) -> None:
    model = Qwen()
    assert model.chat_template == QWEN
    ask(model, given)
    assert model.arguments == {"enable_thinking": is_on}


@pytest.mark.parametrize("ask", [anthropic, ollama, responses])
def test_what_is_not_asked_is_as_the_model_has_it(ask: Ask) -> None:
    model = Qwen()
    prompt = ask(model, {})
    assert model.arguments == {}
    assert prompt.markup is not None


def test_a_budget_of_anthropics_is_enforced() -> None:
    prompt = anthropic(Qwen(), {"thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert prompt.constraint is not None
    assert "{0,1024}" in prompt.constraint.text


def test_agents_may_ask_a_model_that_does_not_think_and_people_are_told() -> None:
    plain = ScriptedSource()
    assert anthropic(plain, {"thinking": {"type": "enabled", "budget_tokens": 1024}}).constraint is None
    with pytest.raises(RequestError, match=r"^think: This model does not reason before it answers"):
        ollama(plain, {"think": True})
    with pytest.raises(RequestError, match=r"^reasoning\.effort: This model does not reason"):
        responses(plain, {"reasoning": {"effort": "high"}})


@pytest.mark.parametrize(
    ("ask", "tools", "form"),
    [
        (
            anthropic,
            [{"name": "now", "input_schema": FLAT["parameters"]}],
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
        (
            ollama,
            [{"type": "function", "function": {"name": "now", "parameters": FLAT["parameters"]}}],
            {"format": SCHEMA},
        ),
        (responses, [FLAT], {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}),
    ],
)
def test_an_answer_is_calls_or_else_of_the_form_and_a_form_alone_follows_reasoning(
    ask: Ask, tools: list[Any], form: Mapping[str, Any]
) -> None:
    both = ask(ScriptedSource(), {"tools": tools, **form}).constraint
    assert both is not None
    assert both.kind is ConstraintKind.LARK
    assert all(words in both.text for words in ("now", "integer"))
    after = ask(Qwen(), form).constraint
    assert after is not None
    assert after.kind is ConstraintKind.LARK
    alone = ask(ScriptedSource(), form).constraint
    assert alone is not None
    assert alone.kind is ConstraintKind.JSON_SCHEMA
