"""What a model is asked: its reasoning, the tools that are offered, and the form of the answer, in each API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa_client.device.loading import Device, Target
from moa_client.endpoint.ask import HostModel, Prompt
from moa_client.host.host import Host
from moa_client.tools.answer_reader import ReasoningPiece, TextPiece
from moa_client.tools.turns import TemplateInput
from moa_client.web.error_form import RequestError
from moa_shared.errors import ContextLengthError
from moa_shared.sampling.settings import NOTHING_SAID, Constraint, ConstraintKind

from tests.support.family_templates import GPT_OSS, QWEN
from tests.support.scripted_answers import ScriptedSource
from tests.support.tool_calls import NOW, WEATHER
from tests.unit.moa_client.endpoint.test_dialects import asked

TOOLS = [{"type": "function", "function": {**tool.function(), "strict": True}} for tool in (WEATHER, NOW)]
HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Plain(ScriptedSource):
    """It keeps what its template was given."""

    arguments: Mapping[str, Any] = {}

    def render(self, given: TemplateInput) -> list[int]:
        self.arguments = given.arguments
        return super().render(given)


class Thinking(Plain):
    """Its prompts end within reasoning."""

    chat_template = "<tool_call>{{ tools }}{{ tool_calls }}<think>"

    def spelled(self, tokens: Sequence[int]) -> str:
        return "<think>\n"


class Qwen(Plain):
    """Its answers begin with reasoning unless that is switched off."""

    chat_template = QWEN
    special_tokens: Mapping[str, int] = {"<think>": 900, "</think>": 901}


class GptOss(Plain):
    chat_template = GPT_OSS
    marks = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")
    special_tokens: Mapping[str, int] = {mark: 900 + number for number, mark in enumerate(marks)}


def prompt_of(model: ScriptedSource, given: dict[str, Any], api: str = "chat") -> Prompt:
    return asked(api, given).prompt(model)


def test_tools_have_the_template_that_the_model_has_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Plain()
    monkeypatch.setattr(Plain, "with_tools", lambda _: Qwen())
    assert prompt_of(several, {"tools": TOOLS}).form is not None
    assert not several.rendered  # the other one was
    assert prompt_of(several, {}).form is None


def test_reasoning_is_told_without_tools_too_and_channels_are_never_text() -> None:
    assert prompt_of(GptOss(), {}).is_marked_by(GptOss.special_tokens)
    harmony = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    for model, text, said in (
        (Qwen(), "<think>Hm</think>Hi <tool_call>", "Hi <tool_call>"),
        (GptOss(), harmony, "Hi"),
    ):
        reader = prompt_of(model, {}).reader()
        assert [*reader.push(text), *reader.finish()] == [ReasoningPiece("Hm"), TextPiece(said)]


BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize(
    ("model", "api", "given", "arguments"),
    [
        (Qwen, "chat", {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (GptOss, "chat", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (Qwen, "anthropic", {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (Qwen, "anthropic", BUDGET, {"enable_thinking": True}),
        (Plain, "anthropic", BUDGET, {}),  # agents always ask
        (Qwen, "ollama", {"think": True}, {"enable_thinking": True}),
        (GptOss, "ollama", {"think": "high"}, {"reasoning_effort": "high"}),
        (Qwen, "responses", {"reasoning": {"effort": "none"}}, {"enable_thinking": False}),
        *((Qwen, api, {}, {}) for api in ("chat", "anthropic", "ollama", "responses")),
    ],
)
def test_a_template_is_asked_for_what_it_knows(
    model: type[Plain], api: str, given: dict[str, Any], arguments: dict[str, Any]
) -> None:
    source = model()
    prompt_of(source, given, api)
    assert source.arguments == arguments


@pytest.mark.parametrize(
    ("model", "api", "given", "words"),
    [
        (GptOss, "chat", {"reasoning_effort": "none"}, "cannot reason with the effort 'none'"),
        (Plain, "responses", {"reasoning": {"effort": "high"}}, r"^reasoning\.effort: This model does not reason"),
        (Thinking, "chat", {"reasoning_effort": "low"}, "always reasons"),
        (Thinking, "chat", {"thinking_token_budget": 3}, "has no token </think>"),
        (Thinking, "chat", {"structured_outputs": {"grammar": 'start: "a"'}}, "A Lark grammar cannot be enforced"),
        (Plain, "chat", {"messages": [{"role": "user", "content": "REFUSE"}]}, "refuses it"),
        (Plain, "text", {"prompt": [1, 1000]}, "prompt: expected ids of tokens from 0 to 999"),
        (Plain, "chat", {"logit_bias": {"1000": 1}}, "logit_bias: expected tokens 0 to 999, got 1000"),
    ],
)
def test_what_a_model_cannot_be_asked_is_refused(model: type[Plain], api: str, given: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        prompt_of(model(), given, api)
    with pytest.raises(ContextLengthError):
        prompt_of(model(), {"prompt": "word " * 100}, "text")


def test_a_form_is_of_the_answer_after_its_reasoning_which_may_have_a_budget() -> None:
    wanted, whole = {"response_format": {"type": "json_object"}}, Constraint(ConstraintKind.JSON_OBJECT)
    assert prompt_of(Plain(), wanted).constraint == whole
    assert prompt_of(Qwen(), wanted | {"reasoning_effort": "none"}).constraint == whole
    for api, given, expected in (
        ("chat", wanted, "901"),
        ("chat", wanted | {"thinking_token_budget": 7}, "{0,7}"),
        ("anthropic", BUDGET, "{0,1024}"),
    ):
        constraint = prompt_of(Qwen(), given, api).constraint
        assert constraint is not None
        assert expected in constraint.text


def test_an_answer_is_calls_or_else_of_the_form() -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}
    both = prompt_of(Plain(), {"tools": TOOLS[1:], **form}).constraint
    assert both is not None
    assert (both.kind, "now" in both.text, "integer" in both.text) == (ConstraintKind.LARK, True, True)


def test_earlier_reasoning_is_given_to_templates_that_name_it() -> None:
    model = GptOss()
    prompt_of(model, {"messages": [*HI, {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}, *HI]})
    assert model.rendered[1] == {"role": "assistant", "content": "Hi", "thinking": "Hm"}


def test_tools_are_told_of_and_a_call_that_is_required_is_enforced_after_reasoning() -> None:
    model = Plain()
    prompt = prompt_of(model, {"tools": TOOLS})
    assert '"name": "get_weather"' in model.rendered[0]["content"]
    assert (prompt.thinking, prompt.constraint) == (None, None)
    prompt = prompt_of(model, {"tools": TOOLS, "tool_choice": "none"})
    assert (model.rendered, prompt.form, prompt.constraint) == (HI, None, None)
    prompt = prompt_of(Thinking(), {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}})
    assert prompt.is_thinking
    assert prompt.constraint is not None
    assert "</think>" in prompt.constraint.text
    assert "get_weather" not in prompt.constraint.text


def test_a_raw_text_begins_as_the_models_texts_do_and_ends_of_answers_are_not_spelled() -> None:
    tokenizer = SimpleNamespace(
        encode=lambda text, is_guarded: [*map(ord, text)],
        with_bos=lambda tokens: [1, *tokens],
        decode=lambda tokens: "".join(map(chr, tokens)),
    )
    files = SimpleNamespace(target_id="tiny", config={"vocab_size": 300})
    target: Any = SimpleNamespace(
        files=files, tokenizer=tokenizer, context_tokens=64, sampling=NOTHING_SAID, fingerprint="fp", end_of_text={122}
    )
    target.spelled = partial(Target.spelled, target)
    model = HostModel(cast(Host, SimpleNamespace(device=Device(target))))
    assert (model.encode("hi"), model.spelled([*map(ord, "abz")])) == ([1, ord("h"), ord("i")], "ab")
