"""What a model is asked: its reasoning, the tools that are offered, and the form of the answer, in each API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa_client.device.loading import Device
from moa_client.endpoint.ask import HostModel, Prompt
from moa_client.host.host import Host
from moa_client.tools.answer_reader import ReasoningPiece, TextPiece
from moa_client.tools.turns import TemplateInput
from moa_client.web.error_form import RequestError
from moa_shared.errors import ContextLengthError
from moa_shared.sampling.settings import NOTHING_SAID, Constraint, ConstraintKind

from tests.support.scripted_answers import ScriptedSource
from tests.support.scripted_engine import PlainTokenizer
from tests.support.thinking_templates import GPT_OSS, QWEN
from tests.support.tool_calls import NOW, WEATHER
from tests.unit.moa_client.endpoint.test_dialects import asked

TOOLS = [{"type": "function", "function": {**tool.function(), "strict": True}} for tool in (WEATHER, NOW)]
HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NO_PARAMETERS = {"type": "object", "properties": {}}


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


def prompt_of(model: ScriptedSource, given: dict[str, Any], api: str = "chat") -> Prompt:
    return asked(api, given).prompt(model)


def test_tools_have_the_template_that_the_model_has_for_them() -> None:
    several = Several()
    assert prompt_of(several, {"tools": TOOLS}).form is not None
    assert not several.rendered  # the other one was
    assert prompt_of(Several(), {}).form is None


def test_reasoning_is_told_without_tools_too_and_channels_are_never_text() -> None:
    reader = prompt_of(Qwen(), {}).reader()
    assert [*reader.push("<think>Hm</think>Hi <tool_call>"), *reader.finish()] == [
        ReasoningPiece("Hm"),
        TextPiece("Hi <tool_call>"),
    ]
    prompt = prompt_of(GptOss(), {})
    assert prompt.is_marked_by(GptOss.special_tokens)
    reader = prompt.reader()
    text = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    assert [*reader.push(text), *reader.finish()] == [ReasoningPiece("Hm"), TextPiece("Hi")]


@pytest.mark.parametrize(
    ("model", "api", "given", "arguments"),
    [
        (Qwen, "chat", {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (Qwen, "chat", {"reasoning_effort": "high"}, {"enable_thinking": True}),
        (GptOss, "chat", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (ScriptedSource, "chat", {"reasoning_effort": "none"}, {}),
        (Qwen, "anthropic", {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (Qwen, "anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        (
            ScriptedSource,
            "anthropic",
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {},
        ),  # agents always ask
        (Qwen, "ollama", {"think": False}, {"enable_thinking": False}),
        (Qwen, "ollama", {"think": "high"}, {"enable_thinking": True}),
        (Qwen, "responses", {"reasoning": {"effort": "none"}}, {"enable_thinking": False}),
        *((Qwen, api, {}, {}) for api in ("chat", "anthropic", "ollama", "responses")),
    ],
)
def test_a_template_is_asked_for_what_it_knows(
    model: type[ScriptedSource], api: str, given: dict[str, Any], arguments: dict[str, Any]
) -> None:
    source = model()
    prompt_of(source, given, api)
    assert getattr(source, "arguments", {}) == arguments


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (GptOss(), {"reasoning_effort": "none"}, "cannot reason with the effort 'none'"),
        (ScriptedSource(), {"reasoning_effort": "high"}, "does not reason"),
        (Thinking(), {"reasoning_effort": "low"}, "always reasons"),
        (Thinking(), {"thinking_token_budget": 3}, "has no token </think>"),
        (Thinking(), {"structured_outputs": {"grammar": 'start: "a"'}}, "A Lark grammar cannot be enforced after"),
        (ScriptedSource(), {"messages": [{"role": "user", "content": "REFUSE"}]}, "refuses it"),
        (ScriptedSource(), {"logit_bias": {"1000": 1}}, "logit_bias: expected tokens 0 to 999, got 1000"),
    ],
)
def test_what_a_model_cannot_be_asked_is_refused(model: ScriptedSource, given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        prompt_of(model, given)


def test_people_are_told_of_a_model_that_does_not_think_by_the_name_of_their_api() -> None:
    with pytest.raises(RequestError, match=r"^think: This model does not reason before it answers"):
        prompt_of(ScriptedSource(), {"think": "high"}, "ollama")
    with pytest.raises(RequestError, match=r"^reasoning\.effort: This model does not reason"):
        prompt_of(ScriptedSource(), {"reasoning": {"effort": "high"}}, "responses")
    with pytest.raises(ContextLengthError):
        prompt_of(ScriptedSource(), {"prompt": "word " * 100}, "text")


def test_a_form_is_of_the_answer_after_its_reasoning_which_may_have_a_budget() -> None:
    wanted = {"response_format": {"type": "json_object"}}
    assert prompt_of(ScriptedSource(), wanted).constraint == Constraint(ConstraintKind.JSON_OBJECT)
    assert prompt_of(Qwen(), wanted | {"reasoning_effort": "none"}).constraint == Constraint(ConstraintKind.JSON_OBJECT)
    for api, given, expected in (
        ("chat", wanted, "901"),
        ("chat", wanted | {"thinking_token_budget": 7}, "{0,7}"),
        ("chat", {"thinking_token_budget": 7}, "{0,7}"),
        ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "{0,1024}"),
    ):
        constraint = prompt_of(Qwen(), given, api).constraint
        assert constraint is not None
        assert expected in constraint.text
    assert prompt_of(ScriptedSource(), {"thinking_token_budget": 7}).constraint is None


@pytest.mark.parametrize(
    ("api", "tools", "form"),
    [
        (
            "chat",
            TOOLS[1:],
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        ),
        (
            "anthropic",
            [{"name": "now", "input_schema": NO_PARAMETERS}],
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
        ("ollama", TOOLS[1:], {"format": SCHEMA}),
        (
            "responses",
            [{"type": "function", "name": "now", "parameters": NO_PARAMETERS}],
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        ),
    ],
)
def test_an_answer_is_calls_or_else_of_the_form(api: str, tools: list[Any], form: dict[str, Any]) -> None:
    both = prompt_of(ScriptedSource(), {"tools": tools, **form}, api).constraint
    assert both is not None
    assert both.kind is ConstraintKind.LARK
    assert all(words in both.text for words in ("now", "integer"))
    alone = prompt_of(ScriptedSource(), form, api).constraint
    assert alone is not None
    assert alone.kind is ConstraintKind.JSON_SCHEMA


def test_earlier_reasoning_is_given_to_templates_that_name_it() -> None:
    model = GptOss()
    prompt_of(model, {"messages": [*HI, {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}, *HI]})
    assert model.rendered[1] == {"role": "assistant", "content": "Hi", "thinking": "Hm"}


def test_a_template_without_tools_has_them_in_the_system_prompt_unless_none_may_be_called() -> None:
    model = ScriptedSource()
    prompt = prompt_of(model, {"tools": TOOLS})
    assert '"name": "get_weather"' in model.rendered[0]["content"]
    assert (prompt.thinking, prompt.constraint) == (None, None)
    prompt = prompt_of(model, {"tools": TOOLS, "tool_choice": "none"})
    assert model.rendered == HI
    assert (prompt.form, prompt.constraint) == (None, None)


def test_a_call_that_is_required_is_enforced_after_reasoning() -> None:
    choice = {"type": "function", "function": {"name": "now"}}
    prompt = prompt_of(Thinking(), {"tools": TOOLS, "tool_choice": choice})
    assert prompt.is_thinking
    assert prompt.constraint is not None
    assert prompt.constraint.kind is ConstraintKind.LARK
    assert "</think>" in prompt.constraint.text
    assert "get_weather" not in prompt.constraint.text


class BeginningTokenizer(PlainTokenizer):
    """Raw texts begin with token 1."""

    def with_bos(self, ids: list[int]) -> list[int]:
        return [1, *ids]


def model_of(tokenizer: object) -> HostModel:
    """A host's model with this tokenizer."""
    device = SimpleNamespace(
        files=SimpleNamespace(target_id="tiny", config={"vocab_size": 300}),
        context_tokens=64,
        tokenizer=tokenizer,
        sampling=NOTHING_SAID,
        fingerprint="fp",
        end_of_text=frozenset({ord("z")}),
    )
    device.spelled = partial(Device.spelled, cast(Device, device))
    return HostModel(cast(Host, SimpleNamespace(device=device)))


def test_a_raw_text_begins_as_the_models_texts_do_and_a_chat_as_its_template_has_it() -> None:
    model = model_of(BeginningTokenizer())
    assert model.encode("hi") == [1, ord("h"), ord("i")]
    assert model.render(TemplateInput([{"role": "user", "content": "hi"}]))[0] == ord("[")


def test_special_tokens_are_spelled_but_for_those_that_end_an_answer() -> None:
    model = model_of(SimpleNamespace(decode=lambda tokens: "".join(map(chr, tokens))))
    assert model.spelled([ord("a"), ord("b"), ord("z")]) == "ab"
