from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.endpoint.asked import Prompt
from moa_client.endpoint.openai.messages import conversation
from moa_client.endpoint.openai.requests import ChatRequest, chat_request, text_request
from moa_client.endpoint.refusals import REFUSED
from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.template_input import template_input
from moa_client.web.error_form import RequestError
from moa_shared.sampling.chances import WantedChances
from moa_shared.sampling.defaults import SamplingDefaults

from tests.support.scripted_answers import ScriptedSource

HI = {"messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "now"}}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
CALLED = [*HI["messages"], {"role": "assistant", "content": None, "tool_calls": [CALL]}]
NAMED = {"type": "function", "function": {"name": "then"}}


def rendered(asked: ChatRequest) -> list[dict[str, Any]]:
    return template_input(Hermes(), "", conversation(asked.messages), []).messages


def test_a_chat_is_sampled_as_openai_does_unless_it_says_otherwise() -> None:
    options = chat_request(HI).options()
    assert (options.temperature, options.top_p, options.top_k, options.max_tokens, options.stop) == (1.0, 1.0, 0, 0, ())
    assert options.seed is not None
    assert 0 <= options.seed < 1 << 32
    assert len({chat_request(HI).options().seed for _ in range(5)}) > 1


def test_every_used_parameter_has_its_effect() -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": -1, "max_completion_tokens": 7, "stop": "END"}
    off: dict[str, Any] = {"min_p": 0.0, "repeat_penalty": 1.0, "repeat_last_n": 64}
    assert chat_request(HI | given).options() == AnswerOptions(0.5, 4, 0.9, (1 << 64) - 1, 7, ("END",), **off)
    given = {"temperature": 0, "seed": 3, "max_tokens": 7, "stop": ["a", "b"]}
    assert chat_request(HI | given).options() == AnswerOptions(0.0, 0, 1.0, 3, 7, ("a", "b"), **off)
    given = {"min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 1, "frequency_penalty": -0.5}
    options = chat_request(HI | given | {"logit_bias": {"42": -100, "7": 1.5}, "loop_guard": False}).options()
    assert {name: getattr(options, name) for name in given} == given
    assert (options.logit_bias, options.loop_guard) == (((7, 1.5), (42, -100.0)), False)


def test_what_a_model_says_counts_where_a_request_does_not() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    options = chat_request(HI | {"top_k": 5}).options(defaults)
    assert (options.temperature, options.top_k, options.top_p, options.loop_guard) == (0.6, 5, 1.0, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"logit_bias": {"hello": 1}}, "logit_bias names 'hello', expected the id of a token."),
        ({"logit_bias": {"100": 1}}, "logit_bias: expected tokens 0 to 99, got 100."),
        ({"logit_bias": {"3": 101}}, "logit_bias of token 3 is 101.0, expected -100 to 100."),
        ({"presence_penalty": 3}, "presence_penalty is 3.0, expected -2 to 2."),
        ({"repeat_penalty": 0}, "repeat_penalty is 0.0, expected 0.01 to 100; 1 is off."),
        ({"min_p": 2}, "min_p is 2.0, expected 0 (off) to 1."),
        ({"loop_guard": 1}, "loop_guard: expected true or false."),
    ],
)
def test_an_option_out_of_its_range_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_request(HI | given).options(vocab_size=100)
    assert (str(caught.value), caught.value.param) == (words, next(iter(given)))


def test_a_text_has_16_tokens_unless_it_says_otherwise() -> None:
    assert text_request({"prompt": "Once"}).options().max_tokens == 16
    assert text_request({"prompt": "Once", "max_tokens": 3}).options().max_tokens == 3


def test_chances_are_told_where_they_are_asked_for() -> None:
    asked = [
        chat_request(HI | {"logprobs": True}),
        chat_request(HI | {"logprobs": True, "top_logprobs": 20, "moa": {"logprobs": "raw"}}),
        text_request({"prompt": "Once", "logprobs": 0, "moa": {"logprobs": "processed"}}),
        chat_request(HI | {"logprobs": False}),
        text_request({"prompt": "Once", "logprobs": None}),
        text_request({"prompt": "Once", "logprobs": False}),
    ]
    wanted = [WantedChances(), WantedChances(20), WantedChances(processed=True), None, None, None]
    assert [each.options().chances for each in asked] == wanted


def test_a_prompt_may_be_repeated_without_an_answer() -> None:
    request = text_request({"prompt": [1, 2], "echo": True, "max_tokens": 0})
    assert request.prompts(ScriptedSource()) == [Prompt([1, 2], is_repeated=True, is_answered=False)]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("Once", ["Once"]),
        (["Once"], ["Once"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        (["Once", "upon"], ["Once", "upon"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_a_text_or_tokens_or_several_of_these(prompt: object, texts: list[object]) -> None:
    assert text_request({"prompt": prompt}).texts == texts


def test_what_asks_for_nothing_special_is_accepted() -> None:
    absent = dict.fromkeys(REFUSED)
    harmless = {
        "n": 1,
        "logprobs": False,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "logit_bias": {},
        "modalities": ["text"],
        "store": False,
        "user": "somebody",
        "metadata": {"a": "b"},
        "stream_options": None,
        "function_call": "auto",
        "temperature": None,
    }
    assert chat_request(HI | absent).messages[0].text == "Hi"
    assert chat_request(HI | harmless).options().temperature == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"n": 9},
            snapshot("n | invalid_value | n: expected at most 8."),
        ),
        (
            {"n": 2, "stream": True, "moa": {"provisional": True}},
            snapshot(
                "moa.provisional | invalid_value | moa.provisional: only a request for one answer may ask for it."
            ),
        ),
        ({"logprobs": 1}, snapshot("logprobs | invalid_value | logprobs: expected true or false.")),
        (
            {"top_logprobs": 3},
            snapshot("top_logprobs | invalid_value | top_logprobs: only a request with logprobs: true may have it."),
        ),
        (
            {"logprobs": False, "top_logprobs": 0},
            snapshot("top_logprobs | invalid_value | top_logprobs: only a request with logprobs: true may have it."),
        ),
        (
            {"logprobs": True, "top_logprobs": 21},
            snapshot("top_logprobs | invalid_value | top_logprobs: expected at most 20."),
        ),
        (
            {"moa": {"logprobs": "processed"}},
            snapshot("moa.logprobs | invalid_value | moa.logprobs: only a request with logprobs may ask for it."),
        ),
        (
            {"logprobs": True, "moa": {"logprobs": "all"}},
            snapshot("moa.logprobs | invalid_value | moa.logprobs: expected 'raw' or 'processed'."),
        ),
        (
            {"tools": [{"type": "function"}]},
            snapshot("tools[0].function | missing_required_parameter | tools[0].function is missing."),
        ),
        (
            {"tool_choice": "required"},
            snapshot(
                "tool_choice | invalid_value | tool_choice: A call is required, but no tool is offered. Offer one, or require none."
            ),
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            snapshot(
                "tools[0].function | invalid_value | tools[0].function: The tool's name 'a b' cannot be used. Use 1 to 128 of the characters a-z, A-Z, 0-9, _ and -."
            ),
        ),
        (
            {"tools": [{"type": "web_search"}]},
            snapshot("tools[0].type | invalid_value | tools[0].type: expected 'function'."),
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            snapshot(
                "tools[0].function | invalid_value | tools[0].function: The parameters of the tool f are of type 'string', expected 'object'. Arguments have names: describe them as properties of an object."
            ),
        ),
        (
            {"tools": [TOOL, TOOL]},
            snapshot("tools | invalid_value | tools: Two tools have the name now. Rename one of them."),
        ),
        (
            {"tools": [TOOL], "tool_choice": "must"},
            snapshot(
                "tool_choice | invalid_value | tool_choice: expected 'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}."
            ),
        ),
        (
            {"tools": [TOOL], "tool_choice": NAMED},
            snapshot(
                "tool_choice | invalid_value | tool_choice: A call of 'then' is required, which is not among the tools. Offered: now."
            ),
        ),
        (
            {"tools": [TOOL], "structured_outputs": {"regex": "a"}},
            snapshot(
                "structured_outputs | invalid_value | structured_outputs: an answer of this form calls no tools: use response_format, or tool_choice: 'none'."
            ),
        ),
        (
            {"tools": [TOOL], "stream": True, "moa": {"provisional": True}},
            snapshot(
                "moa.provisional | invalid_value | moa.provisional: calls are not sent before they are verified: do not offer tools with it."
            ),
        ),
        (
            {"reasoning_effort": "high", "enable_thinking": True},
            snapshot(
                "enable_thinking | invalid_value | enable_thinking: reasoning_effort says how much the model reasons: give one of them."
            ),
        ),
        (
            {"thinking_budget": 1, "thinking_token_budget": 1},
            snapshot(
                "thinking_budget | invalid_value | thinking_budget: it is another name of thinking_token_budget: give one of them."
            ),
        ),
        (
            {"chat_template_kwargs": {"text": "x" * 5000}},
            snapshot(
                "chat_template_kwargs | invalid_value | chat_template_kwargs: at most 4096 bytes of JSON are allowed."
            ),
        ),
        (
            {"temperature": -1},
            snapshot("temperature | invalid_value | temperature is -1.0, expected 0 (greedy) or 0.001 to 100."),
        ),
        (
            {"temperature": 1e-5},
            snapshot("temperature | invalid_value | temperature is 1e-05, expected 0 (greedy) or 0.001 to 100."),
        ),
        (
            {"temperature": float("nan")},
            snapshot("temperature | invalid_value | temperature: expected a finite number."),
        ),
        ({"temperature": "1"}, snapshot("temperature | invalid_value | temperature: expected a number.")),
        ({"top_p": 0}, snapshot("top_p | invalid_value | top_p is 0.0, expected more than 0 and at most 1.")),
        ({"top_k": -1}, snapshot("top_k | invalid_value | top_k is -1, expected 0 (off) or more.")),
        ({"seed": 1 << 64}, snapshot("seed | invalid_value | seed: expected less than 18446744073709551616.")),
        ({"seed": 1.5}, snapshot("seed | invalid_value | seed: expected a whole number.")),
        ({"max_tokens": 0}, snapshot("max_tokens | invalid_value | max_tokens: expected at least 1.")),
        ({"max_tokens": True}, snapshot("max_tokens | invalid_value | max_tokens: expected a whole number.")),
        (
            {"max_tokens": 1, "max_completion_tokens": 1},
            snapshot(
                "max_tokens | invalid_value | max_tokens: it is the older name of max_completion_tokens: give one of them."
            ),
        ),
        ({"stop": ""}, snapshot("stop | invalid_value | stop: each text must have 1 to 64 characters.")),
        (
            {"stop": ["a"] * 17},
            snapshot("stop | invalid_value | stop: list should have at most 16 items, not 17."),
        ),
        ({"stop": "a" * 65}, snapshot("stop | invalid_value | stop: each text must have 1 to 64 characters.")),
        ({"stop": [1]}, snapshot("stop[0] | invalid_value | stop[0]: expected text.")),
        ({"stream": "yes"}, snapshot("stream | invalid_value | stream: expected true or false.")),
        (
            {"stream_options": {"include_usage": True}},
            snapshot(
                "stream_options | invalid_value | stream_options: only a request with stream: true may have them."
            ),
        ),
        (
            {"moa": {"unverified": "maybe"}},
            snapshot("moa.unverified | invalid_value | moa.unverified: expected 'end' or 'fail'."),
        ),
        (
            {"moa": {"provisional": True}},
            snapshot(
                "moa.provisional | invalid_value | moa.provisional: only a request with stream: true may ask for it."
            ),
        ),
        ({"moa": []}, snapshot("moa | invalid_value | moa: expected a JSON object.")),
        ({"model": 1}, snapshot("model | invalid_value | model: expected text.")),
        ({"messages": None}, snapshot("messages | missing_required_parameter | messages is missing.")),
        (
            {"messages": []},
            snapshot("messages | invalid_value | messages: list should have at least 1 item, not 0."),
        ),
        (
            {"messages": HI["messages"] * 1001},
            snapshot("messages | invalid_value | messages: list should have at most 1000 items, not 1001."),
        ),
        ({"messages": "Hi"}, snapshot("messages | invalid_value | messages: expected a list.")),
        (
            {"messages": ["Hi"]},
            snapshot("messages[0] | invalid_value | messages[0]: expected a JSON object."),
        ),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            snapshot(
                "messages[0].role | invalid_value | messages[0].role: expected 'system', 'developer', 'user', 'assistant' or 'tool'."
            ),
        ),
        (
            {"messages": [{"role": "user"}]},
            snapshot("messages[0].content | missing_required_parameter | messages[0].content is missing."),
        ),
        (
            {"messages": [{"role": "user", "content": None}]},
            snapshot("messages[0].content | missing_required_parameter | messages[0].content is missing."),
        ),
        (
            {"messages": [{"role": "user", "content": []}]},
            snapshot("messages[0].content | missing_required_parameter | messages[0].content is missing."),
        ),
        (
            {"messages": [{"role": "user", "content": ["Hi"]}]},
            snapshot(
                "messages[0].content | invalid_value | messages[0].content: expected a text, or a list of parts of type text."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
            snapshot(
                "messages[0].content | invalid_value | messages[0].content: part 1 is of type image_url: models read text only."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            snapshot(
                "messages[0].content[0].text | missing_required_parameter | messages[0].content[0].text is missing."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": "x", "name": 5}]},
            snapshot("messages[0].name | invalid_value | messages[0].name: expected text."),
        ),
        (
            {"messages": [{"role": "user", "refusal": "x"}]},
            snapshot("messages[0].content | missing_required_parameter | messages[0].content is missing."),
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            snapshot(
                "messages[0].tool_calls[0].function | missing_required_parameter | messages[0].tool_calls[0].function is missing."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "refusal", "text": "x"}, 5]}]},
            snapshot(
                "messages[0].content | invalid_value | messages[0].content: expected a text, or a list of parts of type text."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]},
            snapshot(
                "messages[0].tool_call_id | invalid_value | messages[0].tool_call_id: only a message from tool answers a call."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            snapshot(
                "messages[0].tool_calls | invalid_value | messages[0].tool_calls: only a message from assistant has calls."
            ),
        ),
        (
            {"messages": [*CALLED, {"role": "tool", "content": "x"}]},
            snapshot("messages[2].tool_call_id | missing_required_parameter | messages[2].tool_call_id is missing."),
        ),
        (
            {"messages": [*CALLED, {"role": "tool", "tool_call_id": "1"}]},
            snapshot("messages[2].content | missing_required_parameter | messages[2].content is missing."),
        ),
        (
            {"messages": [*CALLED, {"role": "tool", "content": "x", "tool_call_id": "2"}]},
            snapshot(
                "messages[2].tool_call_id | invalid_value | messages[2].tool_call_id: no message before it made the call '2'."
            ),
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "now", "arguments": "{"}}],
                    },
                    *HI["messages"],
                ]
            },
            snapshot(
                "messages[0].tool_calls[0] | invalid_value | messages[0].tool_calls[0]: The arguments of the call '1' are not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). Send calls back as the model made them, and none that was cut."
            ),
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            snapshot(
                "messages[1].role | invalid_value | messages[1].role: the last message must not be from assistant: answers are not continued, and a second one would be unlike what models were trained on."
            ),
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_parameter(given: dict[str, Any], message: object) -> None:
    with pytest.raises(RequestError) as caught:
        chat_request(HI | given).options()
    assert caught.value.status == 400
    assert f"{caught.value.param} | {caught.value.code} | {caught.value}" == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, snapshot("prompt | missing_required_parameter | prompt is missing.")),
        (
            {"prompt": ""},
            snapshot(
                "prompt | invalid_value | prompt: expected a text that is not empty, or the ids of its tokens, or a list of several of these."
            ),
        ),
        (
            {"prompt": ["a", ""]},
            snapshot(
                "prompt | invalid_value | prompt: expected a text that is not empty, or the ids of its tokens, or a list of several of these."
            ),
        ),
        (
            {"prompt": [[1], [2], [3]], "n": 3},
            snapshot(
                "prompt | invalid_value | prompt: 9 answers are asked for, 3 of each text, and at most 8 are given: send fewer texts at once (lm-eval: batch_size=8)."
            ),
        ),
        (
            {"prompt": ["a", "b"], "stream": True, "moa": {"provisional": True}},
            snapshot(
                "moa.provisional | invalid_value | moa.provisional: only a request for one answer may ask for it."
            ),
        ),
        ({"prompt": [1.5]}, snapshot("prompt[0] | invalid_value | prompt[0]: expected text.")),
        (
            {"prompt": 5},
            snapshot(
                "prompt | invalid_value | prompt: expected a text that is not empty, or the ids of its tokens, or a list of several of these."
            ),
        ),
        ({"prompt": "a", "echo": 1}, snapshot("echo | invalid_value | echo: expected true or false.")),
        (
            {"prompt": "a", "max_tokens": 0},
            snapshot("max_tokens | invalid_value | max_tokens: only a request with echo: true may want no token."),
        ),
        (
            {"prompt": "a", "max_tokens": -1, "echo": True},
            snapshot("max_tokens | invalid_value | max_tokens: expected at least 0."),
        ),
        (
            {"prompt": "a", "logprobs": 21},
            snapshot("logprobs | invalid_value | logprobs: expected at most 20."),
        ),
        ({"prompt": "a", "logprobs": True}, snapshot("logprobs | invalid_value | logprobs: expected a whole number.")),
        (
            {"prompt": "a", "moa": {"logprobs": "raw"}},
            snapshot("moa.logprobs | invalid_value | moa.logprobs: only a request with logprobs may ask for it."),
        ),
    ],
)
def test_a_text_that_cannot_be_continued_is_refused(given: dict[str, Any], message: object) -> None:
    with pytest.raises(RequestError) as caught:
        text_request(given).options()
    assert f"{caught.value.param} | {caught.value.code} | {caught.value}" == message


def test_messages_become_what_templates_know() -> None:
    asked = chat_request(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello", "refusal": None, "tool_calls": None, "annotations": []},
                {"role": "developer", "content": "Be loud."},
                {"role": "user", "content": "And now?"},
            ]
        }
    )
    assert rendered(asked) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "Be loud."},
        {"role": "user", "content": "And now?"},
    ]


def test_what_programs_send_back_or_note_beside_a_message_is_let_pass() -> None:
    noted = {"id": "msg-1", "cache_control": {"type": "ephemeral"}, "metadata": {}, "type": "message"}
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    asked = chat_request(
        {
            "messages": [
                {"role": "user", "content": [part], "name": "Bob", **noted},
                {"role": "assistant", "content": None, "reasoning_content": "They greet.", "tool_calls": []},
                {"role": "assistant", "refusal": "No."},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "Not now."}], **noted},
                {"role": "assistant", "content": "Hello", "reasoning": "They greet.", "annotations": [{"url": "x"}]},
                {"role": "system", "content": "Be loud.", "name": "Ann"},
                {"role": "user", "content": "And now?", "name": ""},
            ]
        }
    )
    assert rendered(asked) == [
        {"role": "user", "content": "Hi", "name": "Bob"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "No."},
        {"role": "assistant", "content": "Not now."},
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "Be loud."},
        {"role": "user", "content": "And now?"},
    ]


def test_calls_and_their_results_are_written_where_the_template_knows_none() -> None:
    result = {"role": "tool", "content": "12:00", "tool_call_id": "1", "name": "now"}
    asked = chat_request({"messages": [*CALLED, result]})
    assert rendered(asked) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'},
        {"role": "user", "content": "<tool_response>\n12:00\n</tool_response>"},
    ]


@pytest.mark.parametrize("arguments", ["{}", ""])
def test_a_call_comes_back_as_libraries_leave_it(arguments: str) -> None:
    function = {"name": "now", "arguments": arguments, "parsed_arguments": {}}
    call = {"id": "1", "type": "function", "index": 0, "function": function}
    given = {"role": "assistant", "content": None, "parsed": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "12:00", "tool_call_id": "1"}
    asked = chat_request({"messages": [{"role": "user", "content": "Hi"}, given, result]})
    assert rendered(asked) == rendered(chat_request({"messages": [*CALLED, result]}))


def test_which_tools_an_answer_may_call() -> None:
    def offered(**given: Any) -> tuple[int, bool, bool]:
        offer = chat_request(HI | {"tools": [TOOL]} | given).offer()
        return len(offer.tools), offer.is_forced, offer.is_parallel

    assert offered() == offered(tool_choice="auto") == offered(tool_choice=None) == (1, False, True)
    assert offered(tool_choice="none")[0] == 0
    assert offered(tool_choice="required", parallel_tool_calls=False) == (1, True, False)
    assert offered(tool_choice={"type": "function", "function": {"name": "now"}}) == (1, True, False)


def test_without_a_system_message_the_template_has_its_own() -> None:
    assert rendered(chat_request(HI)) == [{"role": "user", "content": "Hi"}]
