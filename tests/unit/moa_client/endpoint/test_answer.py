"""What a model is asked in each API, and one answer as its request sees it: its parts, its end, how long it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Ended,
    Failed,
    HeldBack,
    LinkChanged,
    LinkState,
    Provisional,
    Refused,
    Settled,
    SurfaceEvent,
)
from moa_client.conversation.figures import LinkStatus
from moa_client.device.loading import Device, Target
from moa_client.endpoint.answer import REASONS, Answer, ToldTokens
from moa_client.endpoint.ask import HostModel, Prompt
from moa_client.host.host import Host
from moa_client.tools.answer_reader import ReasoningPiece, TextPiece
from moa_client.tools.turns import TemplateInput
from moa_client.web.access import RequestError
from moa_shared.errors import ContextLengthError, MismatchError, OverloadedError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import Constraint, ConstraintKind, TokenChances

from tests.support.family_templates import GPT_OSS, QWEN
from tests.support.scripted_answers import ScriptedSource, made_answer
from tests.support.tool_calls import NOW, WEATHER
from tests.unit.moa_client.endpoint.test_dialects import asked

STANDALONE = (Provisional((1,), added="Hi"), Ended(Finish.END_OF_TEXT, provisional=True))
HE, Y = Committed((1,), text="He"), Provisional((2,), added="y")


def told(*events: SurfaceEvent, **more: Any) -> Answer:
    answer = made_answer(**more)
    answer.on_link(LinkState.GOOD, 0.0)
    for event in events:
        answer.apply(Update(event, 1), 0.0)
    return answer


def shown(answer: Answer) -> tuple[str, str]:
    return answer.text.committed, answer.text.provisional


def test_an_answer_that_the_server_has_ended_is_verified_unless_somebody_else_has_stopped_it() -> None:
    for finish in Finish:
        answer = told(Ended(finish, text="end"))
        assert (answer.is_over, shown(answer)) == (True, ("end", ""))
        reason = REASONS.get(finish)
        assert (answer.reason, answer.is_verified) == (reason, reason is not None)
        stopped = "The answer was stopped before its end. Ask again."
        assert str(answer.failure) == ("None" if reason else stopped)
    assert (REASONS[Finish.STOP], REASONS[Finish.LOOP]) == ("stop", "length")


def test_an_answer_that_ended_without_the_server_waits_for_it() -> None:
    assert not told(*STANDALONE).is_over
    answer = told(*STANDALONE, HE, Settled((1, 2), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS, text="llo"))
    assert (answer.reason, answer.is_verified) == ("length", True)
    assert (*shown(answer), answer.text.tokens) == ("Hello", "", 2)


def test_only_the_time_without_the_server_counts() -> None:
    answer = told()
    assert answer.deadline is None
    for state, at, deadline in (
        (LinkState.OFFLINE, 100.0, 110.0),
        (LinkState.OFFLINE, 102.0, 110.0),
        (LinkState.BACK, 104.0, None),
        (LinkState.OFFLINE, 200.0, 206.0),  # four of the ten seconds are over
    ):
        answer.apply(Update(LinkChanged(state)), at)
        assert answer.deadline == deadline
    answer, status = told(), LinkStatus(LinkState.OFFLINE, None, 0, 0, 0, 0)
    answer.apply(Update(Provisional((1,), added="x"), 1, status), 3.0)  # each update may tell it
    assert answer.deadline == 13.0
    answer = told()
    answer.on_link(LinkState.OFFLINE, 5.0)  # and so may the beginning
    assert answer.deadline == 15.0


@pytest.mark.parametrize(
    ("ends", "events", "reason", "text"),
    [
        (True, [HE, Y], "length", ("He", "y")),
        (True, [Y, HeldBack()], "length", ("", "y")),
        (True, STANDALONE, "stop", ("", "Hi")),  # the device's
        (True, [], None, ("", "")),
        (False, [], None, ("", "")),
        (False, [HE], None, ("He", "")),
    ],
)
def test_what_becomes_of_an_answer_whose_server_stays_away(
    ends: bool, events: list[SurfaceEvent], reason: str | None, text: tuple[str, str]
) -> None:
    answer = told(*events, ends_unverified=ends)
    answer.give_up()
    assert (answer.reason, answer.is_verified, shown(answer)) == (reason, False, text)
    lost = "The server was lost for 10 s and has not verified the answer. Ask again when it is back."
    assert (str(answer.failure) == lost) == (reason is None)


def test_what_the_server_refuses_to_verify_will_not_be_and_the_first_failure_counts() -> None:
    error = OverloadedError("No room.")
    for ends, end in ((True, ("stop", None)), (False, (None, error))):
        answer = told(*STANDALONE, Refused(error), ends_unverified=ends)
        assert answer.text.provisional == "Hi"
        assert (answer.reason, answer.failure) == end
    first = MismatchError("Another model.")
    assert told(Failed(first), Failed(error), ends_unverified=True).failure is first


# ------------------------------------------------------------ chances of tokens

END = 300  # a special token without text
BYTES: Any = SimpleNamespace(token_bytes=lambda token: bytes([token]))


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token != END).decode("utf-8", "replace")


@given(st.text(max_size=8), st.integers(0, 8))
def test_texts_add_up_wherever_the_text_is_cut(text: str, length: int) -> None:
    tokens, taken = [*text.encode(), END], ToldTokens(BYTES, decode)
    taken.take(tokens, [TokenChances(-float(number)) for number, _ in enumerate(tokens)])
    taken.finish(text[:length])
    assert "".join(token.text for token in taken.tokens) == text[:length]
    assert [token.start for token in taken.tokens] == [0, *accumulate(len(token.text) for token in taken.tokens)][:-1]
    assert [token.chance for token in taken.tokens] == [-float(number) for number, _ in enumerate(tokens)]


OFFERED = [{"type": "function", "function": {**tool.function(), "strict": True}} for tool in (WEATHER, NOW)]
HI = [{"role": "user", "content": "Hi"}]


class Plain(ScriptedSource):
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
    for api, asks, expected in (
        ("chat", wanted, "901"),
        ("chat", wanted | {"thinking_token_budget": 7}, "{0,7}"),
        ("anthropic", BUDGET, "{0,1024}"),
    ):
        constraint = prompt_of(Qwen(), asks, api).constraint
        assert constraint is not None
        assert expected in constraint.text


def test_tools_are_told_of_and_a_call_that_is_required_is_enforced_after_reasoning() -> None:
    model = Plain()
    prompt = prompt_of(model, {"tools": OFFERED})
    assert '"name": "get_weather"' in model.rendered[0]["content"]
    assert (prompt.thinking, prompt.constraint) == (None, None)
    prompt = prompt_of(model, {"tools": OFFERED, "tool_choice": "none"})
    assert (model.rendered, prompt.form, prompt.constraint) == (HI, None, None)
    prompt = prompt_of(Thinking(), {"tools": OFFERED, "tool_choice": {"type": "function", "function": {"name": "now"}}})
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
        files=files, tokenizer=tokenizer, context_tokens=64, sampling={}, fingerprint="fp", end_of_text={122}
    )
    target.spelled = partial(Target.spelled, target)
    model = HostModel(cast(Host, SimpleNamespace(device=Device(target))), "tiny")
    assert (model.encode("hi"), model.spelled([*map(ord, "abz")])) == ([1, ord("h"), ord("i")], "ab")
